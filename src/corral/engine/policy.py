"""The planner: a pure function from what is to what the next step does. No I/O, no clock, no random numbers.

Order of a plan: tasks are bound to idle slots; cells for running generations are secured; rows are given out, oldest
first; each generating slot gets its token; prompts get chunks of what is left. The last two for one set of adapters.
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.engine.adapted import adapters_at
from corral.engine.checkpoints import keep_checkpoints
from corral.engine.cost import Part, features
from corral.engine.draft import Draft, View, Waiting, want_of
from corral.engine.plan import Deferral, Plan, SlotSpan
from corral.engine.pressure import (
    close_gap,
    demote_cold,
    enforce_budget,
    forget_discarded,
    n_available,
    reclaim,
    secure_decoding,
)
from corral.engine.prompts import plan_prompts
from corral.engine.radix import common_prefix
from corral.engine.reuse import begin_all
from corral.engine.slot import Slot
from corral.engine.turns import sets_by_turn
from corral.ops import Span

MAX_OVERTAKEN = 8
"""A group gives way to younger ones that name a slot this many times."""


def plan(view: View) -> Plan:
    """What the next step does. An empty plan means that there is nothing to do until something happens."""
    draft = Draft(view)
    draft.wants.extend(map(want_of, sorted((s for s in view.slots if s.wants_row), key=lambda s: s.work.serial)))
    if view.waiting:
        admit_waiting(draft)
    forget_discarded(draft)
    enforce_budget(draft)
    secure_decoding(draft)
    keep_checkpoints(draft)
    if draft.wants:
        begin_all(draft)
    close_gap(draft)
    plan_pass(draft)
    if draft.spans:
        demote_cold(draft)
        parts = [Part(s.span.row, s.span.pos0, len(s.span.tokens)) for s in draft.spans]
        draft.shape = features(sorted(parts), view.ledger.traits, draft.ledger.n_used)
        draft.expected_ms = view.cost.predict(draft.shape)
    return draft.finish()


# --- admission -------------------------------------------------------------------------------------------------------


def admit_waiting(draft: Draft) -> None:
    """Bind waiting groups to idle slots, in order of arrival; a group that names a slot waits for that one only.

    Nobody overtakes the first that finds no slot but those that name one, and only a bounded number of times. One that
    waits for the slot it names keeps nobody up; one that has it and lacks slots for its siblings does.
    """
    idle = [s for s in draft.view.slots if s.is_idle]
    first: Waiting | None = None
    for i, waiting in enumerate(draft.view.waiting):
        may_pass = first is None or (waiting.names_slot and first.n_overtaken < MAX_OVERTAKEN)
        reason: Deferral | None = Deferral.NO_SLOT
        if idle and may_pass:
            reason = _admit(draft, waiting, idle, draft.view.waiting[i + 1 :])
        if reason is None:
            continue
        if first is None and (not waiting.names_slot or reason is Deferral.SIBLINGS):
            first = waiting
        for task in waiting.group:
            draft.deferrals[task.id] = reason


def _admit(draft: Draft, waiting: Waiting, idle: list[Slot], later: Iterable[Waiting]) -> Deferral | None:
    """Bind one group and take its slots off ``idle``, or say why not."""
    parent = waiting.group[0]
    free = [s for s in idle if s.id == parent.id_slot] if parent.id_slot is not None else idle
    if not free:
        return Deferral.SLOT_BUSY
    if parent.id_slot is None and waiting.n_overtaken < MAX_OVERTAKEN:
        named = {w.group[0].id_slot for w in later if len(w.group) <= len(idle)}
        free = [s for s in free if s.id not in named]
    if not free:
        return Deferral.NO_SLOT
    if len(waiting.group) > len(idle):
        return Deferral.SIBLINGS
    for task in waiting.group:
        slot = choose_slot(free if task is parent else idle, task.prompt, draft.view.config.slot_prompt_similarity)
        idle.remove(slot)
        draft.admit(task, slot.id)
    return None


def choose_slot(idle: list[Slot], prompt: tuple[int, ...], min_similarity: float) -> Slot:
    """The idle slot whose last tokens begin the prompt by more than ``min_similarity`` of it, else the least recent.

    A slot is only a worker: the prefix is found wherever it is. The choice matters to whoever looks at GET /slots.
    """
    best, best_n = None, min_similarity * len(prompt)
    for slot in idle:
        n = common_prefix(slot.memory.tokens, prompt) if slot.memory and min_similarity > 0 else 0
        if n > best_n:
            best, best_n = slot, n
    return best or min(idle, key=lambda s: (s.last_used, -s.id))


# --- spans -----------------------------------------------------------------------------------------------------------


def plan_pass(draft: Draft) -> None:
    """Spans of one set of adapters: of the first by turn that finds something to do."""
    for adapters in sets_by_turn(draft):
        draft.adapters = adapters
        plan_decoding(draft)
        fit_decoding(draft)
        plan_prompts(draft)
        if draft.spans:
            return


def plan_decoding(draft: Draft) -> None:
    """Each slot that generates computes its last token and draws the next."""
    for slot in draft.view.slots:
        work = slot.generation
        if work is None or not work.n_decoded:
            continue
        row, computed = draft.row_of(slot), draft.computed(slot)
        if row is None or adapters_at(work.task, work.tokens, computed) != draft.adapters:
            continue
        if len(work.tokens) - computed == 1:
            span = Span(row, computed, (work.tokens[computed],), 1)
            draft.spans.append(SlotSpan(slot.id, span, (slot.id,)))


def fit_decoding(draft: Draft) -> None:
    """In a shared pool make room for these tokens; the youngest wait if there is none after all."""
    if not draft.ledger.traits.shared_cells or reclaim(draft, len(draft.spans)):
        return
    n_fit = max(1, n_available(draft))
    by_age = sorted(draft.spans, key=lambda s: draft.view.slots[s.slot].work.serial)
    for span in by_age[n_fit:]:
        draft.deferrals[draft.view.slots[span.slot].work.task.id] = Deferral.NO_CELLS
    draft.spans = by_age[:n_fit]
