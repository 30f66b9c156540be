"""The planner: a pure function from what is to what the next step does. No I/O, no clock, no random numbers.

Order of a plan: tasks are bound to slots; full contexts are shortened; cells for running generations are secured; rows
are given out, the most urgent and oldest first; each generating slot gets its token; prompts get chunks of what is
left. The last two for one set of adapters.
"""

from __future__ import annotations

from corral.engine.adapted import adapters_at
from corral.engine.approximate import shorten_full
from corral.engine.checkpoints import keep_checkpoints
from corral.engine.cost import Part, features
from corral.engine.draft import NEWEST, Draft, View, Want, standing, want_of
from corral.engine.plan import Deferral, Plan
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
from corral.engine.reuse import begin_all
from corral.engine.runs import first_only, generating_span, n_to_compute
from corral.engine.seats import seat_all
from corral.engine.turns import sets_by_turn


def plan(view: View) -> Plan:
    """What the next step does. An empty plan means that there is nothing to do until something happens."""
    draft = Draft(view)
    if view.waiting or view.held:
        seat_all(draft)
    shorten_full(draft)
    draft.wants = wants_in_order(draft)
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


def wants_in_order(draft: Draft) -> list[Want]:
    """All that want a row: the most urgent first, then the oldest. Urgency grows with the time without one."""
    new = [want for want in draft.wants if want.serial == NEWEST]
    old = [want_of(s) for s in draft.view.slots if s.wants_row and s.id not in draft.shortened]

    def rank(want: Want) -> tuple[int, int]:
        work = draft.view.slots[want.slot].generation
        n_aged = int((draft.view.now_ms - work.rowless_ms) / draft.view.config.priority_age_ms) if work else 0
        return -want.urgency - n_aged, want.serial

    return sorted([*old, *new], key=rank)


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
    """Each slot that generates computes its last token, and those that had to follow it, and draws the next."""
    for slot in draft.view.slots:
        work = slot.generation
        if work is None or not work.n_decoded or slot.id in draft.shortened:
            continue
        row, computed = draft.row_of(slot), draft.computed(slot)
        if row is None or adapters_at(work.task, work.tokens, computed) != draft.adapters:
            continue
        n = n_to_compute(draft, slot, computed)
        if n:
            draft.spans.append(generating_span(draft, slot, row, computed, n))


def fit_decoding(draft: Draft) -> None:
    """In a shared pool make room for these tokens; the last in standing wait if there is none after all."""
    if not draft.ledger.traits.shared_cells or reclaim(draft, draft.n_tokens):
        return
    draft.spans = [first_only(s) for s in draft.spans]
    n_fit = max(1, n_available(draft))
    if len(draft.spans) <= n_fit:
        return
    ranked = sorted(draft.spans, key=lambda s: standing(draft.view, draft.view.slots[s.slot]))
    for span in ranked[n_fit:]:
        draft.deferrals[draft.view.slots[span.slot].work.task.id] = Deferral.NO_CELLS
    draft.spans = ranked[:n_fit]
