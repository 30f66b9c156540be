"""Where a prompt pauses so that what its memory cannot be cut back to is kept, and the ops that keep it."""

from __future__ import annotations

from collections.abc import Sequence

from corral.config import EngineConfig
from corral.engine.draft import Draft, Want, want_of
from corral.engine.offers import is_mark, least_missed
from corral.engine.plan import Keep
from corral.engine.pressure import room_ops
from corral.engine.radix import common_prefix
from corral.engine.slot import PRIVATE
from corral.engine.state import SlotState
from corral.ids import RowId, SnapshotId, Token
from corral.ops import Checkpoint, Drop, Op, Save
from corral.ports import Rollback

TAIL = 4
"""Tokens before the end of a prompt: the last ones change when more text follows, and one must be computed anyway."""

NEAR = 64
"""A message that begins within so many tokens of the end makes a checkpoint before the end itself superfluous."""


def positions(n_prompt: int, borders: Sequence[int], config: EngineConfig) -> list[int]:
    """Where to keep checkpoints of a prompt of ``n_prompt`` tokens, ascending, all in (0, n_prompt).

    ``borders`` are the positions at which messages begin. The last two (what the user says now, and the answer) are
    always chosen: the next turn, another answer and another question start there. So is the end where no message begins
    near it. Of the others those at least ``checkpoint_min_step`` apart, and positions in between where there are none.
    """
    if config.n_ctx_checkpoints == 0:
        return []
    inner = sorted({b for b in borders if config.min_checkpoint <= b < n_prompt})
    chosen = set(inner[-2:])
    if not inner or n_prompt - inner[-1] > NEAR:
        chosen.add(n_prompt - TAIL)
    chosen |= set(_spaced(n_prompt, inner, chosen, config.checkpoint_min_step))
    return sorted(n for n in chosen if config.min_checkpoint <= n < n_prompt)


def _spaced(n_prompt: int, inner: Sequence[int], chosen: set[int], step: int) -> Sequence[int]:
    """A step behind the last one chosen the next border, or if that is far the position itself."""
    if step <= 0:
        return inner
    found: list[int] = []
    last = 0
    while last <= n_prompt - 2 * step:
        near = [n for n in chosen if last < n <= last + step]
        if near:
            last = max(near)
            continue
        last = next((b for b in inner if last + step <= b < last + 2 * step), last + step)
        found.append(last)
    return found


def next_pause(draft: Draft, want: Want, pos0: int) -> int:
    """The position > ``pos0`` up to which the wanted tokens may be computed without a pause."""
    n_end = len(want.tokens)
    if draft.ledger.traits.rollback is Rollback.ANY:
        return n_end
    pauses = positions(len(want.task.prompt), want.task.borders, draft.view.config)
    forks = draft.forks.get(want.slot, ())
    return min((n for n in (*pauses, *forks) if n > pos0), default=n_end)


def keep_checkpoints(draft: Draft) -> None:
    """Keep what prompts that pause have computed."""
    if draft.ledger.traits.rollback is Rollback.ANY:
        return
    for slot in draft.holding():
        if slot.state is SlotState.PROCESSING_PROMPT and slot.row is not None and _is_due(draft, want_of(slot)):
            ops = _keep_ops(draft, slot.row)
            if ops:
                draft.act(Keep(slot.id), *ops)


def _is_due(draft: Draft, want: Want) -> bool:
    """Whether the slot stands at one of its positions, or where somebody who waits parts from it."""
    n = draft.view.slots[want.slot].work.computed
    if want.key.startswith(PRIVATE) and want.task.parent is None:
        return False
    if n in positions(len(want.task.prompt), want.task.borders, draft.view.config):
        return True
    others = [w for w in draft.wants if w.key == want.key]
    return any(common_prefix(w.tokens[:-1], want.tokens) == n for w in others if n < len(w.tokens))


def _keep_ops(draft: Draft, row: RowId) -> list[Op]:
    """Ops that keep the row as it is; none if that is kept already or not worth the room."""
    ledger, config = draft.ledger, draft.view.config
    tokens: Sequence[Token] = ledger.tokens(row)
    kept = ledger.cut_points(ledger.key(row), tokens) if tokens else []
    if not tokens or config.n_ctx_checkpoints == 0 or (kept and ledger.snapshot_length(kept[-1]) == len(tokens)):
        return []
    if not ledger.is_settled(row):
        return []
    room = room_ops(draft, ledger.traits.bytes_per_row)
    if room is None:
        return []
    gone = {op.snapshot for op in room if isinstance(op, Drop)}
    ops = [*room, *_one_less(draft, [s for s in kept if s not in gone])]
    snapshot = draft.new_snapshot()
    if ledger.traits.bytes_per_token == 0:  # there is nothing but the state: a snapshot of it is all
        return [*ops, Save(row, snapshot)]
    return [*ops, Checkpoint(row, snapshot)]


def _one_less(draft: Draft, kept: Sequence[SnapshotId]) -> list[Op]:
    """The drop of a checkpoint of a path that has all it may have; rows that are kept as bytes are none, pins stay."""
    ledger = draft.ledger
    marks = [s for s in kept if is_mark(ledger, s)]
    free = [s for s in marks if s not in ledger.pins and s not in draft.spared]
    if len(marks) < draft.view.config.n_ctx_checkpoints or not free:
        return []
    return [Drop(free[least_missed([ledger.snapshot_length(s) for s in free])])]
