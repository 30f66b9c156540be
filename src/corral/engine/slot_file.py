"""The files of POST /slots/{id}: llama-server's layout, with a trailer that llama-server does not read.

    u32 magic "ggsq", u32 version, u32 count, count words, state of the row, trailer

The words are a record: -1, version 1, u32 n, n tokens, u32 media (0); or, in older files, just the tokens. libllama
reads the state it knows and nothing beyond it, so a trailer of sections with a sum may follow (``slot_trailer``): it
finds damage in the numbers of the cache, which nothing else would. The section "from" says who computed the state; the
section "ckpt" has checkpoints of beginnings of the tokens: u32 count, of each u32 tokens and u64 bytes, then the bytes.
Other sections are passed over. A file without trailer is taken as it is. No state in the file has
``MemoryTraits.state_head``.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from corral.engine.slot_trailer import BadSlotFile, read, summed, trailer
from corral.engine.whole_file import write_whole
from corral.errors import InvalidRequest, ServerError
from corral.ids import Token
from corral.ops import SavedCheckpoint
from corral.ports import MemoryTraits

MAGIC = 0x67677371
_HEAD = struct.Struct("<III")
_RECORD, _RECORD_VERSION = -1, 1
_FROM, _CHECKPOINTS = b"from", b"ckpt"
_FROM_MARK = b'{"weights":'
_COUNT, _MARK = struct.Struct("<I"), struct.Struct("<IQ")
_FORBIDDEN = frozenset('/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')
MAX_NAME_BYTES = 255
_MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Origin:
    """Who computed a state: the sum of the weights ("" if it is not known), the model's name, and what turns its cells.

    Numbers as of the flags --rope-freq-base and --rope-freq-scale: 0 stands for the model's own.
    """

    weights: str = ""
    model: str = ""
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0


NOBODY_KNOWN = Origin()


@dataclass(frozen=True, slots=True)
class SlotFile:
    """What a slot held. ``state`` is the row's as libllama writes it; ``checkpoints`` are of beginnings of ``tokens``.

    These are sorted by length, each longer than the one before and shorter than the tokens.
    """

    tokens: tuple[Token, ...]
    state: bytes
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    origin: Origin = NOBODY_KNOWN


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
    """The file of this name. Raises InvalidRequest for a bad name, a link that leads out, and what is no file."""
    if not is_valid_name(name):
        raise InvalidRequest("Invalid filename")
    real = (folder / name).resolve()
    if real.parent != folder.resolve():
        raise InvalidRequest(f"Invalid filename: {name} is a link that leads out of the folder of slot files")
    if real.exists() and not real.is_file():
        kind = "folder" if real.is_dir() else "device, pipe or socket"
        raise InvalidRequest(f"Invalid filename: {name} is a {kind}, not a file")
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
    return summed(_parts(file, version))


def _parts(file: SlotFile, version: int) -> Iterator[bytes]:
    record = [_RECORD, _RECORD_VERSION, len(file.tokens), *file.tokens, 0]
    yield _HEAD.pack(MAGIC, version, len(record))
    yield _words(record)
    yield file.state
    yield from trailer(_sections(file))


def _sections(file: SlotFile) -> Iterator[tuple[bytes, list[bytes]]]:
    if file.origin.weights:
        yield _FROM, [json.dumps(asdict(file.origin), separators=(",", ":")).encode()]
    if file.checkpoints:
        marks = b"".join(_MARK.pack(n, len(data)) for n, data in file.checkpoints)
        yield _CHECKPOINTS, [_COUNT.pack(len(file.checkpoints)) + marks, *(data for _, data in file.checkpoints)]


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


# --- reading ---------------------------------------------------------------------------------------------------------


def load(path: Path, traits: MemoryTraits, origin: Origin = NOBODY_KNOWN) -> tuple[SlotFile, int]:
    """The file and its size in bytes; ``origin`` is who reads it.

    Raises BadSlotFile: no such file, not one of ours, of another model, too long for a slot.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise BadSlotFile("not a regular file")
            head = file.read(_HEAD.size)
            _check_head(head, traits)
            raw = head + file.read()
    except OSError as error:
        raise BadSlotFile(error.strerror or str(error)) from None
    return unpack(raw, traits, origin), len(raw)


def _check_head(head: bytes, traits: MemoryTraits) -> None:
    """Before the rest is read, which may be large."""
    if not head:
        raise BadSlotFile("it is empty")
    if not head.startswith(struct.pack("<I", MAGIC)):
        raise BadSlotFile("it is no slot file")
    if len(head) < _HEAD.size:
        raise BadSlotFile(f"it is cut short: {len(head)} bytes")
    _, version, n_words = _HEAD.unpack(head)
    if version != traits.state_version:
        raise BadSlotFile(
            f"the file has state version {version}, this server reads and writes version {traits.state_version}"
        )
    if n_words > traits.n_cells_row + 4:
        raise BadSlotFile("Restored prompt does not fit in the slot context")


def unpack(raw: bytes, traits: MemoryTraits, origin: Origin = NOBODY_KNOWN) -> SlotFile:
    """Raises BadSlotFile."""
    _check_head(raw[: _HEAD.size], traits)
    (_, _, n_words) = _HEAD.unpack_from(raw)
    state_at = _HEAD.size + 4 * n_words
    end, sections = read(raw, _HEAD.size, _FROM_MARK)
    if state_at > end:
        raise BadSlotFile(f"it is cut short: its {len(raw)} bytes end within its {n_words} tokens")
    wrote = _origin(sections.get(_FROM, b"{}"))
    _check_origin(wrote, origin)
    words = array("i")
    words.frombytes(raw[_HEAD.size : state_at])
    tokens = _tokens(words.tolist())
    if len(tokens) > traits.n_cells_row:
        raise BadSlotFile("Restored prompt does not fit in the slot context")
    return SlotFile(tokens, raw[state_at:end], _checkpoints(sections.get(_CHECKPOINTS, b""), len(tokens)), wrote)


def _origin(section: bytes) -> Origin:
    try:
        found = json.loads(section)
        return Origin(**{name: type(default)(found[name]) for name, default in asdict(NOBODY_KNOWN).items() if found})
    except (ValueError, TypeError, KeyError):
        raise BadSlotFile("its trailer is damaged") from None


def _check_origin(wrote: Origin, reads: Origin) -> None:
    """Cells of other weights have the same form as often as not, and would be nonsense. Raises BadSlotFile."""
    if not (wrote.weights and reads.weights):
        return
    theirs, ours = repr(wrote.model[:_MAX_SHOWN]), repr(reads.model[:_MAX_SHOWN])
    if wrote.weights != reads.weights and wrote.model == reads.model:
        raise BadSlotFile(f"another file of the model {theirs} wrote it: other weights or another quantization")
    if wrote.weights != reads.weights:
        raise BadSlotFile(f"the model {theirs} wrote it, and this server runs {ours}")
    for flag, was, is_now in (
        ("--rope-freq-base", wrote.rope_freq_base, reads.rope_freq_base),
        ("--rope-freq-scale", wrote.rope_freq_scale, reads.rope_freq_scale),
    ):
        if was != is_now:
            raise BadSlotFile(f"it was written with {flag} {was:g}, and this server has {is_now:g}")


def _checkpoints(section: bytes, n_tokens: int) -> tuple[SavedCheckpoint, ...]:
    bad = BadSlotFile(f"the checkpoints in the file are not of its {n_tokens} tokens")
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
        raise BadSlotFile("Unsupported server tokens state version")
    n = words[2]
    if not 0 <= n <= len(words) - 4:
        raise BadSlotFile("the list of tokens is cut short")
    if words[3 + n] != 0:
        raise BadSlotFile("Cannot restore media tokens without an mmproj")
    if len(words) > n + 4:
        raise BadSlotFile("Trailing data in server tokens state")
    return tuple(words[3 : 3 + n])
