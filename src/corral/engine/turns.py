"""Whose turn it is: a pass computes with one set of adapters, so slots with different sets run by turns.

A run ends when it has lasted ``run_ms``; then comes the set that has waited longest. With k sets a run, and each step
in it that holds prompt tokens, is made for 1 / 2k of the gap that a stream may have: all runs of the others and a step
fit into that gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from corral.engine.adapted import adapters_at
from corral.engine.plan import Deferral
from corral.ids import AdapterSet, Token
from corral.tasks import Task

if TYPE_CHECKING:
    from corral.engine.draft import Draft

RUN_MS = 100.0
"""Longer runs would gain little: a change costs libllama 4 to 5 ms, for a new reserve of its graph."""

N_REMEMBERED = 512
"""Sets whose last run is remembered: more than 256 slots can want, each with and without its adapters."""


@dataclass(slots=True)
class Turns:
    """The run that goes on: the set of the last pass and for how long in a row; when others had theirs."""

    current: AdapterSet = ()
    ran_ms: float = 0.0
    served_ms: dict[AdapterSet, float] = field(default_factory=dict)

    def record(self, adapters: AdapterSet, pass_ms: float, now_ms: float) -> None:
        """A pass with these adapters ended ``now_ms`` after ``pass_ms``."""
        self.ran_ms = self.ran_ms + pass_ms if adapters == self.current else pass_ms
        self.current = adapters
        self.served_ms[adapters] = now_ms
        if len(self.served_ms) > 2 * N_REMEMBERED:
            self.served_ms = dict(nlargest(N_REMEMBERED, self.served_ms.items(), itemgetter(1)))


class Row(NamedTuple):
    """A slot that could compute its token ``pos`` in this step."""

    task: Task
    tokens: Sequence[Token]
    pos: int
    is_stream: bool
    admitted_ms: float


def run_ms(n_sets: int, target_ms: float) -> float:
    """How long a run lasts while ``n_sets`` want to compute; the step during which this passes is its last."""
    return min(RUN_MS, target_ms / (2 * n_sets))


def sets_by_turn(draft: Draft) -> Iterator[AdapterSet]:
    """The set whose turn it is, then the others, longest waiting first: the first that finds something to do runs.

    Tells the draft how large steps with prompts may be, and in the end who waits for another turn.
    """
    if not _any_adapters(draft):
        yield ()
        return
    rows = list(_rows(draft))
    if not draft.view.config.cont_batching and any(row.is_stream for row in rows):
        rows = [row for row in rows if row.is_stream]
    order = _order(draft, rows)
    for adapters in order:
        others = [row for row in rows if adapters_at(row.task, row.tokens, row.pos) != adapters]
        draft.others_stream = any(row.is_stream for row in others)
        for row in others:
            draft.deferrals.setdefault(row.task.id, Deferral.OTHER_ADAPTERS)
        yield adapters
        for row in others:
            if draft.deferrals.get(row.task.id) is Deferral.OTHER_ADAPTERS:
                del draft.deferrals[row.task.id]


def _any_adapters(draft: Draft) -> bool:
    return any(s.generation and s.generation.task.adapters for s in draft.view.slots) or any(
        want.task.adapters for want in draft.wants
    )


def _rows(draft: Draft) -> Iterator[Row]:
    view = draft.view
    for slot in view.slots:
        work = slot.generation
        if work is not None and draft.row_of(slot) is not None:
            pos = draft.computed(slot)
            yield Row(work.task, work.tokens, pos, work.n_decoded > 0 and len(work.tokens) - pos == 1, work.admitted_ms)
    for want in draft.wants:
        if want.slot in draft.begun and view.slots[want.slot].generation is None:
            yield Row(want.task, want.tokens, draft.begun[want.slot].n_reused, False, view.now_ms)


def _order(draft: Draft, rows: list[Row]) -> list[AdapterSet]:
    """Sets in the order in which they may try, and the size of steps while there are several."""
    turns, waiting_since = draft.view.turns, dict[AdapterSet, float]()
    for row in rows:
        adapters = adapters_at(row.task, row.tokens, row.pos)
        waiting_since[adapters] = min(waiting_since.get(adapters, row.admitted_ms), row.admitted_ms)
    if len(waiting_since) > 1:
        draft.target_ms = run_ms(len(waiting_since), draft.view.config.itl_target_ms)

    def rank(adapters: AdapterSet) -> tuple[bool, float]:
        goes_on = adapters == turns.current and turns.ran_ms < draft.target_ms
        return not goes_on, max(waiting_since[adapters], turns.served_ms.get(adapters, 0.0))

    return sorted(waiting_since, key=rank)
