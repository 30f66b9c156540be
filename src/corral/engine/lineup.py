"""Whose turn it is: the order of those that wait for a slot, by priority, age, fair share and arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from corral.engine.draft import Draft, View, Waiting
from corral.engine.fair import Account, account_of
from corral.engine.slot import Generation
from corral.tasks import Task

Turn = tuple[Waiting, int]
"""One that waits, and the urgency with which it will run: its priority, or the highest that it passed by age."""


class Tags:
    """Where each account's counter will be once those that have slots got what is theirs.

    That is the rest of their prompts and ``park_min_tokens`` generated tokens. So several slots that become free at
    once are shared, too.
    """

    def __init__(self, draft: Draft) -> None:
        self._view, self._min_tokens = draft.view, max(1, draft.view.config.park_min_tokens)
        self._tags: dict[Account, float] = {}
        for slot in draft.view.slots:
            if slot.generation is not None:
                self.add(slot.work.task, self._pending(slot.work))
        for waiting in draft.admitted:
            self.give(waiting)

    def of(self, task: Task) -> float:
        return self._tags.get(account_of(task), self._view.shares.counter(task))

    def add(self, task: Task, n_tokens: int) -> None:
        self._tags[account_of(task)] = self.of(task) + n_tokens / task.weight

    def give(self, waiting: Waiting) -> None:
        """The group gets its slots."""
        first, n = waiting.group[0], len(waiting.group)
        work = waiting.generation
        n_prompt = _prompt_left(work) if work else len(first.prompt)
        self.add(first, n_prompt + n * self._min_tokens)

    def _pending(self, work: Generation) -> int:
        return _prompt_left(work) + max(0, self._min_tokens - work.n_since)


def _prompt_left(work: Generation) -> int:
    """Prompt tokens that were never computed; siblings wait for their parent's."""
    return 0 if work.task.parent is not None else work.n_prompt - max(work.n_prompt_seen, work.n_cached, 0)


def in_turn(entries: Iterable[Waiting], tags: Tags) -> Iterator[Waiting]:
    """Higher priorities first; of one priority the tenant with the lowest tag; of one tenant those held, then by age.

    Each that is taken moves its account's tag on, as if it got its slots.
    """
    queues: dict[int, dict[Account, deque[Waiting]]] = {}
    for entry in entries:
        first = entry.group[0]
        queues.setdefault(first.priority, {}).setdefault(account_of(first), deque()).append(entry)
    for priority in sorted(queues, reverse=True):
        yield from _share(queues[priority], tags)


def _share(queues: dict[Account, deque[Waiting]], tags: Tags) -> Iterator[Waiting]:
    while len(queues) > 1:
        account = min(queues, key=lambda a: (tags.of(queues[a][0].group[0]), queues[a][0].group[0].id))
        entry = queues[account].popleft()
        if not queues[account]:
            del queues[account]
        tags.give(entry)
        yield entry
    for entry in chain.from_iterable(queues.values()):
        tags.give(entry)
        yield entry


def line_up(view: View, tags: Tags) -> list[Turn]:
    """All that wait, in the order in which they are offered idle slots.

    The first of a priority that has waited for long passes those of higher ones that have waited less.
    """
    held = sorted(view.held, key=lambda w: w.serial)
    order = list(in_turn(chain(held, view.waiting), tags))
    priorities = sorted({w.priority for w in order})
    turns = [(w, w.priority) for w in order]
    urgency = {p: view.shares.urgency(p, view.now_ms) for p in priorities}
    for i, priority in enumerate(priorities[:-1]):
        passed = [p for p in priorities[i + 1 :] if urgency[p] < urgency[priority]]
        if passed:
            head = next(turn for turn in turns if turn[0].priority == priority)
            turns.remove(head)
            place = next(k for k, turn in enumerate(turns) if turn[1] <= passed[-1])
            turns.insert(place, (head[0], passed[-1]))
    return turns
