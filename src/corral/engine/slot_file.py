"""The files of POST /slots/{id}: llama-server's layout, with a trailer that llama-server does not read.

    u32 magic "ggsq", u32 version, u32 count, count words, state of the row, trailer

The words are a record: -1, version 1, u32 n, n tokens, u32 media (0); or, in older files, just the tokens. libllama
reads the state it knows and nothing beyond it, so a trailer of sections may follow:

    sections (4 bytes of name, u64 size, bytes), "corralT1", u64 size of the trailer, BLAKE2b over all before

The section "ckpt" has checkpoints of beginnings of the tokens: u32 count, of each u32 tokens and u64 bytes, then the
bytes. Other sections are passed over. The sum finds damage in the numbers of the cache, which nothing else would. A
file without trailer is taken as it is. No state in the file has ``MemoryTraits.state_head``.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from corral.engine.whole_file import write_whole
from corral.errors import InvalidRequest, ServerError
from corral.ids import Token
from corral.ops import SavedCheckpoint
from corral.ports import MemoryTraits

MAGIC = 0x67677371
_HEAD = struct.Struct("<III")
_RECORD, _RECORD_VERSION = -1, 1
_TRAILER_MAGIC = b"corralT1"
_SECTION = struct.Struct("<4sQ")
_CHECKPOINTS = b"ckpt"
_COUNT, _MARK = struct.Struct("<I"), struct.Struct("<IQ")
_SUM_BYTES = 16
_FOOT_BYTES = len(_TRAILER_MAGIC) + 8 + _SUM_BYTES
_FORBIDDEN = frozenset('/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class SlotFile:
    """What a slot held. ``state`` is the row's as libllama writes it; ``checkpoints`` are of beginnings of ``tokens``.

    These are sorted by length, each longer than the one before and shorter than the tokens.
    """

    tokens: tuple[Token, ...]
    state: bytes
    checkpoints: tuple[SavedCheckpoint, ...] = ()


class BadSlotFile(InvalidRequest):
    """A file that cannot be restored; the message says why."""


def is_valid_name(name: str) -> bool:
    """llama-server's rule: one path component that every system can store and that stays in its folder."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return (
        0 < n_bytes <= MAX_NAME_BYTES
        and not any(char in _FORBIDDEN or unicodedata.category(char) == "Cc" for char in name)
        and ".." not in name
        and name[0] != " "
        and name[-1] not in " ."
    )


def inside(folder: Path, name: str) -> Path:
    """The file of this name. Raises InvalidRequest for a bad name or a link that leads out of the folder."""
    if not is_valid_name(name):
        raise InvalidRequest("Invalid filename")
    real = (folder / name).resolve()
    if real.parent != folder.resolve():
        raise InvalidRequest(f"Invalid filename: {name} is a link that leads out of the folder of slot files")
    return real


# --- writing ---------------------------------------------------------------------------------------------------------


def save(path: Path, file: SlotFile, version: int) -> int:
    """Write the file, or leave the old one as it was. Returns its bytes. Raises ServerError."""
    try:
        return write_whole(path, pack(file, version))
    except OSError as error:
        raise ServerError(f"Unable to save slot: {error.strerror or error}") from None


def pack(file: SlotFile, version: int) -> Iterator[bytes]:
    """The bytes of a file, in parts."""
    digest = hashlib.blake2b(digest_size=_SUM_BYTES)
    for part in _parts(file, version):
        digest.update(part)
        yield part
    yield digest.digest()


def _parts(file: SlotFile, version: int) -> Iterator[bytes]:
    record = [_RECORD, _RECORD_VERSION, len(file.tokens), *file.tokens, 0]
    yield _HEAD.pack(MAGIC, version, len(record))
    yield _words(record)
    yield file.state
    n_bytes = _FOOT_BYTES
    if file.checkpoints:
        table = _COUNT.pack(len(file.checkpoints)) + b"".join(_MARK.pack(n, len(data)) for n, data in file.checkpoints)
        n_section = len(table) + sum(len(data) for _, data in file.checkpoints)
        yield _SECTION.pack(_CHECKPOINTS, n_section) + table
        yield from (data for _, data in file.checkpoints)
        n_bytes += _SECTION.size + n_section
    yield _TRAILER_MAGIC + struct.pack("<Q", n_bytes)


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


# --- reading ---------------------------------------------------------------------------------------------------------


def load(path: Path, traits: MemoryTraits) -> tuple[SlotFile, int]:
    """The file and its size in bytes. Raises BadSlotFile: no such file, not one of ours, too long for a slot."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadSlotFile("Unable to restore slot: not a regular file")
            head = file.read(_HEAD.size)
            _check_head(head, traits)
            raw = head + file.read()
    except OSError as error:
        raise BadSlotFile(f"Unable to restore slot: {error.strerror or error}") from None
    return unpack(raw, traits), len(raw)


def _check_head(head: bytes, traits: MemoryTraits) -> None:
    """Before the rest is read, which may be large."""
    if len(head) < _HEAD.size:
        raise BadSlotFile("Unable to restore slot: the file is too short")
    magic, version, n_words = _HEAD.unpack(head)
    if magic != MAGIC:
        raise BadSlotFile("Unable to restore slot: it is not a file of a slot")
    if version != traits.state_version:
        raise BadSlotFile(
            f"Unable to restore slot: the file has state version {version}, "
            f"this server reads and writes version {traits.state_version}"
        )
    if n_words > traits.n_cells_row + 4:
        raise BadSlotFile("Unable to restore slot: Restored prompt does not fit in the slot context")


def unpack(raw: bytes, traits: MemoryTraits) -> SlotFile:
    """Raises BadSlotFile."""
    _check_head(raw[: _HEAD.size], traits)
    end, sections = _trailer(raw)
    (_, _, n_words) = _HEAD.unpack_from(raw)
    state_at = _HEAD.size + 4 * n_words
    if state_at > end:
        raise BadSlotFile("Unable to restore slot: the file is cut short")
    words = array("i")
    words.frombytes(raw[_HEAD.size : state_at])
    tokens = _tokens(words.tolist())
    if len(tokens) > traits.n_cells_row:
        raise BadSlotFile("Unable to restore slot: Restored prompt does not fit in the slot context")
    return SlotFile(tokens, raw[state_at:end], _checkpoints(sections.get(_CHECKPOINTS, b""), len(tokens)))


def _checkpoints(section: bytes, n_tokens: int) -> tuple[SavedCheckpoint, ...]:
    bad = BadSlotFile(f"Unable to restore slot: the checkpoints in the file are not of its {n_tokens} tokens")
    if not section:
        return ()
    n_max = (len(section) - _COUNT.size) // _MARK.size
    (count,) = _COUNT.unpack_from(section) if n_max > 0 else (0,)
    if not 0 < count <= n_max:
        raise bad
    marks = [_MARK.unpack_from(section, _COUNT.size + i * _MARK.size) for i in range(count)]
    ends = list(accumulate((n_bytes for _, n_bytes in marks), initial=_COUNT.size + count * _MARK.size))
    lengths = [0, *(n for n, _ in marks), n_tokens]
    if ends[-1] != len(section) or any(n >= after for n, after in pairwise(lengths)):
        raise bad
    return tuple(SavedCheckpoint(n, section[a:b]) for (n, _), (a, b) in zip(marks, pairwise(ends), strict=True))


def _tokens(words: list[int]) -> tuple[Token, ...]:
    if not words or words[0] != _RECORD:
        return tuple(words)
    if len(words) < 4 or words[1] != _RECORD_VERSION:
        raise BadSlotFile("Unable to restore slot: Unsupported server tokens state version")
    n = words[2]
    if not 0 <= n <= len(words) - 4:
        raise BadSlotFile("Unable to restore slot: the list of tokens is cut short")
    if words[3 + n] != 0:
        raise BadSlotFile("Unable to restore slot: Cannot restore media tokens without an mmproj")
    if len(words) > n + 4:
        raise BadSlotFile("Unable to restore slot: Trailing data in server tokens state")
    return tuple(words[3 : 3 + n])


def _trailer(raw: bytes) -> tuple[int, dict[bytes, bytes]]:
    """Where the state ends, and the sections after it."""
    foot = raw[-_FOOT_BYTES:]
    if len(foot) < _FOOT_BYTES or not foot.startswith(_TRAILER_MAGIC):
        return len(raw), {}
    if hashlib.blake2b(memoryview(raw)[:-_SUM_BYTES], digest_size=_SUM_BYTES).digest() != foot[-_SUM_BYTES:]:
        raise BadSlotFile("Unable to restore slot: the file is damaged (its checksum does not match)")
    (n_bytes,) = struct.unpack_from("<Q", foot, len(_TRAILER_MAGIC))
    at, sections_end, sections = len(raw) - n_bytes, len(raw) - _FOOT_BYTES, {}
    start = at
    while _HEAD.size <= at < sections_end:
        if at + _SECTION.size > sections_end:
            break
        name, size = _SECTION.unpack_from(raw, at)
        at += _SECTION.size
        sections[name] = raw[at : at + size]
        at += size
    if at != sections_end:
        raise BadSlotFile("Unable to restore slot: the trailer of the file is damaged")
    return start, sections
