"""The mailbox of the engine thread: messages from any thread, cancels and control first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition

from corral.events import Event
from corral.ids import TaskId
from corral.tasks import Action, ControlAction, TaskGroup

Sink = Callable[[list[Event]], None]
"""Called on the engine thread with a step's events of its tasks; must not block or raise."""


@dataclass(frozen=True, slots=True)
class Submit:
    """New groups; events of their tasks go to ``sink``. ``arrived_ms`` of the engine's clock."""

    groups: tuple[TaskGroup, ...]
    sink: Sink
    arrived_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Act:
    """Something is asked of a slot, of the cache or of a running task; its end goes to ``sink``."""

    action: Action
    sink: Sink


@dataclass(frozen=True, slots=True)
class Cancel:
    """These tasks are not wanted any more."""

    tasks: tuple[TaskId, ...]


Message = Submit | Act | Cancel


class Inbox:
    """First in, first out, but cancels and control overtake. Safe for several writers and one reader."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._urgent: list[Cancel | Act] = []
        self._changed = Condition()
        self._is_closed = False
        self._is_poked = False

    def put(self, message: Message) -> bool:
        """False if the box is closed to new groups; cancels are always taken.

        A cancel also takes its tasks out of what has not been read yet.
        """
        with self._changed:
            if isinstance(message, Cancel):
                self._forget(set(message.tasks))
                self._urgent.append(message)
            elif self._is_closed:
                return False
            elif isinstance(message, Act) and isinstance(message.action, ControlAction):
                self._urgent.append(message)
            else:
                self._messages.append(message)
            self._changed.notify()
            return True

    def _forget(self, tasks: set[TaskId]) -> None:
        kept = deque[Message]()
        for message in self._messages:
            if isinstance(message, Submit):
                groups = (tuple(t for t in group if t.id not in tasks) for group in message.groups)
                message = Submit(tuple(g for g in groups if g), message.sink, message.arrived_ms)
            elif isinstance(message, Act) and message.action.id in tasks:
                continue
            kept.append(message)
        self._messages = kept

    def drain(self) -> Sequence[Message]:
        """Everything that came in since the last call. Never waits."""
        if not self._messages and not self._urgent:
            return ()
        with self._changed:
            messages = [*self._urgent, *self._messages]
            self._urgent.clear()
            self._messages.clear()
            return messages

    def poke(self) -> None:
        """Wake the reader, or let it not fall asleep: there is something elsewhere. From any thread."""
        with self._changed:
            self._is_poked = True
            self._changed.notify()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return when there is a message, or a poke, or the time is over; True if there is a message."""
        with self._changed:
            if not (self._messages or self._urgent or self._is_poked):
                self._changed.wait(timeout_s)
            self._is_poked = False
            return bool(self._messages or self._urgent)

    def close(self) -> None:
        """Take no more groups and wake the reader."""
        with self._changed:
            self._is_closed = self._is_poked = True
            self._changed.notify()

    @property
    def is_closed(self) -> bool:
        return self._is_closed
