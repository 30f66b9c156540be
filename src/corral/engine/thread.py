"""The engine thread: owns the engine, feeds it from the inbox, hands each step's events to their listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

from corral.engine.state import EngineSnapshot
from corral.events import Event
from corral.ids import TaskId
from corral.tasks import TaskGroup

Sink = Callable[[list[Event]], None]
"""Called on the engine thread with a step's events of its tasks; must not block or raise."""


class EngineThread:
    """One thread that steps one engine. All methods may be called from any thread."""

    def new_task_id(self) -> TaskId:
        """A number never given before."""
        raise NotImplementedError

    def stream(self, groups: Sequence[TaskGroup]) -> TaskStream:
        """Submit and listen, from a running asyncio loop. Raises Unavailable if the queue is full or closing."""
        raise NotImplementedError

    def submit(self, groups: Sequence[TaskGroup], sink: Sink) -> None:
        """Submit with a plain callback instead of a loop. Raises Unavailable."""
        raise NotImplementedError

    def cancel(self, tasks: Sequence[TaskId]) -> None:
        """Forget these tasks; ended or unknown ones are ignored. No further event of them is sent."""
        raise NotImplementedError

    @property
    def snapshot(self) -> EngineSnapshot:
        """The state after the last commit. Never waits."""
        raise NotImplementedError

    def stop(self, drain_s: float = 0.0) -> None:
        """Refuse new tasks, let running ones finish for at most ``drain_s``, cancel the rest, join the thread."""
        raise NotImplementedError


class TaskStream:
    """Events of some tasks, for one loop. Leaving the ``async with`` cancels what is not finished.

    >>> async with thread.stream([(task,)]) as events:
    ...     async for event in events: ...

    Iteration ends by itself when each task has had its Finished or Failed.
    """

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *exc: object) -> None:
        raise NotImplementedError

    def __aiter__(self) -> Self:
        raise NotImplementedError

    async def __anext__(self) -> Event:
        raise NotImplementedError

    async def batch(self) -> list[Event]:
        """All events that are there, waiting for at least one; empty when every task has ended or was cancelled."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel what is not finished; synchronous, from the loop's thread."""
        raise NotImplementedError
