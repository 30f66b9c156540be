"""The approximate moves in a plan: a generation that fills its context goes on without a piece of it.

What is moved keeps what it saw before: its row leaves the key that others look under, and nobody else is offered it.
"""

from __future__ import annotations

from corral.engine.draft import Draft
from corral.engine.plan import Shorten
from corral.engine.shift import Cut, choose_cut
from corral.engine.slot import Slot
from corral.ops import Op, Shift, Trim


def shorten_full(draft: Draft) -> None:
    """Take a piece out of each generation that fills its context. It goes on in the next step."""
    for slot in draft.view.slots:
        work = slot.generation
        if work is None or not work.n_decoded or len(work.tokens) < draft.ledger.traits.n_cells_row:
            continue
        cut = choose_cut(len(work.tokens) - 1, work.n_keep, work.task.n_discard)
        assert cut is not None, f"slot {slot.id} is full and cannot be shortened"
        draft.act(Shorten(slot.id, cut), *_cut_ops(draft, slot, cut))


def _cut_ops(draft: Draft, slot: Slot, cut: Cut) -> list[Op]:
    """Move the rest down; where others hold cells of it, give it up and compute it anew: they would move too."""
    row, ledger = slot.row, draft.ledger
    if row is None:
        return []
    n, end = ledger.length(row), cut.keep + cut.discard
    if n > end and ledger.owns_from(row, end):
        return [Shift(row, cut.keep, cut.discard)]
    return [Trim(row, cut.keep)] if n > cut.keep else []
