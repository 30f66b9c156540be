"""The planner: a pure function from what is to what the next step does. No I/O, no clock, no random numbers.

Order of a plan: tasks are bound to idle slots; cells for running generations are secured; rows are given out, oldest
first; each generating slot gets its token; prompts get chunks of what is left.
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.engine.cost import Part, choose_chunk, features
from corral.engine.draft import Draft, View, Waiting, Want
from corral.engine.plan import Deferral, Plan, SlotSpan
from corral.engine.pressure import (
    close_gap,
    demote_cold,
    enforce_budget,
    forget_discarded,
    n_available,
    reclaim,
    reclaim_or_park,
    secure_decoding,
)
from corral.engine.radix import common_prefix
from corral.engine.reuse import begin_all
from corral.engine.slot import Slot
from corral.engine.state import SlotState
from corral.ids import SlotId
from corral.ops import Span

MAX_OVERTAKEN = 8
"""A group gives way to younger ones that name a slot this many times."""

STRETCH = 2.0
"""Prompts are served by the time at which they would be done if the machine were shared among this many."""


def plan(view: View) -> Plan:
    """What the next step does. An empty plan means that there is nothing to do until something happens."""
    draft = Draft(view)
    draft.wants.extend(map(_want, sorted((s for s in view.slots if s.wants_row), key=lambda s: s.work.serial)))
    if view.waiting:
        admit_waiting(draft)
    forget_discarded(draft)
    enforce_budget(draft)
    secure_decoding(draft)
    if draft.wants:
        begin_all(draft)
    close_gap(draft)
    plan_decoding(draft)
    fit_decoding(draft)
    plan_prompts(draft)
    if draft.spans:
        demote_cold(draft)
        parts = [Part(s.span.row, s.span.pos0, len(s.span.tokens)) for s in draft.spans]
        draft.shape = features(sorted(parts), view.ledger.traits, draft.ledger.n_used)
        draft.expected_ms = view.cost.predict(draft.shape)
    return draft.finish()


def _want(slot: Slot) -> Want:
    work = slot.work
    return Want(slot.id, work.task, work.tokens, work.n_decoded, work.key, work.group)


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


def plan_decoding(draft: Draft) -> None:
    """Each slot that generates computes its last token and draws the next."""
    for slot in draft.view.slots:
        work = slot.generation
        if work is None or not work.n_decoded:
            continue
        row, computed = draft.row_of(slot), draft.computed(slot)
        if row is not None and len(work.tokens) - computed == 1:
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


def plan_prompts(draft: Draft) -> None:
    """Chunks of prompts, those first that would be done first on a shared machine."""
    decoding = {s.slot for s in draft.spans}
    if decoding and not draft.view.config.cont_batching:
        return
    prompts = [p for p in _prompts(draft) if p.slot not in decoding]
    n_left = _prompt_budget(draft, prompts)
    for prompt in sorted(prompts, key=lambda p: (p.deadline_ms, p.serial)):
        n = _chunk(draft, prompt, n_left, bool(decoding))
        if n == 0:
            draft.deferrals[prompt.want.task.id] = Deferral.NO_BUDGET
            continue
        _add_chunk(draft, prompt, n)
        n_left -= n


class _Prompt:
    """A slot that has a row and prompt tokens to compute."""

    def __init__(self, draft: Draft, want: Want, serial: int, age_ms: float) -> None:
        begun = draft.begun.get(want.slot)
        slot = draft.view.slots[want.slot]
        self.want, self.slot, self.serial = want, want.slot, serial
        self.row = begun.row if begun else draft.row_of(slot)
        self.pos0 = begun.n_reused if begun else slot.work.computed
        self.n_left = len(want.tokens) - self.pos0
        n_new = len(want.tokens) - (begun.n_reused if begun else max(0, slot.work.n_cached))
        self.deadline_ms = age_ms + STRETCH * draft.view.cost.prefill_ms(n_new)


def _prompts(draft: Draft) -> list[_Prompt]:
    view = draft.view
    held = [s for s in draft.holding() if s.state is SlotState.PROCESSING_PROMPT]
    prompts = [_Prompt(draft, _want(s), s.work.serial, s.work.admitted_ms) for s in held]
    n_serials = 1 + max((s.work.serial for s in view.slots if s.generation), default=0)
    for i, want in enumerate(draft.wants):
        if want.slot in draft.begun:
            work = view.slots[want.slot].generation
            serial, admitted_ms = (work.serial, work.admitted_ms) if work else (n_serials + i, view.now_ms)
            prompts.append(_Prompt(draft, want, serial, admitted_ms))
    return prompts


def _prompt_budget(draft: Draft, prompts: list[_Prompt]) -> int:
    """Prompt tokens that this step may hold.

    libllama computes ``n_ubatch`` tokens at a time anyway: while a long prompt is computed, one such piece a step
    costs nothing and lets others in between.
    """
    traits = draft.ledger.traits
    n_batch = traits.n_batch - len(draft.spans)
    if any(p.n_left > traits.n_ubatch for p in prompts):
        return min(n_batch, traits.n_ubatch)
    return n_batch


def _chunk(draft: Draft, prompt: _Prompt, n_left: int, beside_running: bool) -> int:
    """Tokens of the prompt for this step, after making room for them in a shared pool."""
    view = draft.view
    n_max = min(prompt.n_left, n_left)
    assert prompt.row is not None
    if beside_running and n_max > 0:
        parts = [Part(s.span.row, s.span.pos0, len(s.span.tokens)) for s in draft.spans]
        target_ms = view.config.itl_target_ms
        n_used = draft.ledger.n_used
        choice = choose_chunk(view.cost, parts, prompt.row, prompt.pos0, prompt.n_left, n_max, n_used, target_ms)
        prompts_in_step = any(len(s.span.tokens) > 1 or not s.samples for s in draft.spans)
        if prompts_in_step and choice.step_ms > target_ms:
            return 0
        n_max = choice.n_tokens
    return _room_for(draft, prompt, n_max)


def _room_for(draft: Draft, prompt: _Prompt, n: int) -> int:
    if n <= 0 or not draft.ledger.traits.shared_cells:
        return max(0, n)
    n_planned = sum(len(s.span.tokens) for s in draft.spans)
    reclaim(draft, n_planned + n)
    if n_available(draft) <= n_planned and prompt.slot not in draft.begun:
        reclaim_or_park(draft, n_planned + 1, keep=draft.view.slots[prompt.slot])
        draft.spans = [s for s in draft.spans if s.slot not in draft.parked]
        n_planned = sum(len(s.span.tokens) for s in draft.spans)
    if prompt.slot in draft.parked:
        return 0
    return max(0, min(n, n_available(draft) - n_planned))


def _add_chunk(draft: Draft, prompt: _Prompt, n: int) -> None:
    want, assert_row = prompt.want, prompt.row
    assert assert_row is not None
    tokens = tuple(want.tokens[prompt.pos0 : prompt.pos0 + n])
    is_last = n == prompt.n_left
    wants_token = is_last and (want.n_decoded > 0 or want.task.limits.n_predict != 0)
    samples = (want.slot, *_siblings(draft, want)) if wants_token else ()
    draft.spans.append(SlotSpan(want.slot, Span(assert_row, prompt.pos0, tokens, int(bool(samples))), samples))


def _siblings(draft: Draft, want: Want) -> list[SlotId]:
    """Slots of the same group that wait, without a token yet, for this prompt."""
    if want.n_decoded:
        return []
    return [
        other.slot
        for other in draft.wants
        if other.group == want.group
        and other.slot not in draft.begun
        and not other.n_decoded
        and other.slot != want.slot
    ]
