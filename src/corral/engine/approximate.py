"""The approximate moves in a plan: full contexts lose a piece, and a prompt takes over a row that has it further on.

What is moved keeps what it saw before: its row leaves the key that others look under, and nobody else is offered it.
"""

from __future__ import annotations

from dataclasses import dataclass

from corral.engine.draft import Draft, Want
from corral.engine.plan import Begin, Shorten
from corral.engine.pressure import save_ops
from corral.engine.radix import common_prefix
from corral.engine.shift import Cut, can_move, choose_cut, chunk_cuts, find_chunks
from corral.engine.slot import Slot
from corral.ids import RowId
from corral.ops import Op, Shift, Trim

MAX_TRIED = 4
"""Cold rows, most recently used first, that are searched for chunks of one prompt."""


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


@dataclass(frozen=True, slots=True)
class Takeover:
    """A cold row that has the first ``n`` wanted tokens once it ends at ``end`` and the cuts are made."""

    row: RowId
    n: int
    end: int
    cuts: tuple[Cut, ...]


def find_takeover(draft: Draft, want: Want, n_exact: int) -> Takeover | None:
    """The row in which moved chunks give most of the prompt, if that is more than the ``n_exact`` known without.

    For a task that asks for it and has no siblings: they could not share what was moved.
    """
    n_min, ledger = want.task.n_cache_reuse, draft.ledger
    if n_min <= 0 or want.n_decoded or not can_move(ledger.traits):
        return None
    if any(other.group == want.group and other is not want for other in draft.wants):
        return None
    keys = (want.key, want.own_key)
    rows = [row for row in reversed(ledger.cold_rows()) if ledger.key(row) in keys][:MAX_TRIED]
    found = [t for t in (_takeover(draft, want, row, n_min) for row in rows) if t is not None and t.n > n_exact]
    return max(found, key=lambda t: t.n, default=None)


def _takeover(draft: Draft, want: Want, row: RowId, n_min: int) -> Takeover | None:
    held, wanted = draft.ledger.tokens(row), list(want.tokens[: len(want.tokens) - 1])
    n_past = common_prefix(held, wanted)
    chunks = find_chunks(held, wanted, n_past, n_min)
    cuts = chunk_cuts(chunks)
    if not cuts or not draft.ledger.owns_from(row, cuts[0].keep + cuts[0].discard):
        return None
    end = chunks[-1].src + chunks[-1].n
    return Takeover(row, n_past + sum(chunk.n for chunk in chunks), end, tuple(cuts))


def take_over(draft: Draft, want: Want, takeover: Takeover) -> None:
    """Lease the row and move its chunks to where the prompt has them; what it held before goes to RAM if it can."""
    row, ledger = takeover.row, draft.ledger
    ops = save_ops(draft, row)
    if takeover.end < ledger.length(row):
        ops.append(Trim(row, takeover.end))
    draft.act(Begin(want.slot, row, takeover.n), *ops, *(Shift(row, cut.keep, cut.discard) for cut in takeover.cuts))
