"""The invariants: what must hold after every commit. Raises AssertionError that says what does not."""

from __future__ import annotations

from collections import Counter

from corral.engine.adapted import adapters_at, n_alike
from corral.engine.books import Books
from corral.engine.ledger import SHIFTED, row_holder
from corral.engine.plan import Plan
from corral.engine.slot import Slot
from corral.engine.state import SlotState
from corral.ports import Context, Rollback

WITHOUT_ROW = frozenset({SlotState.IDLE, SlotState.STARTED, SlotState.WAIT_OTHER, SlotState.PARKED})


def check(books: Books, context: Context) -> None:
    """Ledger, leases, slots, context and budget agree with each other."""
    books.ledger.check()
    _check_leases(books)
    for slot in books.slots:
        _check_slot(slot, books)
    _check_context(books, context)
    _check_tasks(books)
    _check_moved(books)
    stored = {s for s in books.ledger.snapshots() if s in books.store}
    assert len(stored) == len(books.store) == len(books.ledger.snapshots()), "RAM tier and ledger differ"
    assert books.store.n_bytes == books.ledger.total_snapshot_bytes, "RAM tier and ledger differ in bytes"


def check_progress(books: Books, plan: Plan) -> None:
    """With work to do there was something to do, or each task has a reason to wait. And somebody must be moving."""
    if not plan.is_empty:
        return
    for waiting in (*books.waiting, *books.held):
        assert all(t.id in plan.deferrals for t in waiting.group), f"{waiting.group[0].id} waits without a reason"
    assert all(s.is_idle for s in books.slots), f"nothing moves: {[s.state.value for s in books.slots]}"


def check_batch(books: Books, plan: Plan) -> None:
    """All that a plan computes is computed with the adapters that its task wants there."""
    tasks = {task.id: task for task in books.queued()}
    in_slots = {slot.id: slot.work.task for slot in books.slots if slot.generation}
    in_slots |= {admission.slot: tasks[admission.task] for admission in plan.admissions}
    for slot, span in ((s.slot, s.span) for s in plan.spans):
        wanted = adapters_at(in_slots[slot], span.tokens, 0)
        assert wanted == plan.adapters, f"slot {slot} wants adapters {wanted}, the batch has {plan.adapters}"
        assert n_alike(span.tokens, 0) == len(span.tokens), f"slot {slot}: a chunk across its activation"


def _check_leases(books: Books) -> None:
    rows = Counter(s.lease.row for s in books.slots if s.lease)
    assert all(n == 1 for n in rows.values()), f"rows leased to several slots: {rows}"
    assert sorted(rows) == books.ledger.leased_rows(), f"slots hold {sorted(rows)}, ledger {books.ledger.leased_rows()}"


def _check_slot(slot: Slot, books: Books) -> None:
    assert (slot.generation is None) == slot.is_idle, f"slot {slot.id}: {slot.state} with {slot.generation}"
    assert (slot.lease is None) == (slot.state in WITHOUT_ROW), f"slot {slot.id}: {slot.state} with {slot.lease}"
    if slot.lease is None:
        return
    work, row = slot.work, slot.lease.row
    assert work.computed == books.ledger.length(row), f"slot {slot.id}: {work.computed} of {books.ledger.length(row)}"
    assert books.ledger.tokens(row) == work.tokens[: work.computed], f"slot {slot.id}: other tokens than its row"
    assert len(work.tokens) <= books.n_ctx_slot, f"slot {slot.id} outgrew its context"


def _check_context(books: Books, context: Context) -> None:
    for row in books.ledger.rows():
        first, end = context.bounds(row)
        assert end == books.ledger.length(row), f"row {row}: context {first, end}"
        if books.traits.rollback is not Rollback.WHOLE_ROW:
            assert first == books.ledger.first(row_holder(row)), f"row {row}: context {first, end}"


def _check_moved(books: Books) -> None:
    """What was moved belongs to one conversation, running or idle, or is about to be forgotten."""
    keys = [work.own_key for work in books.generations() if work.own_key is not None]
    keys += [s.memory.key for s in books.slots if s.memory and s.memory.is_shifted]
    assert len(set(keys)) == len(keys), f"moved cells belong to several slots: {keys}"
    stray = {k for k in books.ledger.cache_keys() if k.startswith(SHIFTED)} - {*keys, *books.discarded}
    assert not stray, f"moved cells belong to nobody: {stray}"


def _check_tasks(books: Books) -> None:
    for held in books.held:
        work = held.generation
        assert work is not None and held.group == (work.task,), f"{held.group} is held without its generation"
        assert work.computed == 0, f"task {work.task.id} is held and {work.computed} of its tokens are in a row"
    running = [s.work.task.id for s in books.slots if s.generation]
    places = Counter([*running, *(t.id for t in books.queued())])
    assert all(n == 1 for n in places.values()), f"tasks in several places: {places}"
    assert set(places) == set(books.samplers), "samplers of other tasks than those that are there"
