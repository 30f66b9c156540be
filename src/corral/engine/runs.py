"""Tokens that need no drawing, since a constraint leaves no choice: how many a slot takes and computes in one step."""

from __future__ import annotations

from dataclasses import replace

from corral.engine.cost import N_TILED
from corral.engine.draft import Draft
from corral.engine.plan import SlotSpan
from corral.engine.slot import Slot
from corral.ids import RowId
from corral.ops import Span
from corral.tasks import Task

N_RUN = 16
"""Tokens that a slot takes at once."""


def n_following(draft: Draft, task: Task, n_tokens: int) -> int:
    """How many tokens that must follow a generation of ``n_tokens`` may be taken with the next drawn one.

    None where each is shown with its probabilities. All slots together fill a tile of the kernel: others hardly notice.
    None that would fill the context: it is shortened when all but the last token are computed.
    """
    sampling = task.sampling
    if (sampling.constraint is None and sampling.thoughts is None) or sampling.n_probs > 0:
        return 0
    n_each = min(N_RUN, N_TILED // len(draft.view.slots))
    return max(0, min(n_each, draft.ledger.traits.n_cells_row - n_tokens - 2))


def n_to_compute(draft: Draft, slot: Slot, computed: int) -> int:
    """How many tokens of a slot with a row are computed as generated ones; 0 if they are computed as a prompt."""
    n = len(slot.work.tokens) - computed
    is_run = slot.is_decoding and slot.id not in draft.begun
    if n != 1 and not is_run:
        return 0
    return min(n, draft.ledger.traits.n_batch // len(draft.view.slots))


def generating_span(draft: Draft, slot: Slot, row: RowId, pos0: int, n: int) -> SlotSpan:
    """The next ``n`` tokens of a slot; a token is drawn behind its last one."""
    work = slot.work
    is_last = pos0 + n == len(work.tokens)
    span = Span(row, pos0, tuple(work.tokens[pos0 : pos0 + n]), int(is_last))
    n_more = n_following(draft, work.task, len(work.tokens))
    return SlotSpan(slot.id, span, (slot.id,), n_more) if is_last else SlotSpan(slot.id, span)


def first_only(s: SlotSpan) -> SlotSpan:
    """The span without all tokens but the first."""
    if len(s.span.tokens) == 1:
        return s
    return SlotSpan(s.slot, replace(s.span, tokens=s.span.tokens[:1], n_outputs=0))
