"""What is on disk and on its way from there: the planner's view of the disk tier. Pure; ``disk_tier`` does the I/O.

It is a tree of its own beside the ledger's. On disk keys are sums, and a plan's fork of the ledger must not copy the
tokens of a thousand files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from corral.engine.disk_entry import Entry, entry_name, owner_of
from corral.engine.radix import RadixTree
from corral.ids import CacheKey, SnapshotId, TaskId, Token
from corral.ports import MemoryTraits

SUPERSEDED = 0.5
"""A file goes for a longer one that begins with it if it has at least this share of its tokens.

So each turn of a conversation replaces the turn before, and a system prompt that many share stays for itself.
"""

NEAR = 64
"""So many tokens are computed again sooner than they are worth a file of their own."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The first ``n`` tokens of what was asked for can be had from the file ``name``, which holds ``n_tokens``."""

    name: str
    n: int
    n_tokens: int
    n_bytes: int


@dataclass(slots=True, eq=False)
class DiskIndex:
    """``fetching``: tasks that wait for a file. ``tried``: those that did, and do not wait again for this row.

    ``askers``: others than generations that wait for a file, and the key under which they want it.
    ``arrived``: snapshots made from files, and the tasks for which they were read; ``origin`` names their files, and
    ``unwanted`` are files that are to go, with what the log should say of them. ``bytes_per_ms``: how fast files
    are read, their checksum included. ``n_folder_bytes``: all files of the folder, other models' too. ``coming``: files
    that were handed to the worker and of which nothing was heard yet.
    """

    identity: bytes
    traits: MemoryTraits
    fetching: dict[TaskId, str] = field(default_factory=dict)
    tried: set[TaskId] = field(default_factory=set)
    askers: dict[TaskId, CacheKey] = field(default_factory=dict)
    arrived: dict[SnapshotId, frozenset[TaskId]] = field(default_factory=dict)
    origin: dict[SnapshotId, str] = field(default_factory=dict)
    unwanted: list[tuple[str, str]] = field(default_factory=list)
    coming: set[str] = field(default_factory=set)
    bytes_per_ms: float = 5e5
    n_folder_bytes: int = 0
    _tree: RadixTree[str] = field(default_factory=RadixTree)
    _entries: dict[str, Entry] = field(default_factory=dict)
    _owners: dict[CacheKey, bytes] = field(default_factory=dict)

    @property
    def n_entries(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def add(self, entry: Entry) -> None:
        """A file is there."""
        name = entry.name
        self.coming.discard(name)
        if name not in self._entries and entry.tokens:
            self._entries[name] = entry
            self._tree.extend(name, CacheKey(entry.owner.hex()), entry.tokens)

    def drop(self, name: str) -> None:
        """A file is not there any more, or never came to be."""
        self.coming.discard(name)
        if self._entries.pop(name, None):
            self._tree.drop(name)

    def find(self, key: CacheKey, tokens: Sequence[Token]) -> Hit | None:
        """The file that gives most of these tokens; of several the smallest."""
        best: tuple[int, int, str] | None = None
        for level in reversed(self._tree.match(CacheKey(self._owner(key).hex()), tokens)):
            if best and -best[0] >= level.n:
                break
            entries = [self._entries[name] for name in level.holders]
            ranks = [(-self.reach(entry, level.n), len(entry.tokens), entry.name) for entry in entries]
            best = min([*ranks, *([best] if best else [])])
        if not best or not best[0]:
            return None
        return Hit(best[2], -best[0], best[1], self._entries[best[2]].n_bytes)

    def reach(self, entry: Entry, n: int) -> int:
        """How many of an entry's first ``n`` tokens a row can be brought back to that was made of it."""
        n_all, window = len(entry.tokens), self.traits.window
        if self.traits.can_cut(n, max(0, n_all - window) if window else 0, n_all):
            return n
        return max((length for length, _ in entry.checkpoints if length <= n), default=0)

    def replaces(self, entry: Entry, name: str) -> bool:
        """Whether the entry is a longer turn of the conversation in the file ``name`` and gives nearly all of it."""
        n = len(self._entries[name].tokens)
        return len(entry.tokens) > n >= SUPERSEDED * len(entry.tokens) and self.reach(entry, n) > n - NEAR

    def expect(self, key: CacheKey, tokens: Sequence[Token]) -> None:
        """A file with these tokens is being written."""
        self.coming.add(entry_name(self.identity, self._owner(key), tokens))

    def is_coming(self, key: CacheKey, tokens: Sequence[Token]) -> bool:
        """Whether a file with just these tokens is being written."""
        return bool(self.coming) and entry_name(self.identity, self._owner(key), tokens) in self.coming

    def holds(self, key: CacheKey, tokens: Sequence[Token]) -> bool:
        """Whether a file has all of these tokens."""
        hit = self.find(key, tokens)
        return hit is not None and hit.n == len(tokens)

    def entries(self, key: CacheKey | None = None) -> list[Entry]:
        """All files, or those under one key; what was found last comes first."""
        owner = None if key is None else self._owner(key)
        return [entry for entry in reversed(self._entries.values()) if owner in (None, entry.owner)]

    def tokens(self, name: str) -> tuple[Token, ...]:
        return self._entries[name].tokens

    def reject(self, snapshot: SnapshotId) -> None:
        """The context did not take a snapshot; if it came from a file, that is no good."""
        if snapshot in self.origin:
            self.unwanted.append((self.origin[snapshot], "the context does not take its state"))

    def discard(self, key: CacheKey, tokens: Sequence[Token]) -> None:
        """Somebody wants these tokens forgotten: files with at least half of them and nothing else are to go."""
        levels = self._tree.match(CacheKey(self._owner(key).hex()), tokens)
        names = {name for level in levels for name in level.holders if len(self._entries[name].tokens) == level.n}
        self.unwanted += [(name, "") for name in sorted(names) if 2 * len(self._entries[name].tokens) >= len(tokens)]

    def within(self, entry: Entry) -> list[str]:
        """Files that hold a beginning of this entry's tokens and nothing else."""
        levels = self._tree.match(CacheKey(entry.owner.hex()), entry.tokens)
        return [n for level in levels for n in sorted(level.holders) if len(self._entries[n].tokens) == level.n]

    def learn(self, n_bytes: int, ms: float) -> None:
        """Reading a file of ``n_bytes`` took ``ms``."""
        if n_bytes > 65536 and ms > 0:
            self.bytes_per_ms += 0.2 * (n_bytes / ms - self.bytes_per_ms)

    def forget_tasks(self, present: Iterable[TaskId]) -> None:
        """Only these tasks still want a row, besides the ``askers``."""
        there = {*present, *self.askers}
        self.fetching = {task: name for task, name in self.fetching.items() if task in there}
        self.tried &= there
        self.arrived = {snapshot: tasks for snapshot, tasks in self.arrived.items() if tasks & there}

    def _owner(self, key: CacheKey) -> bytes:
        if len(self._owners) > 10_000:  # salts of users: the sum is cheap to make again
            self._owners.clear()
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = owner_of(self.identity, key)
        return owner
