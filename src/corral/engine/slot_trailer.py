"""What follows the state in a slot file: sections, and a sum over all before. It tells damage from cuts and additions.

sections (4 bytes of name, u64 size, bytes), "corralT1", u64 size of the trailer, BLAKE2b over all before
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator

from corral.errors import InvalidRequest

_MAGIC = b"corralT1"
_SECTION = struct.Struct("<4sQ")
_SUM_BYTES = 16
FOOT_BYTES = len(_MAGIC) + 8 + _SUM_BYTES

Sections = dict[bytes, bytes]


class BadSlotFile(InvalidRequest):
    """A file that cannot be restored; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Unable to restore slot: {reason}")


# --- writing ---------------------------------------------------------------------------------------------------------


def summed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts and their sum."""
    digest = hashlib.blake2b(digest_size=_SUM_BYTES)
    for part in parts:
        digest.update(part)
        yield part
    yield digest.digest()


def trailer(sections: Iterable[tuple[bytes, list[bytes]]]) -> Iterator[bytes]:
    """All of it but the sum. The bytes of a section may come in parts."""
    n_bytes = FOOT_BYTES
    for name, parts in sections:
        n_section = sum(map(len, parts))
        yield _SECTION.pack(name, n_section)
        yield from parts
        n_bytes += _SECTION.size + n_section
    yield _MAGIC + struct.pack("<Q", n_bytes)


# --- reading ---------------------------------------------------------------------------------------------------------


def read(raw: bytes, first: int, mark: bytes) -> tuple[int, Sections]:
    """Where the state ends, and the sections after it; the whole and none where no trailer is.

    The state cannot end before ``first``; ``mark`` is the text that the first section begins with. Raises BadSlotFile.
    """
    foot_at = len(raw) - FOOT_BYTES
    if not raw.startswith(_MAGIC, max(foot_at, 0)) or foot_at < first:
        _explain_missing(raw, mark)
        return len(raw), {}
    if not _is_whole(raw, len(raw)):
        raise BadSlotFile("it is damaged (its checksum does not match)")
    (n_bytes,) = struct.unpack_from("<Q", raw, foot_at + len(_MAGIC))
    at = len(raw) - n_bytes
    if at < first:
        raise BadSlotFile("its trailer is damaged")
    return at, _sections(raw, at, foot_at)


def _explain_missing(raw: bytes, mark: bytes) -> None:
    """A file of llama-server has none; but one of ours may have been cut or gone on from. Raises BadSlotFile."""
    foot_at = raw.rfind(_MAGIC)
    end = foot_at + FOOT_BYTES
    if foot_at >= 0 and end < len(raw):
        if _is_whole(raw, end):
            raise BadSlotFile(f"{len(raw) - end} bytes were added behind its end")
        raise BadSlotFile("it is damaged (its checksum does not match)")
    if foot_at >= 0 or raw.rfind(mark) >= 0:
        raise BadSlotFile(f"it is cut short, or its end is damaged: its {len(raw)} bytes do not end with its checksum")


def _is_whole(raw: bytes, end: int) -> bool:
    """Whether the sum at ``end`` is that of what is before it."""
    view = memoryview(raw)
    return hashlib.blake2b(view[: end - _SUM_BYTES], digest_size=_SUM_BYTES).digest() == view[end - _SUM_BYTES : end]


def _sections(raw: bytes, at: int, end: int) -> Sections:
    sections: Sections = {}
    while at + _SECTION.size <= end:
        name, size = _SECTION.unpack_from(raw, at)
        at += _SECTION.size
        sections[name] = raw[at : at + size]
        at += size
    if at != end:
        raise BadSlotFile("its trailer is damaged")
    return sections
