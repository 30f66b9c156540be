"""Giving a task its row: whether to wait for another's prompt, which prefix to reuse, and where it will live."""

from __future__ import annotations

from corral.engine.approximate import find_takeover, take_over
from corral.engine.chunks import n_given_back
from corral.engine.draft import Draft, Want, came_together
from corral.engine.ledger import Holder, Tier
from corral.engine.offers import Offer, cut_ops, deepest, offers
from corral.engine.plan import Begin, Deferral
from corral.engine.pressure import carry_ops, evict, has_room, n_available, park_lower, reclaim_for, save_ops
from corral.engine.radix import common_prefix
from corral.engine.ranges import in_ram, load_ops, shared_part
from corral.engine.shelving import waits_for_disk
from corral.engine.state import SlotState
from corral.ids import RowId, SlotId, SnapshotId
from corral.ops import Copy, Load, Op
from corral.ports import Rollback

HEADROOM = 8
"""Cells for each running generation that must be free before one more begins: room for a few steps, not for all."""


def begin_all(draft: Draft) -> None:
    """Give rows to those that want one, most urgent and oldest first. Nobody overtakes one that finds no cells.

    Tasks of lower urgency are parked for it.
    """
    ready: list[Want] = []
    for i, want in enumerate(draft.wants):
        found = _offers(draft, want)
        if waits_for_other(draft, want, draft.wants[:i], found[-1].n if found else 0):
            draft.waits.append(want.slot)
            draft.deferrals[want.task.id] = Deferral.OTHER_PROMPT
        elif waits_for_disk(draft, want, found[-1].n if found else 0):
            draft.waits.append(want.slot)
            draft.deferrals[want.task.id] = Deferral.FROM_DISK
        else:
            ready.append(want)
    ready = _without_company(draft, ready)
    for i, want in enumerate(ready):
        while not begin(draft, want, _offers(draft, want), ready[i + 1 :]):
            if park_lower(draft, want.urgency):
                continue
            for late in ready[i:]:
                draft.deferrals[late.task.id] = Deferral.NO_CELLS
            return


def _without_company(draft: Draft, ready: list[Want]) -> list[Want]:
    """Those that begin now. While nobody runs, who came with one that waits for the disk waits, too.

    Files take milliseconds; prompts that begin one after the other take longer than all of them together.
    """
    late = [w for w in draft.wants if draft.deferrals.get(w.task.id) is Deferral.FROM_DISK]
    if not late or draft.ledger.leased_rows():
        return ready
    patient = [w for w in ready if any(came_together(w, other) for other in late)]
    for want in patient:
        draft.waits.append(want.slot)
        draft.deferrals[want.task.id] = Deferral.COMPANY
    return [w for w in ready if w not in patient]


def waits_for_other(draft: Draft, want: Want, ahead: list[Want], n_have: int) -> bool:
    """Whether a slot ahead of it computes prompt tokens that it would otherwise compute a second time.

    Siblings always wait for the first of them. Others wait when at least ``min_shared_prefill`` tokens are at stake,
    but not for one that is less urgent: its chunks come late.
    """
    n_min = draft.view.config.min_shared_prefill
    n_max = len(want.tokens) - 1
    first_tokens = want.n_decoded == 0
    for slot in draft.view.slots:
        if slot.state is SlotState.PROCESSING_PROMPT and slot.id not in draft.parked:
            work = slot.work
            if first_tokens and work.group == want.group and work.n_decoded == 0:
                return True
            if work.key == want.key and work.own_key is None and work.urgency >= want.urgency:
                n = min(n_max, common_prefix(work.tokens, want.tokens))
                if n > work.computed and n - n_have >= n_min:
                    _note_fork(draft, slot.id, n)
                    return True
    for other in ahead:
        if first_tokens and other.group == want.group and other.n_decoded == 0:
            return True
        n = min(n_max, common_prefix(other.tokens, want.tokens)) if other.key == want.key else 0
        if other.own_key is None and n - n_have >= n_min:
            _note_fork(draft, other.slot, n)
            return True
    return False


def _note_fork(draft: Draft, slot: SlotId, n: int) -> None:
    """Somebody waits to fork from this slot at ``n``: its prompt must pause there where it cannot be cut later."""
    draft.forks.setdefault(slot, set()).add(n)


def begin(draft: Draft, want: Want, found: list[Offer], later: list[Want]) -> bool:
    """Lease a row with the longest prefix there is. False if there is no room for the task now.

    ``later`` are those that will begin after it in this plan.
    """
    shared = draft.ledger.traits.shared_cells
    takeover = find_takeover(draft, want, found[-1].n if found else 0)
    if takeover is not None and (not shared or _has_room(draft, want, takeover.n, takeover.row)):
        take_over(draft, want, takeover)
        return True
    if shared:
        return _begin_shared(draft, want, found, is_last=not later)
    _begin_split(draft, want, found)
    return True


def _offers(draft: Draft, want: Want) -> list[Offer]:
    """Beginnings worth taking of the wanted tokens but the last, which is computed for its logits."""
    wanted = want.tokens[: len(want.tokens) - 1]
    found = offers(draft.ledger, want.key, wanted)
    own = offers(draft.ledger, want.own_key, wanted) if want.own_key is not None else []
    if max((offer.n for offer in own), default=0) > max((offer.n for offer in found), default=0):
        found = own
    return [offer for offer in found if offer.n >= draft.view.config.min_reuse]


# --- cells shared by all rows (unified KV) ---------------------------------------------------------------------------


def _begin_shared(draft: Draft, want: Want, found: list[Offer], is_last: bool) -> bool:
    in_rows, saved = deepest(found, Tier.ROW), deepest(found, Tier.RAM)
    if saved is not None and _loading_pays(draft, saved, in_rows):
        if _begin_loaded(draft, want, saved, in_rows, is_last):
            return True
        in_rows = deepest(_offers(draft, want), Tier.ROW)  # making room may have emptied the rows found before
    n = in_rows.n if in_rows else 0
    source = _row_source(draft, in_rows)
    if not _has_room(draft, want, n, source):
        return False
    n -= _given_back(draft, want, n) if is_last else 0
    checkpoint = in_rows.checkpoint if in_rows else None
    draft.spared.add(checkpoint)
    row, ops = _shared_row(draft, source, n, checkpoint)
    draft.spared.clear()
    draft.act(Begin(want.slot, row, n), *ops)
    return True


def _given_back(draft: Draft, want: Want, n: int) -> int:
    """Tokens of the prefix that are computed again to fill a tile of the kernel together with what else begins."""
    if draft.ledger.traits.rollback is not Rollback.ANY:
        return 0
    n_decoding = sum(s.is_decoding for s in draft.holding())
    n_begun = sum(len(w.tokens) - draft.begun[w.slot].n_reused for w in draft.wants if w.slot in draft.begun)
    return n_given_back(draft.view.cost, n, len(want.tokens) - n, n_decoding + n_begun)


def _loading_pays(draft: Draft, saved: Offer, in_rows: Offer | None) -> bool:
    cost = draft.view.cost
    n_have = in_rows.n if in_rows else 0
    n_more = saved.n - n_have
    snapshot = _snapshot(draft, saved)
    if n_more <= 0 or snapshot is None:
        return False
    n_loaded = draft.ledger.snapshot_length(snapshot) - shared_part(draft.ledger, snapshot, n_have)
    return cost.state_ms(n_loaded) < cost.weights.n_tokens * n_more


def _row_source(draft: Draft, offer: Offer | None) -> RowId | None:
    """Of the rows that hold the prefix: a cold one that holds nothing else, else one in use, else any."""
    if offer is None:
        return None
    ledger = draft.ledger

    def rank(row: RowId) -> tuple[bool, bool, int]:
        exact = ledger.length(row) == offer.n and not ledger.is_leased(row)
        return (not exact, not ledger.is_leased(row), row)

    return min((RowId(h.id) for h in offer.holders), key=rank)


def _has_room(draft: Draft, want: Want, n_shared: int, source: RowId | None) -> bool:
    """Whether the task's missing tokens fit, with some headroom while others run. Evicts nothing."""
    ledger = draft.ledger
    n_running = len(ledger.leased_rows())
    if n_running == 0:  # alone it fits: longer prompts were refused
        return True
    return has_room(draft, len(want.tokens), n_shared, HEADROOM * (n_running + 1), spared=source)


def _shared_row(draft: Draft, source: RowId | None, n: int, checkpoint: SnapshotId | None) -> tuple[RowId, list[Op]]:
    """A row to lease and the ops that make it hold the first ``n`` tokens of ``source``."""
    ledger = draft.ledger
    if source is not None and not ledger.is_leased(source) and ledger.length(source) == n and checkpoint is None:
        return source, []
    empty = ledger.empty_rows()
    if not empty:
        cold = [row for row in ledger.cold_rows() if row != source]
        if not cold:
            assert source is not None and not ledger.is_leased(source), "there are at least as many rows as slots"
            return source, [*save_ops(draft, source), *cut_ops(source, ledger.length(source), n, checkpoint)]
        evict(draft, cold[0])
        empty = [cold[0]]
    if source is None:
        return empty[0], []
    return empty[0], [Copy(source, empty[0], n, checkpoint is not None), *cut_ops(empty[0], n, n, checkpoint)]


def _begin_loaded(draft: Draft, want: Want, offer: Offer, in_rows: Offer | None, is_last: bool) -> bool:
    """Load a snapshot into an empty row; needs cells for all of it that no other row has."""
    ledger, snapshot = draft.ledger, _snapshot(draft, offer)
    assert snapshot is not None
    n_loaded = ledger.snapshot_length(snapshot)
    n_all = max(n_loaded, len(want.tokens))
    source, n_have = _row_source(draft, in_rows), in_rows.n if in_rows else 0
    if not _shares(draft, snapshot, source, n_have, n_all):
        source, n_have = None, 0  # what is in rows makes room for it
    n_needed = n_all - shared_part(ledger, snapshot, n_have)
    if not _has_room(draft, want, 0, None) or not has_room(draft, n_needed, 0, 0, spared=source):
        return False
    draft.spared |= {*ledger.chain(snapshot), offer.checkpoint}
    row = _row_beside(draft, source) if reclaim_for(draft, n_needed, spared=source) else None
    draft.spared.clear()
    if row is None or snapshot not in draft.ledger.snapshots():  # a longer row that was saved may have replaced it
        return False
    n = offer.n - (_given_back(draft, want, offer.n) if is_last else 0)
    loads = load_ops(draft.ledger, snapshot, row, source, n_have)
    draft.act(Begin(want.slot, row, n), *loads, *cut_ops(row, n_loaded, n, offer.checkpoint))
    return True


def _shares(draft: Draft, snapshot: SnapshotId, source: RowId | None, n_have: int, n_all: int) -> bool:
    """Whether a row has some of the snapshot and may stay: there is room for the rest, and another row."""
    ledger = draft.ledger
    n_shared = shared_part(ledger, snapshot, n_have)
    if source is None or not n_shared:
        return False
    has_row = any(row != source for row in (*ledger.empty_rows(), *ledger.cold_rows()))
    return has_row and n_all - n_shared <= n_available(draft) + ledger.n_reclaimable(spared=source)


def _row_beside(draft: Draft, source: RowId | None) -> RowId | None:
    """An empty row that is not ``source``, if need be that of the least recently used cold prefix."""
    if empty := draft.ledger.empty_rows():
        return empty[0]
    row = next((row for row in draft.ledger.cold_rows() if row != source), None)
    if row is not None:
        evict(draft, row)
    return row


def _snapshot(draft: Draft, offer: Offer | None) -> SnapshotId | None:
    """Of those in RAM that hold the prefix the shortest: the least to load."""
    ledger = draft.ledger
    found = [s for s in in_ram(offer.holders) if ledger.snapshot_start(s) < offer.n] if offer else []
    return min(found, key=ledger.snapshot_length, default=None)


# --- a stream for each row (split KV) --------------------------------------------------------------------------------


def _begin_split(draft: Draft, want: Want, found: list[Offer]) -> None:
    offer = found[-1] if found else None
    row = _split_row(draft, offer)
    draft.spared |= {_snapshot(draft, offer), offer.checkpoint if offer else None}
    if offer is not None and Holder(Tier.ROW, row) in offer.holders:
        n = offer.n - _given_back(draft, want, offer.n)
        ops = _in_place(draft, row, n, offer.checkpoint)
    else:
        if draft.ledger.length(row):
            evict(draft, row)
        n, ops = _bring(draft, row, want)
    draft.spared.clear()
    draft.act(Begin(want.slot, row, n), *ops)


def _split_row(draft: Draft, offer: Offer | None) -> RowId:
    """The row that keeps busy ids in the fewest runs; of those one that holds the prefix, an empty one, the oldest."""
    ledger = draft.ledger
    busy = ledger.leased_rows()
    holders = offer.holders if offer else frozenset()

    def rank(row: RowId) -> tuple[int, bool, bool, int]:
        holder = Holder(Tier.ROW, row)
        return (n_runs([*busy, row]), holder not in holders, ledger.length(row) > 0, ledger.used_at(holder))

    return min((row for row in ledger.rows() if not ledger.is_leased(row)), key=rank)


def n_runs(rows: list[RowId]) -> int:
    """How many runs of consecutive ids these are."""
    ids = set(rows)
    return sum(row - 1 not in ids for row in ids)


def _in_place(draft: Draft, row: RowId, n: int, checkpoint: SnapshotId | None) -> list[Op]:
    """Use the row where it is; what lies beyond the prefix is saved first if it is worth it."""
    n_held = draft.ledger.length(row)
    if n_held == n and checkpoint is None:
        return []
    return [*save_ops(draft, row), *cut_ops(row, n_held, n, checkpoint)]


def _bring(draft: Draft, row: RowId, want: Want) -> tuple[int, list[Op]]:
    """The prefix comes as bytes to the empty row: from RAM, or from another row by way of RAM."""
    ledger = draft.ledger
    found = _offers(draft, want)
    if not found:
        return 0, []
    offer = found[-1]
    draft.spared.add(offer.checkpoint)
    snapshot = _snapshot(draft, offer)
    ops: list[Op] = []
    if snapshot is not None:
        n_held = ledger.snapshot_length(snapshot)
    else:
        src = min(filter(ledger.is_settled, (RowId(h.id) for h in offer.holders)), default=None)
        if src is None:
            return 0, []
        snapshot, ops = carry_ops(draft, src)
        n_held = ledger.length(src)
    n = offer.n - _given_back(draft, want, offer.n)
    return n, [*ops, Load(snapshot, row), *cut_ops(row, n_held, n, offer.checkpoint)]
