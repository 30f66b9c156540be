"""Prompts in a plan: which of them get how many tokens of this step, and the cells for them."""

from __future__ import annotations

from corral.engine.adapted import adapters_at, n_alike, plain
from corral.engine.checkpoints import next_pause
from corral.engine.chunks import Pending, choose_chunks
from corral.engine.cost import Part
from corral.engine.draft import Draft, Want, came_together, want_of
from corral.engine.plan import Deferral, SlotSpan
from corral.engine.pressure import n_available, reclaim, reclaim_or_park
from corral.engine.runs import n_following
from corral.engine.state import SlotState
from corral.ids import RowId, SlotId
from corral.ops import Span

COMPANY = 3.5
"""A prompt waits at its last token for those that came with it, if their rest takes less than so many times its own."""

STRETCH = 2.0
"""Prompts are served by the time at which they would be done if the machine were shared among this many."""


class Prompt:
    """A slot that has a row and prompt tokens to compute.

    ``n_left`` up to its end, to where it pauses, or to where other adapters begin to act. ``is_shown``: the
    probabilities of its tokens are asked for, which takes logits of every position.
    """

    def __init__(self, draft: Draft, want: Want, row: RowId, serial: int, age_ms: float) -> None:
        begun = draft.begun.get(want.slot)
        slot = draft.view.slots[want.slot]
        self.want, self.row, self.serial = want, row, serial
        self.pos0 = begun.n_reused if begun else slot.work.computed
        n_end = min(next_pause(draft, want, self.pos0), n_alike(want.tokens, self.pos0))
        self.n_left = n_end - self.pos0
        self.is_shown = want.task.n_prompt_probs >= 0 and not want.n_decoded
        if self.is_shown:
            self.n_left = min(self.n_left, draft.ledger.traits.n_extra_outputs)
        n_new = len(want.tokens) - (begun.n_reused if begun else max(0, slot.work.n_cached))
        self.adapters = adapters_at(want.task, want.tokens, self.pos0)
        self.turn = (-want.urgency, draft.view.shares.counter(want.task))
        self.own_ms = draft.view.cost.prefill_ms(n_new)
        self.deadline_ms = age_ms + STRETCH * self.own_ms

    @property
    def n_rest(self) -> int:
        """Tokens to its end."""
        return len(self.want.tokens) - self.pos0


def plan_prompts(draft: Draft) -> None:
    """Chunks of prompts: by urgency, then fair share, then those that would be done first on a shared machine."""
    if not draft.begun and not any(s.state is SlotState.PROCESSING_PROMPT for s in draft.view.slots):
        return
    decoding = {s.slot for s in draft.spans}
    if decoding and not draft.view.config.cont_batching:
        return
    prompts = [p for p in _prompts(draft) if p.want.slot not in decoding and p.adapters == draft.adapters]
    if not prompts:
        return
    prompts.sort(key=lambda p: (*p.turn, p.deadline_ms, p.serial))
    prompts = _one_shown(draft, prompts)
    n_budget = _room(draft, prompts, _step_budget(draft, prompts))
    prompts = [p for p in prompts if p.want.slot not in draft.parked]
    is_watched = draft.spans or draft.others_stream
    chunks = _beside_running(draft, prompts, n_budget) if is_watched else _alone(draft, prompts, n_budget)
    for prompt, n in zip(prompts, chunks, strict=False):
        if n:
            _add_chunk(draft, prompt, n)
        else:
            draft.deferrals[prompt.want.task.id] = Deferral.COMPANY
    for prompt in prompts[len(chunks) :]:
        draft.deferrals[prompt.want.task.id] = Deferral.NO_BUDGET


def _one_shown(draft: Draft, prompts: list[Prompt]) -> list[Prompt]:
    """Of the prompts whose tokens are shown the first only: there are logits for no more."""
    shown = [p for p in prompts if p.is_shown]
    for late in shown[1:]:
        draft.deferrals[late.want.task.id] = Deferral.NO_BUDGET
    return [p for p in prompts if p not in shown[1:]]


def _prompts(draft: Draft) -> list[Prompt]:
    view = draft.view
    held = [s for s in draft.holding() if s.state is SlotState.PROCESSING_PROMPT]
    prompts = [Prompt(draft, want_of(s), _row(draft, s.id), s.work.serial, s.work.admitted_ms) for s in held]
    n_serials = 1 + max((s.work.serial for s in view.slots if s.generation), default=0)
    for i, want in enumerate(draft.wants):
        if want.slot in draft.begun:
            work = view.slots[want.slot].generation
            serial, admitted_ms = (work.serial, work.admitted_ms) if work else (n_serials + i, view.now_ms)
            prompts.append(Prompt(draft, want, draft.begun[want.slot].row, serial, admitted_ms))
    return prompts


def _row(draft: Draft, slot: SlotId) -> RowId:
    row = draft.row_of(draft.view.slots[slot])
    assert row is not None, f"slot {slot} holds no row"
    return row


def _step_budget(draft: Draft, prompts: list[Prompt]) -> int:
    """Prompt tokens that this step may hold.

    libllama computes ``n_ubatch`` tokens at a time anyway: while a long prompt is computed, one such piece a step
    costs nothing and lets others in between.
    """
    traits = draft.ledger.traits
    n_batch = traits.n_batch - draft.n_tokens
    if any(p.n_left > traits.n_ubatch for p in prompts):
        return min(n_batch, traits.n_ubatch)
    return n_batch


def _room(draft: Draft, prompts: list[Prompt], n_wanted: int) -> int:
    """How many of the wanted tokens find cells in a shared pool; if none, the youngest make room for the oldest."""
    if not draft.ledger.traits.shared_cells:
        return n_wanted
    n_wanted = min(n_wanted, sum(p.n_left for p in prompts))
    reclaim(draft, draft.n_tokens + n_wanted)
    slots = {p.want.slot for p in prompts}
    holding = [s for s in draft.holding() if s.id in slots]
    if n_available(draft) <= draft.n_tokens and holding:
        reclaim_or_park(draft, draft.n_tokens + 1, keep=holding[0])
        draft.spans = [s for s in draft.spans if s.slot not in draft.parked]
    return max(0, min(n_wanted, n_available(draft) - draft.n_tokens))


def _alone(draft: Draft, prompts: list[Prompt], n_budget: int) -> list[int]:
    """Nobody generates: one prompt after the other, as far as the budget goes.

    The first that is done would generate, and the others' chunks would be cut small for its sake: who came together is
    better off to finish together. So their last tokens wait for each other.
    """
    chunks: list[int] = []
    for prompt in prompts:
        if n_budget <= 0:
            break
        chunks.append(min(prompt.n_left, n_budget))
        n_budget -= chunks[-1]
    late = [(p, p.n_rest - n) for p, n in zip(prompts, [*chunks, *[0] * len(prompts)], strict=False) if n < p.n_rest]
    patient = [
        n - (n == prompt.n_rest and _waits_for(draft, prompt, late)) for prompt, n in zip(prompts, chunks, strict=False)
    ]
    return patient if any(patient) else chunks


def _waits_for(draft: Draft, prompt: Prompt, late: list[tuple[Prompt, int]]) -> bool:
    """``late``: prompts with the tokens they still have after this step."""
    rest_ms = sum(
        draft.view.cost.prefill_ms(n)
        for other, n in late
        if other.turn[0] == prompt.turn[0] and came_together(other.want, prompt.want)
    )
    return 0 < rest_ms <= COMPANY * prompt.own_ms


def _beside_running(draft: Draft, prompts: list[Prompt], n_budget: int) -> list[int]:
    running = [Part(s.span.row, s.span.pos0, len(s.span.tokens)) for s in draft.spans]
    pending = [Pending(p.row, p.pos0, p.n_left) for p in prompts]
    return choose_chunks(draft.view.cost, running, pending, n_budget, draft.ledger.n_used, draft.target_ms)


def _add_chunk(draft: Draft, prompt: Prompt, n: int) -> None:
    want = prompt.want
    tokens = tuple(want.tokens[prompt.pos0 : prompt.pos0 + n])
    wants_token = prompt.pos0 + n == len(want.tokens) and (want.n_decoded > 0 or want.task.limits.n_predict != 0)
    samples = (want.slot, *_siblings(draft, want)) if wants_token else ()
    n_more = n_following(draft, want.task, len(want.tokens)) if samples else 0
    if not prompt.is_shown:
        span = Span(prompt.row, prompt.pos0, tokens, int(bool(samples)))
        draft.spans.append(SlotSpan(want.slot, span, samples, n_more))
        return
    targets = plain(want.tokens[prompt.pos0 + 1 : prompt.pos0 + n + 1])
    span = Span(prompt.row, prompt.pos0, tokens, n)
    draft.spans.append(SlotSpan(want.slot, span, samples, n_more, targets, want.task.n_prompt_probs))


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
