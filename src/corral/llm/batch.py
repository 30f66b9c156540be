"""Many groups of tasks, run so that the slots stay busy and the queue stays short."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from corral.events import Event, Failed, Finished
from corral.ids import TaskId
from corral.runtime import Runtime
from corral.tasks import TaskGroup


class Batch:
    """At most twice as many tasks as slots are with the engine at a time; urgent ones go to it first."""

    def __init__(self, runtime: Runtime, groups: Sequence[TaskGroup]) -> None:
        self._engine = runtime.engine
        self._waiting = deque(sorted(groups, key=lambda group: -group[0].priority))
        self._group_of = {task.id: group for group in groups for task in group}
        self._open: set[TaskId] = set()
        self._max_open = 2 * runtime.n_slots
        self._inbox: SimpleQueue[list[Event]] = SimpleQueue()
        self._finished: dict[TaskId, Finished] = {}

    def run(self, advance: Callable[[], None]) -> dict[TaskId, Finished]:
        """All ends by task; ``advance`` is called for each group that is complete. Raises a task's error."""
        try:
            self._submit()
            while self._open:
                for event in self._inbox.get():
                    self._take(event, advance)
                self._submit()
            return self._finished
        finally:
            self._engine.cancel(list(self._open))

    def _submit(self) -> None:
        while self._waiting and (not self._open or len(self._open) + len(self._waiting[0]) <= self._max_open):
            group = self._waiting.popleft()
            self._engine.submit([group], self._inbox.put)
            self._open.update(task.id for task in group)

    def _take(self, event: Event, advance: Callable[[], None]) -> None:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            self._open.discard(event.task_id)
            self._finished[event.task_id] = event
            if all(task.id in self._finished for task in self._group_of[event.task_id]):
                advance()
