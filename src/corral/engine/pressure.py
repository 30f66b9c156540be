"""Making room: what leaves the device or RAM, in which order, and who is parked when that is not enough."""

from __future__ import annotations

from collections.abc import Iterable

from corral.engine.draft import Draft
from corral.engine.ledger import Tier, row_holder
from corral.engine.plan import Evict, Park, Relocate
from corral.engine.ranges import save_op
from corral.engine.shelving import leave_ops, shelve_row_ops
from corral.engine.slot import Slot
from corral.ids import RowId, SnapshotId
from corral.ops import Drop, Load, Op, Save, Trim
from corral.ports import Rollback

MIN_KEPT_TOKENS = 16
"""Shorter prefixes are computed again sooner than they are worth an entry."""


def n_available(draft: Draft, n_joining: int = 0) -> int:
    """Cells free now in a shared pool, less the margin (none for one that is alone: it could not do with less).

    ``n_joining``: rows about to be leased; who begins beside others must leave the margin to them.
    """
    n_free = _n_free(draft)
    if draft.ledger.traits.own_windows:
        n_free = min(n_free, _n_free_window(draft))
    return n_free - _n_margin(draft, n_joining)


def _n_free(draft: Draft) -> int:
    return draft.ledger.traits.n_cells - draft.ledger.n_used


def _n_free_window(draft: Draft) -> int:
    return draft.ledger.traits.window_cells - draft.ledger.n_window_used


def _n_margin(draft: Draft, n_joining: int = 0) -> int:
    return draft.view.n_margin if len(draft.ledger.leased_rows()) + n_joining > 1 else 0


def has_room(draft: Draft, n_tokens: int, n_shared: int, n_headroom: int, spared: RowId | None) -> bool:
    """Whether ``n_tokens``, of which ``n_shared`` are in shared cells, would fit if every cold row but one went."""
    ledger, window = draft.ledger, draft.ledger.traits.window
    n_margin = _n_margin(draft, n_joining=1)
    n_room = _n_free(draft) + ledger.n_reclaimable(spared) - n_margin
    if n_tokens - n_shared + n_headroom > n_room:
        return False
    if not ledger.traits.own_windows:
        return True
    n_freed = sum(min(ledger.length(row), window) for row in ledger.cold_rows() if row != spared)
    return min(n_tokens, window) + n_headroom <= _n_free_window(draft) + n_freed - n_margin


def reclaim(draft: Draft, n_needed: int, spared: RowId | None = None) -> bool:
    """Evict cold rows of a shared pool, least recently used first, until ``n_needed`` cells are free."""
    while n_available(draft) < n_needed:
        if not _evict_one(draft, spared):
            return False
    return True


def reclaim_for(draft: Draft, n_tokens: int, spared: RowId | None = None, n_shared: int = 0) -> bool:
    """As ``reclaim``, for a row that comes whole, with ``n_shared`` cells of others.

    Of a second pool it takes its window only.
    """
    while not _takes(draft, n_tokens, n_shared):
        if not _evict_one(draft, spared):
            return False
    return True


def _takes(draft: Draft, n_tokens: int, n_shared: int) -> bool:
    """Whether a whole row fits now."""
    traits, n_margin = draft.ledger.traits, _n_margin(draft)
    if n_tokens - n_shared > max(0, _n_free(draft) - n_margin):
        return False
    return not traits.own_windows or min(n_tokens, traits.window) <= _n_free_window(draft) - n_margin


def _evict_one(draft: Draft, spared: RowId | None) -> bool:
    """The least recently used cold row goes, if there is one; rows with cells of their own before others."""
    cold = [row for row in draft.ledger.cold_rows() if row != spared]
    if cold:
        evict(draft, next((row for row in cold if draft.ledger.exclusive(row)), cold[0]))
    return bool(cold)


def reclaim_or_park(draft: Draft, n_needed: int, keep: Slot | None = None) -> bool:
    """As ``reclaim``, then park slots that hold a row, the last of ``draft.holding`` first, but not ``keep``."""
    while not reclaim(draft, n_needed):
        holding = draft.holding()
        if not holding or holding[-1] is keep or (keep is None and len(holding) == 1):
            return False
        draft.act(Park(holding[-1].id))
    return True


def park_lower(draft: Draft, urgency: int) -> bool:
    """Park the first to give way of those that hold a row and are less urgent than this; False if there is none."""
    holding = draft.holding()
    if not holding or holding[-1].work.urgency >= urgency:
        return False
    draft.act(Park(holding[-1].id))
    return True


def evict(draft: Draft, row: RowId) -> None:
    """Empty a cold row; its tokens go to RAM if they are worth it."""
    saved = save_ops(draft, row)
    draft.act(Evict(kept=bool(saved)), *saved, Trim(row, 0))


def save_ops(draft: Draft, row: RowId) -> list[Op]:
    """Ops that keep the row's tokens in RAM; none if another holder has them or they are not worth the place."""
    ledger = draft.ledger
    if ledger.length(row) < MIN_KEPT_TOKENS or not ledger.is_settled(row):
        return []
    if ledger.is_redundant(row_holder(row)):
        return []
    save = save_op(ledger, row, draft.new_snapshot())
    room = room_ops(draft, draft.row_bytes(row, save.start), () if save.base is None else ledger.chain(save.base))
    if room is None:
        return shelve_row_ops(draft, row)
    if save.base is not None:
        return [*room, save]
    return [*_prefix_drops(draft, row, room), *room, save]


def carry_ops(draft: Draft, src: RowId) -> tuple[SnapshotId, list[Op]]:
    """Ops that turn a row into bytes for other rows; where RAM has no room for them they live for this plan only."""
    snapshot = draft.new_snapshot()
    room = room_ops(draft, draft.row_bytes(src))
    if room is None:
        draft.transient.append(snapshot)
        return snapshot, [Save(src, snapshot)]
    return snapshot, [*_prefix_drops(draft, src, room), *room, Save(src, snapshot)]


def _prefix_drops(draft: Draft, row: RowId, dropped: list[Op]) -> list[Op]:
    """Drops of snapshots that hold just a beginning of this row: the new one will serve in their place."""
    ledger = draft.ledger
    drops: list[Op] = []
    if ledger.traits.rollback is not Rollback.ANY:
        return drops
    needed = ledger.children().keys() | ledger.pins
    for level in ledger.match(ledger.key(row), ledger.tokens(row)):
        for holder in level.holders:
            drop = Drop(SnapshotId(holder.id))
            is_prefix = holder.tier is Tier.RAM and ledger.snapshot_length(drop.snapshot) == level.n
            if is_prefix and drop not in dropped and drop.snapshot not in needed:
                drops.append(drop)
    return drops


def room_ops(draft: Draft, n_bytes: int, spared: Iterable[SnapshotId] = ()) -> list[Op] | None:
    """Ops that bring the RAM tier to where ``n_bytes`` more fit; None if they never will."""
    limit = draft.view.config.cache_ram_bytes
    if limit < 0:
        return []
    if n_bytes > limit:
        return None
    drops, missing = _drop_ops(draft, draft.ledger.total_snapshot_bytes + n_bytes - limit, spared)
    return drops if missing <= 0 else None


def _drop_ops(draft: Draft, excess: int, spared: Iterable[SnapshotId] = ()) -> tuple[list[Op], int]:
    """Ops that free ``excess`` bytes of the RAM tier, and how many are still missing then (<= 0: none).

    Snapshots whose tokens others keep go first, then the least recently used; none on which others rest, nor
    ``spared`` ones or those that are about to be loaded.
    """
    ledger = draft.ledger
    drops: list[Op] = []
    if excess <= 0:
        return drops, excess
    arrived = draft.view.disk.arrived if draft.view.disk else ()
    pinned = {*draft.transient, *draft.spared, *spared, *arrived, *ledger.pins}
    left = [s for s in ledger.snapshots() if s not in pinned]
    left.sort(key=lambda s: not ledger.is_redundant(ledger.holder_of(s)))
    children = ledger.children()
    while excess > 0:
        snapshot = next((s for s in left if not children.get(s)), None)
        if snapshot is None:
            break
        drops.extend(leave_ops(draft, snapshot))
        excess -= ledger.snapshot_bytes(snapshot)
        left.remove(snapshot)
        for link in ledger.chain(snapshot)[-2:-1]:
            children[link].discard(snapshot)
    return drops, excess


def forget_discarded(draft: Draft) -> None:
    """Empty what is kept under keys that nobody may use any more."""
    for key in draft.view.discarded:
        ops: list[Op] = []
        for holder in draft.ledger.holders(key):
            if holder.tier is not Tier.ROW:
                ops.append(Drop(SnapshotId(holder.id)))
            elif not draft.ledger.is_leased(RowId(holder.id)):
                ops.append(Trim(RowId(holder.id), 0))
        if ops:
            draft.act(Evict(kept=False), *ops)


def enforce_budget(draft: Draft) -> None:
    """Bring the RAM tier back under its limit, as far as that goes: something was larger than expected, or arrived."""
    limit = draft.view.config.cache_ram_bytes
    drops, _ = _drop_ops(draft, draft.ledger.total_snapshot_bytes - limit if limit >= 0 else 0)
    if drops:
        draft.act(Evict(kept=False), *drops)


def secure_decoding(draft: Draft) -> None:
    """See to it that each generating slot finds a cell in a shared pool.

    Else those are parked that come last in urgency, fair share and age.
    """
    if not draft.ledger.traits.shared_cells:
        return
    while True:
        n_decoding = sum(s.is_decoding for s in draft.holding())
        if n_available(draft) >= n_decoding:
            return
        holding = draft.holding()
        if reclaim(draft, n_decoding) or len(holding) <= 1:
            return
        draft.act(Park(holding[-1].id))


def demote_cold(draft: Draft) -> None:
    """Send cold rows to RAM that cost the running ones more than the way there and back.

    Those that would cost as much in this step alone go before it. Of the others one each step: who does not know for
    how long to rent buys when the rent paid equals the price, and pays at most twice the best.
    """
    cost, n_tokens = draft.view.cost, draft.n_tokens
    if not draft.ledger.traits.shared_cells:
        return
    for row in draft.ledger.cold_rows():
        ledger = draft.ledger  # another one once something was demoted
        price = 2 * cost.state_ms(ledger.length(row))
        soon = cost.rent_ms(ledger.exclusive(row), n_tokens)
        if max(soon, ledger.rent_ms.get(row, 0.0)) >= price and _demote(draft, row, soon) and soon < price:
            return


def _demote(draft: Draft, row: RowId, soon_ms: float) -> bool:
    """Save and empty the row; where it cannot be saved only if others keep it, or it costs more than it is worth."""
    rent_ms = draft.ledger.rent_ms.get(row, 0.0) + soon_ms
    if save := save_ops(draft, row):
        draft.act(Evict(kept=True), *save, Trim(row, 0))
        return True
    is_kept = draft.ledger.is_redundant(row_holder(row))
    if is_kept or rent_ms >= draft.view.cost.prefill_ms(draft.ledger.length(row)):
        draft.act(Evict(kept=False), Trim(row, 0))
        return True
    return False


def close_gap(draft: Draft) -> None:
    """Move the shortest outer row into a gap between busy rows, once gaps have cost as much as the move.

    With a stream for each row libllama computes consecutive row ids together and others apart.
    """
    view, ledger = draft.view, draft.ledger
    if ledger.traits.n_streams == 1 or view.gap_rent_ms <= 0 or draft.begun:
        return
    busy = ledger.leased_rows()
    if len(busy) < 2 or busy[-1] - busy[0] == len(busy) - 1:
        return
    outer = [s for s in draft.holding() if s.row in (busy[0], busy[-1])]
    slot = min(outer, key=lambda s: s.work.computed)
    src = slot.row
    assert src is not None
    if not ledger.is_settled(src) or view.gap_rent_ms < 2 * view.cost.state_ms(ledger.length(src)):
        return
    inner = busy[1] if src == busy[0] else busy[-2]
    gaps = [r for r in range(busy[0], busy[-1]) if r not in busy]
    dst = RowId(min(gaps, key=lambda r: abs(r - inner)))
    snapshot = draft.new_snapshot()
    kept = save_ops(draft, dst)
    draft.act(Relocate(slot.id, dst), *kept, Save(src, snapshot), Load(snapshot, dst), Trim(src, 0), Drop(snapshot))
