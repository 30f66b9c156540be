"""An LLM over the simulated model that can be looked into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from corral import LLM
from corral.config import ContextConfig, EngineConfig
from corral.engine.state import EngineSnapshot
from corral.engine.thread import EngineThread
from corral.runtime import Runtime
from corral.sim.clock import VirtualClock
from corral.tasks import Task, TaskGroup


class WatchedLLM(LLM):
    """``tasks`` are those that were submitted."""

    tasks: list[Task]

    @property
    def state(self) -> EngineSnapshot:
        return self._runtime.engine.snapshot

    @property
    def submitted(self) -> list[int]:
        """The priorities of the tasks in their order."""
        return [task.priority for task in self.tasks]


class _Watched:
    """An engine's thread that keeps what it is given."""

    def __init__(self, thread: EngineThread, tasks: list[Task]) -> None:
        self._thread = thread
        self._tasks = tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thread, name)

    def submit(self, groups: Sequence[TaskGroup], sink: Any) -> None:
        self._tasks += [task for group in groups for task in group]
        self._thread.submit(groups, sink)


def simulated_llm(n_slots: int = 3, n_ctx: int = 1024) -> WatchedLLM:
    context = ContextConfig(n_ctx=n_ctx, n_slots=n_slots, n_rows=n_slots + 2, n_batch=64, n_ubatch=64)
    runtime = Runtime.simulated(context, EngineConfig(n_slots=n_slots, max_queue=8, audit=True), clock=VirtualClock())
    tasks: list[Task] = []
    made = WatchedLLM.over(replace(runtime, engine=_Watched(runtime.engine, tasks)))  # type: ignore[arg-type]
    made.tasks = tasks
    return made
