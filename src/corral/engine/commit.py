"""Recording what a step did: ops into the ledger, computed tokens into slots, failures into events."""

from __future__ import annotations

import logging

from corral.engine.books import Books
from corral.engine.executor import OpResult, Outcome
from corral.engine.ledger import ram_holder, row_holder
from corral.engine.life import Life
from corral.engine.plan import Action, Admission, Begin, Evict, Keep, Park, Plan, Relocate, Shorten, SlotSpan
from corral.engine.reuse import n_runs
from corral.engine.state import SlotState
from corral.errors import DecodeFailed
from corral.ids import SlotId, SnapshotId
from corral.ops import Checkpoint, Copy, Drop, Load, Restore, Save, Shelve, Trim
from corral.ports import DecodeStatus

log = logging.getLogger("corral.engine")

MAX_NO_ROOM = 4
"""Passes in a row without room, each with a larger margin, before the youngest task of the least urgent is given up."""


class Commit:
    """Writes an engine's books. What happens to a single task is ``life``'s."""

    def __init__(self, books: Books, life: Life) -> None:
        self._books = books
        self._life = life

    def record(self, plan: Plan, outcome: Outcome, start_ms: float) -> None:
        """Make the books say what happened."""
        for slot in plan.holds:
            self._life.hold(self._books.slots[slot], start_ms)
        for admission in plan.admissions:
            self._life.admit(admission, start_ms)
        self._count_overtaken(plan.admissions)
        self._actions(plan.actions, outcome, start_ms)
        self._waits(plan.waits)
        for row, first in outcome.firsts.items():
            self._books.ledger.set_first(row_holder(row), first)
        self._books.discarded = [key for key in self._books.discarded if self._books.ledger.holders(key)]
        match outcome.status:
            case None:
                pass
            case DecodeStatus.OK:
                self._forward(plan, outcome)
            case DecodeStatus.NO_ROOM:
                self._no_room(plan)
            case _:
                self._failure(plan, outcome)
        if outcome.status is not None:
            self._books.turns.record(plan.adapters, outcome.forward_ms, outcome.done_ms)

    def _count_overtaken(self, admissions: tuple[Admission, ...]) -> None:
        """Groups still waiting were overtaken by each admitted task that came later: its id is higher."""
        for waiting in self._books.waiting if admissions else ():
            waiting.n_overtaken += sum(a.task > waiting.group[0].id for a in admissions)

    def _waits(self, waits: tuple[SlotId, ...]) -> None:
        for slot in self._books.slots:
            if slot.state is SlotState.STARTED and slot.id in waits:
                slot.move(SlotState.WAIT_OTHER)
            elif slot.state is SlotState.WAIT_OTHER and slot.id not in waits and not slot.work.n_decoded:
                slot.move(SlotState.STARTED)

    # --- memory ----------------------------------------------------------------------------------------------------

    def _actions(self, actions: tuple[Action, ...], outcome: Outcome, now_ms: float) -> None:
        """Ops that were done go into the ledger; an effect holds if all its ops were done."""
        results = iter(outcome.ops)
        for action in actions:
            for _ in action.ops:
                result = next(results, None)
                if result is None:
                    return
                self._op(result)
                if not result.is_done:
                    return
            self._effect(action, now_ms)

    def _op(self, result: OpResult) -> None:
        books, op = self._books, result.op
        if result.is_done:
            books.ledger.apply(op, result.n_bytes)
        match op:
            case Save(row) | Checkpoint(row) if not result.is_done:
                books.ledger.unsettle(row)
            case Save(row, snapshot):
                books.next_snapshot = max(books.next_snapshot, snapshot + 1)
                books.metrics.add("n_saved")
                books.ledger.set_first(row_holder(row), result.first)
                books.ledger.set_first(ram_holder(snapshot), books.ledger.saved_first(row_holder(row)))
            case Checkpoint(_, snapshot):
                books.next_snapshot = max(books.next_snapshot, snapshot + 1)
            case Load(snapshot, row) | Restore(snapshot, row) if (
                not result.is_done
            ):  # the row is empty now, and the bytes are no good
                books.ledger.apply(Trim(row, 0))
                if books.disk:
                    books.disk.reject(snapshot)
                self._give_up(snapshot)
            case Load(snapshot):
                books.metrics.add("n_loaded")
                books.ledger.set_first(ram_holder(snapshot), result.first)
            case Restore():
                books.metrics.add("n_restored")
            case Copy():
                books.metrics.add("n_copied")
            case Shelve(key):
                if result.n_bytes and books.disk:
                    books.disk.expect(key, op.tokens)
                    books.metrics.add("n_shelved")
                return
            case _:
                return
        if result.is_done:
            books.cost.learn_state(result.n_bytes, result.ms)

    def _give_up(self, snapshot: SnapshotId) -> None:
        """Forget a snapshot that is no good, and all that rests on it."""
        children = self._books.ledger.children()
        gone = [snapshot]
        for each in gone:
            gone += children.get(each, ())
            self._books.ledger.apply(Drop(each))
            self._books.store.drop(each)

    def _effect(self, action: Action, now_ms: float) -> None:
        books = self._books
        match action.effect:
            case Begin(slot, row, n_reused):
                self._life.begin(books.slots[slot], books.ledger.lease(row), n_reused, now_ms)
            case Park(slot):
                self._life.park(books.slots[slot], now_ms)
            case Relocate(slot, row):
                moved = books.slots[slot]
                assert moved.lease is not None
                books.ledger.release(moved.lease)
                moved.lease = books.ledger.lease(row)
                books.gap_rent_ms = 0.0
            case Shorten(slot, cut):
                self._life.shorten(books.slots[slot], cut)
            case Evict(kept):
                books.metrics.add("n_evicted", not kept)
            case Keep():
                books.metrics.add("n_checkpoints")

    # --- the forward pass ------------------------------------------------------------------------------------------

    def _forward(self, plan: Plan, outcome: Outcome) -> None:
        books = self._books
        books.n_margin = books.n_no_room = 0
        if plan.adapters == books.turns.current:  # a change of adapters has a price of its own
            books.cost.learn(plan.shape, outcome.forward_ms)
        self._count_pass(plan, outcome)
        books.ledger.settle()
        for slot_id, at, probs in outcome.shown:
            books.slots[slot_id].work.prompt_probs.update(enumerate(probs, at))
        for span in plan.spans:
            slot = books.slots[span.slot]
            books.ledger.extend(span.span.row, slot.work.key, span.span.tokens)
            self._life.computed(slot, len(span.span.tokens), outcome.done_ms)
            for sibling in span.samples[1:]:
                self._life.share_prompt(books.slots[sibling], slot)
        for slot_id, picked in outcome.picks:
            slot = books.slots[slot_id]
            error = books.samplers[slot.work.task.id].error
            if error is not None:
                self._life.fail(slot, error)
            else:
                self._life.tokens(slot, picked, outcome.done_ms)
        self._charge_rent(plan)

    def _count_pass(self, plan: Plan, outcome: Outcome) -> None:
        metrics = self._books.metrics
        metrics.add("n_decode")
        metrics.add("n_busy_slots", sum(not s.is_idle for s in self._books.slots))
        metrics.add("forward_ms", outcome.forward_ms)
        metrics.step.observe_ms(outcome.forward_ms)

    def _charge_rent(self, plan: Plan) -> None:
        """Cold rows pay for being scanned, gaps between busy rows for the further ubatch they cause."""
        books = self._books
        ledger, cost = books.ledger, books.cost
        if books.traits.n_streams == 1:
            for row in ledger.cold_rows():
                rent_ms = cost.rent_ms(ledger.exclusive(row), plan.n_tokens)
                ledger.rent_ms[row] = ledger.rent_ms.get(row, 0.0) + rent_ms
        else:
            n_gaps = n_runs(ledger.leased_rows()) - 1
            books.gap_rent_ms = books.gap_rent_ms + n_gaps * cost.weights.n_ubatches if n_gaps > 0 else 0.0

    def _no_room(self, plan: Plan) -> None:
        """The ledger thought there was room: leave more next time; if that does not help, give up the youngest task."""
        books = self._books
        books.n_no_room += 1
        books.n_margin += plan.n_tokens
        log.warning("no room for a batch of %d tokens; margin is now %d cells", plan.n_tokens, books.n_margin)
        if books.n_no_room >= MAX_NO_ROOM:
            slots = (books.slots[s.slot] for s in plan.spans)
            last = max(slots, key=lambda slot: (-slot.work.urgency, slot.work.serial))
            self._life.fail(last, DecodeFailed("Context size has been exceeded."))
            books.n_margin = books.n_no_room = 0

    def _failure(self, plan: Plan, outcome: Outcome) -> None:
        """The tasks of this batch fail, and only they. Their rows hold what they held before it, or nothing.

        Others whose rows were lost with it compute them again.
        """
        ledger = self._books.ledger
        for row, length in (outcome.lengths or {}).items():
            ledger.apply(Trim(row, length))
        failed = set(_slots_of(plan.spans))
        for slot in self._books.slots:
            if slot.lease and slot.id not in failed and slot.work.computed > ledger.length(slot.lease.row):
                self._life.park(slot, outcome.done_ms)
        message = "Invalid input batch." if outcome.status is DecodeStatus.INVALID else "Compute error."
        log.error("forward pass of %d tasks failed: %s", len(plan.spans), message)
        for slot_id in _slots_of(plan.spans):
            slot = self._books.slots[slot_id]
            if slot.lease is not None:
                slot.work.computed = ledger.length(slot.lease.row)
            self._life.fail(slot, DecodeFailed(message))


def _slots_of(spans: tuple[SlotSpan, ...]) -> list[SlotId]:
    return [s.slot for s in spans]
