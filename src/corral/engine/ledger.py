"""The ledger: which tokens are in which cells of which row, which are kept as bytes, and who has leased what.

It records what happened and answers questions; it decides nothing. The engine keeps one, the planner works on a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from corral.engine.cells import Cells
from corral.engine.radix import Level, RadixTree
from corral.ids import CacheKey, RowId, SnapshotId, Token
from corral.ops import Checkpoint, Copy, Drop, Load, Op, Restore, Save, Shift, Trim
from corral.ports import MemoryTraits

SHIFTED = "\0shifted "
"""Begins the keys of rows whose cells were moved: each such key belongs to one conversation."""


class Tier(Enum):
    """Where a prefix is kept."""

    ROW = "row"
    RAM = "ram"
    CHECKPOINT = "checkpoint"


class Holder(NamedTuple):
    """One place that keeps one sequence: a row of the context, or a snapshot or checkpoint in RAM.

    A checkpoint keeps only what a row cannot be cut back to: of use to who holds at least its tokens.
    """

    tier: Tier
    id: int


def row_holder(row: RowId) -> Holder:
    return Holder(Tier.ROW, row)


def ram_holder(snapshot: SnapshotId) -> Holder:
    return Holder(Tier.RAM, snapshot)


def checkpoint_holder(snapshot: SnapshotId) -> Holder:
    return Holder(Tier.CHECKPOINT, snapshot)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a row. Good until released; ``serial`` tells an old one from a new one."""

    row: RowId
    serial: int


class StaleLease(Exception):
    """A lease that was released before, or never given."""


class KvLedger:
    """Rows, snapshots, leases and recency over one context's memory."""

    def __init__(self, traits: MemoryTraits) -> None:
        self.traits = traits
        self._tree: RadixTree[Holder] = RadixTree()
        self._cells = Cells()
        self._leases: dict[RowId, Lease] = {}
        self._serial = 0
        self._tick = 0
        self._used_at: dict[Holder, int] = {}
        self._snapshot_bytes: dict[SnapshotId, int] = {}
        self._checkpoints: set[SnapshotId] = set()
        self._first: dict[Holder, int] = {}
        self._bases: dict[SnapshotId, tuple[SnapshotId, int]] = {}
        self._pins: set[SnapshotId] = set()
        self.rent_ms: dict[RowId, float] = {}
        self.n_shifted = 0
        self._unsettled: set[RowId] = set()

    # --- questions -------------------------------------------------------------------------------------------------

    def match(self, key: CacheKey, tokens: Sequence[Token]) -> list[Level[Holder]]:
        """Who holds beginnings of ``tokens``, shortest first."""
        return self._tree.match(key, tokens)

    def length(self, row: RowId) -> int:
        return self._cells.length(row)

    def tokens(self, row: RowId) -> list[Token]:
        return self._tree.tokens(row_holder(row))

    def key(self, row: RowId) -> CacheKey:
        """Raises KeyError for an empty row."""
        return self._tree.key(row_holder(row))

    def own_key(self, row: RowId) -> CacheKey | None:
        """The key that the row has to itself since its cells were moved; None for an exact or empty row."""
        holder = row_holder(row)
        key = self._tree.key(holder) if holder in self._tree else CacheKey("")
        return key if key.startswith(SHIFTED) else None

    def owns_from(self, row: RowId, n: int) -> bool:
        """Whether nobody else holds the row's cells from position ``n`` on, so that they may move."""
        return self._cells.owns_from(row, n)

    def is_settled(self, row: RowId) -> bool:
        """Whether the row may be saved: not between a Shift, or a Save that failed, and the next forward pass."""
        return row not in self._unsettled

    def snapshot_length(self, snapshot: SnapshotId) -> int:
        return self._tree.length(self.holder_of(snapshot))

    def snapshot_start(self, snapshot: SnapshotId) -> int:
        """From which position on the snapshot has bytes of its own."""
        return self._bases[snapshot][1] if snapshot in self._bases else 0

    def chain(self, snapshot: SnapshotId) -> list[SnapshotId]:
        """The snapshot and all it rests on, that which begins at 0 first."""
        links = [snapshot]
        while links[-1] in self._bases:
            links.append(self._bases[links[-1]][0])
        return links[::-1]

    def children(self) -> dict[SnapshotId, set[SnapshotId]]:
        """Which snapshots rest on which."""
        found: dict[SnapshotId, set[SnapshotId]] = {}
        for child, (base, _) in self._bases.items():
            found.setdefault(base, set()).add(child)
        return found

    def holder_of(self, snapshot: SnapshotId) -> Holder:
        """The snapshot or checkpoint of this id as a holder."""
        return Holder(Tier.CHECKPOINT if snapshot in self._checkpoints else Tier.RAM, snapshot)

    def first(self, holder: Holder) -> int:
        """The lowest position from which the holder still has everything."""
        return self._first.get(holder, 0)

    def can_cut(self, holder: Holder, n: int) -> bool:
        """Whether the holder, a row or a snapshot of at least ``n`` tokens, can be brought back to its first ``n``.

        Where a row travels as bytes: whether it can afterwards. Saved it has only its window.
        """
        travels = holder.tier is Tier.ROW and not self.traits.shared_cells
        first = self.saved_first(holder) if travels else self.first(holder)
        return self.traits.can_cut(n, first, self._tree.length(holder))

    def saved_first(self, holder: Holder) -> int:
        """Where the row begins once it is bytes."""
        if not self.traits.window:
            return 0
        return max(self.first(holder), self._tree.length(holder) - self.traits.window)

    @property
    def n_window_used(self) -> int:
        """Cells of the second pool that rows need: those within the window, each row's own."""
        return sum(min(n, self.traits.window) for n in self._cells.lengths())

    def holder_key(self, holder: Holder) -> CacheKey:
        """Raises KeyError for one that holds nothing."""
        return self._tree.key(holder)

    def holder_tokens(self, holder: Holder) -> list[Token]:
        return self._tree.tokens(holder)

    def holder_length(self, holder: Holder) -> int:
        return self._tree.length(holder)

    def exclusive(self, row: RowId) -> int:
        """Cells that only this row holds."""
        return self._cells.exclusive(row)

    @property
    def n_used(self) -> int:
        """Cells in use, each counted once."""
        return self._cells.n_used

    @property
    def n_leased_cells(self) -> int:
        """Cells that busy rows hold."""
        return self.n_used - self.n_reclaimable()

    def n_reclaimable(self, spared: RowId | None = None) -> int:
        """Cells that dropping every cold row but ``spared`` would free."""
        return self._cells.freed_by(set(self.cold_rows()) - {spared})

    def n_free(self, row: RowId) -> int:
        """Cells the row may still take without anything being dropped."""
        if self.traits.shared_cells:
            return self.traits.n_cells - self.n_used
        return self.traits.n_cells_row - self.length(row)

    def is_leased(self, row: RowId) -> bool:
        return row in self._leases

    def leased_rows(self) -> list[RowId]:
        return sorted(self._leases)

    def holders(self, key: CacheKey) -> list[Holder]:
        """Everything that keeps a prefix under the key."""
        return [h for h in self._tree.holders() if self._tree.key(h) == key]

    def cache_keys(self) -> set[CacheKey]:
        """All keys under which something is kept."""
        return {self._tree.key(h) for h in self._tree.holders()}

    def all_holders(self) -> list[Holder]:
        """Everything that keeps a prefix under any key."""
        return self._tree.holders()

    def rows(self) -> Iterator[RowId]:
        return (RowId(i) for i in range(self.traits.n_rows))

    def cold_rows(self) -> list[RowId]:
        """Rows that hold something and are not leased, least recently used first."""
        cold = [row for row in self.rows() if row not in self._leases and self._cells.length(row)]
        return sorted(cold, key=lambda row: self._used_at.get(row_holder(row), 0))

    def empty_rows(self) -> list[RowId]:
        """Rows without tokens that are not leased, in ascending order."""
        return [row for row in self.rows() if row not in self._leases and not self._cells.length(row)]

    def used_at(self, holder: Holder) -> int:
        """A tick that grows with use; 0 if never used."""
        return self._used_at.get(holder, 0)

    def snapshots(self) -> list[SnapshotId]:
        """All snapshots and checkpoints, least recently used first."""
        return sorted(self._snapshot_bytes, key=lambda s: self._used_at.get(self.holder_of(s), 0))

    def snapshot_bytes(self, snapshot: SnapshotId) -> int:
        return self._snapshot_bytes[snapshot]

    @property
    def total_snapshot_bytes(self) -> int:
        return sum(self._snapshot_bytes.values())

    def is_redundant(self, holder: Holder) -> bool:
        """Whether what this one keeps can be had from another (rows count only while nobody may write them).

        And that later, too: what a row still has beyond its window is soon lost. A checkpoint is redundant without
        anybody who holds its tokens, too: it is of no use alone.
        """
        tokens = self._tree.tokens(holder)
        if not tokens:
            return True
        last = self._tree.match(self._tree.key(holder), tokens)[-1]
        others = [h for h in last.holders if h != holder and h.tier is not Tier.CHECKPOINT]
        if holder.tier is Tier.CHECKPOINT and not others:
            return True
        lasting = [h for h in others if h.tier is not Tier.ROW or RowId(h.id) not in self._leases]
        firsts = {h: self.saved_first(h) if h.tier is Tier.ROW else self.first(h) for h in lasting}
        return any(self.traits.can_cut(last.n, first, self._tree.length(h)) for h, first in firsts.items())

    def cut_points(self, key: CacheKey, tokens: Sequence[Token]) -> list[SnapshotId]:
        """Checkpoints of beginnings of ``tokens``, and snapshots that end there, shortest first."""
        found: list[SnapshotId] = []
        for level in self.match(key, tokens):
            ids = [SnapshotId(h.id) for h in level.holders if h.tier is not Tier.ROW]
            found += sorted(s for s in ids if self.snapshot_length(s) == level.n)
        return found

    @property
    def pins(self) -> frozenset[SnapshotId]:
        """Snapshots that stay whatever is needed."""
        return frozenset(self._pins)

    # --- what happened ---------------------------------------------------------------------------------------------

    def lease(self, row: RowId) -> Lease:
        """Raises ValueError if the row is leased already."""
        if row in self._leases:
            raise ValueError(f"row {row} is leased already")
        self._serial += 1
        self._leases[row] = lease = Lease(row, self._serial)
        self.rent_ms.pop(row, None)
        self.touch(row_holder(row))
        return lease

    def release(self, lease: Lease) -> None:
        """The row keeps its tokens and turns cold. Raises StaleLease if it is not the current one."""
        if self._leases.get(lease.row) != lease:
            raise StaleLease(f"{lease} is not the lease of row {lease.row}")
        del self._leases[lease.row]
        self.touch(row_holder(lease.row))

    def touch(self, holder: Holder) -> None:
        """The holder was used now, and with a snapshot all it rests on."""
        links = self.chain(SnapshotId(holder.id)) if holder.tier is Tier.RAM else []
        for used in (holder, *(ram_holder(link) for link in links[-2::-1])):
            self._tick += 1
            self._used_at[used] = self._tick

    def extend(self, row: RowId, key: CacheKey, tokens: Sequence[Token]) -> None:
        """The row computed these tokens at its end, in fresh cells."""
        self._tree.extend(row_holder(row), key, tokens)
        self._cells.extend(row, len(tokens))

    def pin(self, snapshot: SnapshotId, is_pinned: bool = True) -> None:
        """The snapshot, with what it rests on, is to stay or may go again."""
        links = self.chain(snapshot) if is_pinned else [snapshot]
        self._pins = self._pins | set(links) if is_pinned else self._pins - set(links)

    def unsettle(self, row: RowId) -> None:
        """The row could not be saved: nobody is to try it again before the next forward pass."""
        self._unsettled.add(row)

    def settle(self) -> None:
        """There was a forward pass: cells that were to move have moved."""
        self._unsettled.clear()

    def adopt(
        self,
        snapshot: SnapshotId,
        key: CacheKey,
        tokens: Sequence[Token],
        n_bytes: int,
        start: int = 0,
        base: SnapshotId | None = None,
    ) -> None:
        """A state from elsewhere is kept in RAM from now on, as if by a Save. ``tokens`` are not empty."""
        if base is not None:
            self._bases[snapshot] = (base, start)
        self._adopt(ram_holder(snapshot), key, tokens, n_bytes)

    def adopt_checkpoint(self, snapshot: SnapshotId, key: CacheKey, tokens: Sequence[Token], n_bytes: int) -> None:
        """A checkpoint from elsewhere is kept from now on; where a state is all there is, a snapshot."""
        if self.traits.bytes_per_token:
            self._checkpoints.add(snapshot)
        self._adopt(self.holder_of(snapshot), key, tokens, n_bytes)

    def _adopt(self, holder: Holder, key: CacheKey, tokens: Sequence[Token], n_bytes: int) -> None:
        self._tree.extend(holder, key, tokens)
        self._snapshot_bytes[SnapshotId(holder.id)] = n_bytes
        self.set_first(holder, self.saved_first(holder))
        self.touch(holder)

    def apply(self, op: Op, n_bytes: int = 0) -> None:
        """An op was carried out. ``n_bytes`` is the size of what a Save or Checkpoint stored."""
        match op:
            case Trim(row, n):
                self._trim(row, n)
            case Copy(src, dst, n):
                self._trim(dst, 0)
                self._tree.copy(row_holder(src), row_holder(dst), n)
                self._cells.share(src, dst, n)
                if n and src in self._unsettled:
                    self._unsettled.add(dst)
                self.set_first(row_holder(dst), self.first(row_holder(src)))
                self.touch(row_holder(src))
            case Shift(row, keep, discard):
                self._shift(row, keep, discard)
            case Save(row, snapshot, start, base):
                if base is not None:
                    self._bases[snapshot] = (base, start)
                n = self._tree.length(row_holder(row))
                self._tree.copy(row_holder(row), ram_holder(snapshot), n)
                self._snapshot_bytes[snapshot] = n_bytes
                self._used_at[ram_holder(snapshot)] = self.used_at(row_holder(row))
                self.set_first(ram_holder(snapshot), self.saved_first(row_holder(row)))
            case Load(snapshot, row, start):
                self._trim(row, start)
                n = self._tree.length(ram_holder(snapshot))
                self._tree.copy(ram_holder(snapshot), row_holder(row), n)
                self._cells.extend(row, n - start)
                self.set_first(row_holder(row), self.first(ram_holder(snapshot)))
                self.touch(ram_holder(snapshot))
            case Checkpoint(row, snapshot):
                self._checkpoints.add(snapshot)
                self._tree.copy(row_holder(row), checkpoint_holder(snapshot), self._tree.length(row_holder(row)))
                self._snapshot_bytes[snapshot] = n_bytes
                self.set_first(checkpoint_holder(snapshot), self.first(row_holder(row)))
                self.touch(checkpoint_holder(snapshot))
            case Restore(snapshot, row, n):
                self._trim(row, n)
                self.set_first(row_holder(row), self.first(checkpoint_holder(snapshot)))
                self.touch(checkpoint_holder(snapshot))
            case Drop(snapshot):
                self._drop(snapshot)

    def _drop(self, snapshot: SnapshotId) -> None:
        holder = self.holder_of(snapshot)
        self._tree.drop(holder)
        self._snapshot_bytes.pop(snapshot, None)
        self._bases.pop(snapshot, None)
        self._checkpoints.discard(snapshot)
        self._pins.discard(snapshot)
        self._used_at.pop(holder, None)
        self._first.pop(holder, None)

    def set_first(self, holder: Holder, first: int) -> None:
        """The holder has lost what lies before ``first``; 0: nothing is lost."""
        if first:
            self._first[holder] = first
        else:
            self._first.pop(holder, None)

    def _trim(self, row: RowId, n: int) -> None:
        self._tree.trim(row_holder(row), n)
        self._cells.trim(row, n)
        if n == 0:
            self.rent_ms.pop(row, None)
            self._unsettled.discard(row)
            self._first.pop(row_holder(row), None)

    def _shift(self, row: RowId, keep: int, discard: int) -> None:
        """What was moved is no longer what its tokens alone would give: the row leaves the key that others look under.

        Raises ValueError where others hold cells that would move.
        """
        self._cells.cut_out(row, keep, keep + discard)
        tokens, key = self.tokens(row), self.own_key(row)
        if key is None:
            self.n_shifted += 1
            key = CacheKey(f"{SHIFTED}{self.n_shifted}")
        self._tree.drop(row_holder(row))
        self._tree.extend(row_holder(row), key, tokens[:keep] + tokens[keep + discard :])
        self._unsettled.add(row)

    def fork(self) -> KvLedger:
        """An independent copy, for planning."""
        other = KvLedger(self.traits)
        other._serial, other._tick = self._serial, self._tick
        other._tree = self._tree.fork()
        other._cells = self._cells.fork()
        other._leases = dict(self._leases)
        other._used_at = dict(self._used_at)
        other._snapshot_bytes = dict(self._snapshot_bytes)
        other._checkpoints = set(self._checkpoints)
        other._pins = set(self._pins)
        other._first = dict(self._first)
        other._bases = dict(self._bases)
        other.rent_ms = dict(self.rent_ms)
        other.n_shifted, other._unsettled = self.n_shifted, set(self._unsettled)
        return other

    def check(self) -> None:
        """Raise AssertionError if tree, cells, leases and budget disagree."""
        self._tree.check()
        self._cells.check()
        for row in self.rows():
            assert self._tree.length(row_holder(row)) == self._cells.length(row), f"row {row}: tree and cells differ"
            assert self._cells.length(row) <= self.traits.n_cells_row, f"row {row} is longer than a row can be"
            lease = self._leases.get(row)
            assert lease is None or lease.row == row, f"row {row} has the lease of another"
        if self.traits.shared_cells:
            assert self.n_used <= self.traits.n_cells, f"{self.n_used} of {self.traits.n_cells} cells used"
        for snapshot in self._snapshot_bytes:
            assert self.snapshot_length(snapshot), f"snapshot {snapshot} holds no tokens"
        for snapshot, (base, start) in self._bases.items():
            assert self._tree.length(ram_holder(base)) >= start, f"snapshot {snapshot} rests on {base}, which is gone"
