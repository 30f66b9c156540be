"""The files of the disk tier: one prefix each, never changed once it has its name.

    "corralKV", u32 format, u32 parts, u32 checkpoints, u64 bytes of all states, f64 ms to compute,
    16 bytes identity, 16 bytes owner, of each part u32 start, u32 tokens, u64 bytes of its state,
    of each checkpoint u32 tokens, u64 bytes, then the tokens of all parts (i32 each), 16 bytes sum of all before,
    the states of all parts, the checkpoints, 16 bytes sum of the first sum and the states

A part is a snapshot of RAM: positions [start, start + tokens). The next begins within it or at its end, and what it has
beyond that is not of this prefix. Checkpoints bring a row that has the prefix back to beginnings of it.

Sums are BLAKE2b: in the standard library, about as fast as a disk, without the interpreter lock, and long enough that
a file that was damaged or put together from two is never taken for a good one. The second sum begins with the first,
so states go with their tokens. The name is the identity and the sum of owner and tokens: the same prefix has the same
name in every process, and a file under another's name is found out.

The *identity* stands for everything that the bytes depend on besides tokens: model, library, kind of cache. The *owner*
is a sum of the cache key (tenant and salt); neither is in the file in clear.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from corral.ids import CacheKey, Token

FORMAT = 2
SUM_BYTES = 16
_MAGIC = b"corralKV"
_HEAD = struct.Struct("<8sIIIQd16s16s")
_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}\.kv")
_PART = struct.Struct("<IIQ")
_MARK = struct.Struct("<IQ")
MAX_PARTS = 4096


class BadEntry(Exception):
    """A file that is not a good entry; the message says why."""


class OtherFormat(BadEntry):
    """A file of another version of this format: of no use here, but no fault."""


@dataclass(frozen=True, slots=True)
class Part:
    """``n_bytes`` of state for ``tokens`` from position ``start`` on."""

    start: int
    tokens: tuple[Token, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What a file says of itself. ``owner`` is ``owner_of`` the cache key, ``tokens`` the whole prefix.

    ``checkpoints``: the length in tokens and the bytes of each, in the order in which their states follow the parts'.
    """

    identity: bytes
    owner: bytes
    parts: tuple[Part, ...]
    prefill_ms: float
    checkpoints: tuple[tuple[int, int], ...] = ()
    tokens: tuple[Token, ...] = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", _path(self.parts))
        object.__setattr__(self, "name", entry_name(self.identity, self.owner, self.tokens))

    @property
    def n_bytes(self) -> int:
        """Of all states."""
        return sum(self.sizes())

    def sizes(self) -> list[int]:
        """Bytes of each state in the file."""
        return [*(part.n_bytes for part in self.parts), *(n_bytes for _, n_bytes in self.checkpoints)]

    @property
    def n_file_bytes(self) -> int:
        n_tokens = sum(len(part.tokens) for part in self.parts)
        return _n_file_bytes(len(self.parts), len(self.checkpoints), n_tokens, self.n_bytes)


def _path(parts: Sequence[Part]) -> tuple[Token, ...]:
    """The tokens of the last part and of those it rests on, up to where the next begins."""
    tokens: list[Token] = []
    for part in parts:
        del tokens[part.start :]
        tokens += part.tokens
    return tuple(tokens)


def _n_file_bytes(n_parts: int, n_marks: int, n_tokens: int, n_bytes: int) -> int:
    return _HEAD.size + n_parts * _PART.size + n_marks * _MARK.size + 4 * n_tokens + n_bytes + 2 * SUM_BYTES


def identity_of(text: str) -> bytes:
    """16 bytes for a text that names everything the state's bytes depend on."""
    return _sum(text.encode())


def owner_of(identity: bytes, key: CacheKey) -> bytes:
    """16 bytes that stand for a cache key; the same key has others under another model."""
    return _sum(b"owner", identity, key.encode())


def entry_name(identity: bytes, owner: bytes, tokens: Sequence[Token]) -> str:
    """The name of the file for this prefix."""
    return f"{identity.hex()[:16]}-{_sum(identity, owner, _packed(tokens)).hex()}.kv"


def is_entry_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name))


def is_of(name: str, identity: bytes) -> bool:
    """Whether a file of this name belongs to this identity."""
    return name.startswith(identity.hex()[:16] + "-")


def pack(entry: Entry, states: Sequence[bytes]) -> Iterator[bytes]:
    """The bytes of a file, in pieces; ``states`` are those of the parts and the checkpoints."""
    counts = len(entry.parts), len(entry.checkpoints)
    head = _HEAD.pack(_MAGIC, FORMAT, *counts, entry.n_bytes, entry.prefill_ms, entry.identity, entry.owner)
    head += b"".join(_PART.pack(part.start, len(part.tokens), part.n_bytes) for part in entry.parts)
    head += b"".join(_MARK.pack(*mark) for mark in entry.checkpoints)
    head += b"".join(_packed(part.tokens) for part in entry.parts)
    head_sum = _sum(head)
    yield head + head_sum
    yield from states
    yield _sum(head_sum, *states)


def read_entry(file: BinaryIO, n_file_bytes: int) -> tuple[Entry, bytes]:
    """The entry at the beginning of a file, and its sum; the states follow. Raises BadEntry."""
    raw = file.read(_HEAD.size)
    if len(raw) < _HEAD.size:
        raise BadEntry("cut short")
    magic, version, n_parts, n_marks, n_bytes, prefill_ms, identity, owner = _HEAD.unpack(raw)
    if magic != _MAGIC:
        raise BadEntry("not an entry of the cache")
    if version != FORMAT:
        raise OtherFormat(f"format {version} instead of {FORMAT}")
    table, shapes = _read_table(file, _PART, n_parts)
    more, marks = _read_table(file, _MARK, n_marks)
    n_tokens = sum(n for _, n, _ in shapes)
    if _n_file_bytes(n_parts, n_marks, n_tokens, n_bytes) != n_file_bytes:
        raise BadEntry("not of the size it says")
    words = file.read(4 * n_tokens)
    head_sum = file.read(SUM_BYTES)
    if _sum(raw, table, more, words) != head_sum:
        raise BadEntry("damaged")
    parts = _parts(shapes, struct.unpack(f"<{n_tokens}i", words))
    entry = Entry(identity, owner, parts, prefill_ms, tuple((n, size) for n, size in marks))
    if entry.n_bytes != n_bytes or any(not 0 < n < len(entry.tokens) for n, _ in marks):
        raise BadEntry("damaged")
    return entry, head_sum


def _read_table(file: BinaryIO, line: struct.Struct, n: int) -> tuple[bytes, list[tuple[int, ...]]]:
    raw = file.read(line.size * min(n, MAX_PARTS))
    if len(raw) != line.size * n:
        raise BadEntry("not of the size it says")
    return raw, list(line.iter_unpack(raw))


def _parts(shapes: Sequence[tuple[int, ...]], tokens: tuple[Token, ...]) -> tuple[Part, ...]:
    parts: list[Part] = []
    at = 0
    for start, n_tokens, n_bytes in shapes:
        parts.append(Part(start, tokens[at : at + n_tokens], n_bytes))
        at += n_tokens
    return tuple(parts)


def read_states(file: BinaryIO, entry: Entry, head_sum: bytes) -> tuple[bytes, ...]:
    """The states that follow an entry, those of the parts first. Raises BadEntry."""
    states = tuple(map(file.read, entry.sizes()))
    if sum(map(len, states)) != entry.n_bytes or _sum(head_sum, *states) != file.read(SUM_BYTES):
        raise BadEntry("damaged")
    return states


def _packed(tokens: Sequence[Token]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def _sum(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=SUM_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
