"""What the tree offers a task: how many of its tokens it can have from whom, directly or by way of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.engine.ledger import Holder, KvLedger, Tier
from corral.engine.radix import Level
from corral.ids import CacheKey, RowId, SnapshotId, Token
from corral.ops import Op, Restore, Trim
from corral.ports import Rollback


@dataclass(frozen=True, slots=True)
class Offer:
    """The first ``n`` tokens can be had from each of ``holders``: cut there, or brought back with ``checkpoint``."""

    n: int
    holders: frozenset[Holder]
    checkpoint: SnapshotId | None = None


def offers(ledger: KvLedger, key: CacheKey, tokens: Sequence[Token]) -> list[Offer]:
    """All there are for beginnings of ``tokens``, shortest first; of equal ones that without a checkpoint is last."""
    levels = ledger.match(key, tokens)
    if ledger.traits.rollback is Rollback.ANY:
        return [Offer(level.n, level.holders) for level in levels]
    return [offer for level in levels for offer in _at(ledger, level)]


def _at(ledger: KvLedger, level: Level[Holder]) -> list[Offer]:
    bodies = frozenset(h for h in level.holders if h.tier is not Tier.CHECKPOINT)
    direct = frozenset(h for h in bodies if ledger.can_cut(h, level.n))
    marks = [SnapshotId(h.id) for h in level.holders - bodies if ledger.snapshot_length(SnapshotId(h.id)) == level.n]
    found: list[Offer] = []
    if marks and bodies - direct:
        found.append(Offer(level.n, bodies - direct, max(marks)))
    if direct:
        found.append(Offer(level.n, direct))
    return found


def deepest(found: list[Offer], tier: Tier) -> Offer | None:
    """The longest offer by someone of this tier, with only those holders."""
    for offer in reversed(found):
        holders = frozenset(h for h in offer.holders if h.tier is tier)
        if holders:
            return Offer(offer.n, holders, offer.checkpoint)
    return None


def cut_ops(row: RowId, n_held: int, n: int, checkpoint: SnapshotId | None) -> list[Op]:
    """Ops that bring a row of ``n_held`` tokens back to its first ``n``."""
    if checkpoint is not None:
        return [Restore(checkpoint, row, n)]
    return [Trim(row, n)] if n < n_held else []


def least_missed(lengths: Sequence[int]) -> int:
    """Which one it is without which the way from the one before it to its end is shortest."""
    gaps = [n - before for before, n in zip((0, *lengths), lengths, strict=False)]
    return gaps.index(min(gaps))


def is_mark(ledger: KvLedger, snapshot: SnapshotId) -> bool:
    """Whether it is a checkpoint; where a state is all there is, any snapshot is as good as one."""
    return not ledger.traits.bytes_per_token or ledger.holder_of(snapshot).tier is Tier.CHECKPOINT


def on_path(ledger: KvLedger, key: CacheKey, tokens: Sequence[Token], n_max: int) -> list[SnapshotId]:
    """What brings who holds ``tokens`` back to beginnings of them, shortest first: at most ``n_max``.

    The last two always stay, for that is where a conversation goes on.
    """
    found = [s for s in ledger.cut_points(key, tokens) if ledger.snapshot_length(s) < len(tokens)]
    usable = [s for s in found if is_mark(ledger, s)]
    chosen = {ledger.snapshot_length(s): s for s in usable if ledger.traits.rollback is not Rollback.ANY}
    lengths = sorted(chosen)
    while len(lengths) > max(0, n_max):
        del lengths[least_missed(lengths[:-2]) if len(lengths) > 2 else 0]
    return [chosen[n] for n in lengths]
