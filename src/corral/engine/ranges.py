"""Snapshots as ranges of the tree: from where on a row is saved, on top of which snapshot, and how it comes back."""

from __future__ import annotations

from collections.abc import Iterable

from corral.engine.ledger import Holder, KvLedger, Tier
from corral.ids import RowId, SnapshotId
from corral.ops import Copy, Load, Op, Save, Trim

MIN_SHARED = 32
"""A shorter beginning is saved again: a snapshot in two parts takes longer to load than this is worth."""


def in_ram(holders: Iterable[Holder]) -> list[SnapshotId]:
    """The snapshots among them."""
    return [SnapshotId(h.id) for h in holders if h.tier is Tier.RAM]


def save_op(ledger: KvLedger, row: RowId, snapshot: SnapshotId) -> Save:
    """Save what no snapshot keeps of the row yet, on top of the one that keeps most of it.

    Only where a part of a row can be saved and loaded.
    """
    if ledger.traits.ranges:
        for level in reversed(ledger.match(ledger.key(row), ledger.tokens(row))):
            kept = [s for s in in_ram(level.holders) if ledger.snapshot_start(s) < level.n]
            if kept and level.n >= MIN_SHARED:
                return Save(row, snapshot, level.n, min(kept, key=ledger.snapshot_length))
    return Save(row, snapshot)


def shared_part(ledger: KvLedger, snapshot: SnapshotId, n: int) -> int:
    """How many of the first ``n`` tokens, which a row has, need not be loaded with the snapshot: up to a link of it."""
    return max(start for start in map(ledger.snapshot_start, ledger.chain(snapshot)) if start <= n)


def load_ops(ledger: KvLedger, snapshot: SnapshotId, row: RowId, source: RowId | None = None, n: int = 0) -> list[Op]:
    """Ops that bring the snapshot, with all it rests on, into the empty ``row``.

    ``source`` holds the first ``n`` tokens, if that is not None: what it has is shared instead.
    """
    start = shared_part(ledger, snapshot, n) if source is not None else 0
    starts = {link: ledger.snapshot_start(link) for link in ledger.chain(snapshot)}
    loads: list[Op] = [Load(link, row, begins) for link, begins in starts.items() if begins >= start]
    return [*([Copy(source, row, start)] if source is not None and start else []), *_with_cuts(ledger, loads)]


def _with_cuts(ledger: KvLedger, ops: list[Op]) -> list[Op]:
    """A link that reaches beyond the start of the next is cut there."""
    cut: list[Op] = []
    for op, after in zip(ops, [*ops[1:], None], strict=True):
        cut.append(op)
        if isinstance(op, Load) and isinstance(after, Load) and ledger.snapshot_length(op.snapshot) > after.start:
            cut.append(Trim(op.row, after.start))
    return cut
