"""The engine thread: owns the engine, feeds it from the inbox, hands each step's events to their listeners."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from corral.engine.core import Engine
from corral.engine.inbox import Act, Cancel, Inbox, Message, Sink, Submit
from corral.engine.state import EngineSnapshot
from corral.errors import CorralError, ServerError, Unavailable
from corral.events import CacheDone, ControlDone, End, Event, Failed, SlotDone
from corral.ids import TaskId
from corral.tasks import Action, CacheAction, ControlAction, SlotAction, TaskGroup

log = logging.getLogger("corral.engine")

SWITCH_INTERVAL_S = 0.0005
"""A 1 ms C call beside a busy Python thread takes 6.3 ms with the default of 5 ms, 1.8 ms with this."""

FAULT = "internal error in the engine; see the log"


def calm_interpreter() -> None:
    """Settings of the whole process: hand the interpreter over fast, and look for cycles of garbage seldom.

    What is loaded by now is left out of collections, which took 0.1 ms of each step.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class EngineThread:
    """One thread that steps one engine. All methods may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox = Inbox()
        self._ids = itertools.count(1)
        self._sinks: dict[TaskId, Sink] = {}
        self._thread = threading.Thread(target=self._run, name="corral-engine", daemon=True)
        self._is_cut = threading.Event()
        self._first: Callable[[], None] | None = None

    def start(self, first: Callable[[], None] | None = None) -> None:
        """Begin to step, after calling ``first`` on the thread. Called once.

        Everything that computes belongs on this one thread: OpenMP keeps a pool for each thread that ever called it,
        and as soon as all pools together outnumber the cores its barriers sleep instead of spin: a step of 20 ms
        took 50.
        """
        calm_interpreter()
        self._first = first
        self._thread.start()

    def new_task_id(self) -> TaskId:
        """A number never given before; later ones are higher."""
        return TaskId(next(self._ids))

    def stream(self, groups: Sequence[TaskGroup]) -> TaskStream:
        """Submit and listen, from a running asyncio loop. Raises Unavailable if the engine is closing."""
        stream = TaskStream(self, [task.id for group in groups for task in group], asyncio.get_running_loop())
        self.submit(groups, stream)
        return stream

    def submit(self, groups: Sequence[TaskGroup], sink: Sink) -> None:
        """Submit with a plain callback instead of a loop. Raises Unavailable if the engine is closing."""
        if not self._inbox.put(Submit(tuple(groups), sink, self._engine.now_ms())):
            raise Unavailable("the server is shutting down", retry_after_s=10)

    async def act(self, action: SlotAction) -> SlotDone:
        """Have something done to a slot once it is idle, from a running asyncio loop. Raises the error it ends with.

        Raises Unavailable if the engine is closing.
        """
        done = await self._ask(action)
        assert isinstance(done, SlotDone), done
        return done

    async def act_on_cache(self, action: CacheAction) -> CacheDone:
        """The same for the cache, without waiting for a slot."""
        done = await self._ask(action)
        assert isinstance(done, CacheDone), done
        return done

    async def control(self, action: ControlAction) -> ControlDone:
        """The same for a task that runs: before the engine's next step, and before all that waits to be read."""
        done = await self._ask(action)
        assert isinstance(done, ControlDone), done
        return done

    async def _ask(self, action: Action) -> Event:
        async with TaskStream(self, [action.id], asyncio.get_running_loop()) as events:
            if not self._inbox.put(Act(action, events)):
                raise Unavailable("the server is shutting down", retry_after_s=10)
            event = await anext(events)
        if isinstance(event, Failed):
            raise event.error
        return event

    def wake(self) -> None:
        """Let the thread see what came from elsewhere than the inbox."""
        self._inbox.poke()

    def cancel(self, tasks: Sequence[TaskId]) -> None:
        """Forget these tasks; ended or unknown ones are ignored. No further event of them is sent."""
        self._inbox.put(Cancel(tuple(tasks)))

    @property
    def snapshot(self) -> EngineSnapshot:
        """The state after the last commit. Never waits."""
        return self._engine.snapshot

    def stop(self, drain_s: float = 0.0) -> None:
        """Refuse new tasks, let running ones finish for at most ``drain_s``, fail the rest, join the thread, close."""
        self._inbox.close()
        if self._thread.is_alive():
            self._thread.join(drain_s)
            self._is_cut.set()
            self._inbox.close()
            self._thread.join()
        self._engine.close()

    # --- on the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: CorralError = Unavailable("the server is shutting down", retry_after_s=10)
        try:
            if self._first is not None:
                self._first()
            self._serve()
            self._send(self._engine.retire(error))
        except Exception:  # nothing can be mended any more, but nobody may wait for ever
            log.exception("the engine has ended; nothing is served any more")
            error = ServerError(FAULT)
        self._inbox.close()
        for message in self._inbox.drain():
            self._listen(message)
        self._send([Failed(task, error) for task in self._sinks])

    def _serve(self) -> None:
        """Until the inbox is closed and all is done, or the time for that is over."""
        while not self._is_cut.is_set():
            self._take_in()
            if self._engine.has_work:
                self._linger()
                self._step()
            elif self._inbox.is_closed:
                break
            else:
                self._inbox.wait()
        self._take_in()

    def _take_in(self) -> None:
        messages = self._inbox.drain()
        for message in messages:
            self._listen(message)
            match message:
                case Submit(groups, _, arrived_ms):
                    for group in groups:
                        with self._failing([task.id for task in group]):
                            self._engine.submit(group, arrived_ms)
                case Act(action):
                    with self._failing([action.id]):
                        self._engine.act(action)
                case Cancel(tasks):
                    self._engine.cancel(tasks)
        if messages:
            self._engine.publish()

    def _listen(self, message: Message) -> None:
        match message:
            case Submit(groups, sink):
                self._sinks.update((task.id, sink) for group in groups for task in group)
            case Act(action, sink):
                self._sinks[action.id] = sink
            case Cancel(tasks):
                for task in tasks:
                    self._sinks.pop(task, None)

    @contextmanager
    def _failing(self, tasks: Sequence[TaskId]) -> Iterator[None]:
        """A fault of ours in taking these in is the end of them and of no others."""
        try:
            yield
        except Exception:
            log.exception("what was asked for could not be taken in")
            self._send([Failed(task, ServerError(FAULT)) for task in tasks])

    def _linger(self) -> None:
        """Wait a little for company, until nobody else has come for a millisecond."""
        start = time.monotonic()
        while (time.monotonic() - start) * 1000 < self._engine.linger_ms() and self._inbox.wait(0.001):
            self._take_in()

    def _step(self) -> None:
        try:
            events = self._engine.step()
        except Exception:  # a fault of ours must not end the thread: whoever is there is told, new tasks are served
            log.exception("the engine's step failed; all tasks end")
            events = self._engine.fail_all(ServerError(FAULT))
        self._send(events)
        if not events and self._engine.last_plan.only_waits:
            self._inbox.wait(0.005)

    def _send(self, events: Sequence[Event]) -> None:
        """One call of each listener, however many of its tasks have events."""
        batches: dict[int, tuple[Sink, list[Event]]] = {}
        for event in events:
            ended = isinstance(event, End)
            sink = self._sinks.pop(event.task_id, None) if ended else self._sinks.get(event.task_id)
            if sink is not None:
                batches.setdefault(id(sink), (sink, []))[1].append(event)
        deliver(list(batches.values()))


def deliver(batches: list[tuple[Sink, list[Event]]]) -> None:
    """Hand events over: plain sinks at once, streams with one wake-up for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[TaskStream, list[Event]]]] = {}
    for sink, events in batches:
        if isinstance(sink, TaskStream):
            loops.setdefault(sink.loop, []).append((sink, events))
        else:
            sink(events)
    for loop, arrivals in loops.items():
        try:
            loop.call_soon_threadsafe(_arrive, arrivals)
        except RuntimeError:  # the loop is closed: nobody listens any more
            log.debug("events for a closed loop dropped")


def _arrive(arrivals: list[tuple[TaskStream, list[Event]]]) -> None:
    for stream, events in arrivals:
        stream.arrive(events)


class TaskStream:
    """Events of some tasks, for one loop. Leaving the ``async with`` cancels what is not finished.

    >>> async with thread.stream([(task,)]) as events:
    ...     async for event in events: ...

    Iteration ends by itself when each task has had its Finished or Failed.
    """

    def __init__(self, thread: EngineThread, tasks: Sequence[TaskId], loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = thread
        self._open = set(tasks)
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __call__(self, events: list[Event]) -> None:
        """It is a sink: called on the engine thread."""
        self.loop.call_soon_threadsafe(self.arrive, events)

    def arrive(self, events: list[Event]) -> None:
        """Events have come in; on the loop's thread."""
        self._events.extend(events)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if not self._events and not await self._wait():
            raise StopAsyncIteration
        return self._take()

    async def batch(self) -> list[Event]:
        """All events that are there, waiting for at least one; empty when every task has ended or was cancelled."""
        if not self._events:
            await self._wait()
        return [self._take() for _ in range(len(self._events))]

    def cancel(self) -> None:
        """Cancel what is not finished; synchronous, from the loop's thread."""
        if self._open:
            self._thread.cancel(list(self._open))
            self._open.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> Event:
        event = self._events.popleft()
        if isinstance(event, End):
            self._open.discard(event.task_id)
        return event

    async def _wait(self) -> bool:
        """Wait for events; False if none will come."""
        while not self._events and self._open:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return bool(self._events)
