"""The engine thread and its streams: each listener hears of its own tasks, once a step, until the end."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

import pytest

from corral.config import ContextConfig, EngineConfig
from corral.engine import core
from corral.engine.core import Engine
from corral.engine.thread import EngineThread
from corral.errors import ServerError, Unavailable
from corral.events import Chunk, Event, Failed, Finished, Started
from corral.ids import TaskId
from corral.ops import Span
from corral.ports import DecodeStatus
from corral.sim.clock import VirtualClock
from corral.sim.context import SimContext
from corral.sim.model import SimModel, SimSpec
from corral.sim.oracle import solo
from corral.tasks import ControlAction, Limits, Sampling, Task, ThoughtBudget

MODEL = SimModel(SimSpec(eos_every=0))
PROMPT = (97, 98, 99)
WAIT_S = 20


class Gate:
    """Stands before each forward pass; tests open it and see who has come."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.came = threading.Semaphore(0)
        self.error: Exception | None = None

    def stop_at(self, context: SimContext) -> None:
        decode = context.decode

        def gated(spans: Sequence[Span]) -> DecodeStatus:
            self.came.release()
            assert self.is_open.wait(WAIT_S)
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            return decode(spans)

        context.decode = gated  # type: ignore[method-assign]

    def wait_for_pass(self) -> None:
        assert self.came.acquire(timeout=WAIT_S), "no forward pass began"


@contextmanager
def serving(gate: Gate | None = None, n_slots: int = 2) -> Iterator[EngineThread]:
    clock = VirtualClock()
    context = MODEL.new_context(ContextConfig(n_ctx=512, n_slots=n_slots, n_rows=n_slots, n_batch=32), clock)
    if gate is not None:
        gate.stop_at(context)
    thread = EngineThread(Engine(MODEL, context, clock, EngineConfig(n_slots=n_slots, audit=True)))
    thread.start()
    try:
        yield thread
    finally:
        if gate is not None:
            gate.is_open.set()
        thread.stop()


def new_task(thread: EngineThread, n_predict: int = 5) -> Task:
    return Task(thread.new_task_id(), PROMPT, sampling=Sampling(temperature=0), limits=Limits(n_predict))


class Listener:
    """A plain sink; ``calls`` are what it was called with."""

    def __init__(self) -> None:
        self.calls: queue.Queue[list[Event]] = queue.Queue()

    def __call__(self, events: list[Event]) -> None:
        self.calls.put(events)

    def until_end(self, n_tasks: int = 1) -> list[Event]:
        """All events up to the end of so many tasks."""
        heard: list[Event] = []
        while sum(isinstance(e, Finished | Failed) for e in heard) < n_tasks:
            heard += self.calls.get(timeout=WAIT_S)
        return heard


def test_s1_results_go_to_who_asked() -> None:
    with serving() as thread:
        listeners = [Listener() for _ in range(4)]
        tasks = [new_task(thread, n_predict=n) for n in (1, 2, 3, 4)]
        for task, listener in zip(tasks, listeners, strict=True):
            thread.submit([(task,)], listener)
        for task, listener in zip(tasks, listeners, strict=True):
            heard = listener.until_end()
            assert {e.task_id for e in heard} == {task.id}
            assert isinstance(heard[0], Started)
            end = heard[-1]
            assert isinstance(end, Finished)
            assert end.tokens == solo(PROMPT, task.limits.n_predict, model=MODEL)


def test_a_listener_is_called_once_a_step_however_many_of_its_tasks_have_news() -> None:
    with serving(n_slots=4) as thread:
        listener = Listener()
        parent = new_task(thread)
        siblings = [replace(parent, id=thread.new_task_id(), parent=parent.id, index=i) for i in (1, 2, 3)]
        thread.submit([(parent, *siblings)], listener)
        first = listener.calls.get(timeout=WAIT_S)
        assert [e.task_id for e in first if isinstance(e, Started)] == [parent.id, *(s.id for s in siblings)]
        listener.until_end(4)


def test_task_ids_are_never_given_twice() -> None:
    with serving() as thread:
        ids = [thread.new_task_id() for _ in range(100)]
        assert ids == sorted(set(ids))


def test_s2_tasks_and_cancels_get_in_between_steps() -> None:
    gate = Gate()
    with serving(gate) as thread:
        gate.is_open.clear()
        long, other = Listener(), Listener()
        endless = new_task(thread, n_predict=400)
        thread.submit([(endless,)], long)
        gate.wait_for_pass()
        task = new_task(thread)
        thread.submit([(task,)], other)
        thread.cancel([endless.id])
        gate.is_open.set()
        assert isinstance(other.until_end()[-1], Finished)
        assert not any(isinstance(e, Finished | Failed) for call in list(long.calls.queue) for e in call)
        assert thread.snapshot.counters.n_cancelled == 1


def test_s3_reads_are_answered_during_a_forward_pass() -> None:
    gate = Gate()
    with serving(gate) as thread:
        gate.is_open.clear()
        thread.submit([(new_task(thread),)], Listener())
        gate.wait_for_pass()
        thread.submit([(new_task(thread),)], Listener())
        assert thread.snapshot.n_cells == 512
        assert thread.snapshot.waiting == (TaskId(1),), "the pass has not ended, so nothing has been committed"
        gate.is_open.set()


def test_s7_a_task_cancelled_before_it_was_read_is_never_begun() -> None:
    gate = Gate()
    with serving(gate) as thread:
        gate.is_open.clear()
        first, never, last = Listener(), Listener(), Listener()
        thread.submit([(new_task(thread),)], first)
        gate.wait_for_pass()
        unread = new_task(thread)
        thread.submit([(unread,)], never)
        thread.cancel([unread.id])
        thread.submit([(new_task(thread),)], last)
        gate.is_open.set()
        last.until_end()
        first.until_end()
        assert never.calls.empty()


def test_a_step_that_raises_ends_the_tasks_and_not_the_thread() -> None:
    gate = Gate()
    with serving(gate) as thread:
        gate.error = RuntimeError("a fault of ours")
        listener = Listener()
        thread.submit([(new_task(thread),)], listener)
        end = listener.until_end()[-1]
        assert isinstance(end, Failed)
        assert isinstance(end.error, ServerError)
        assert "a fault of ours" not in str(end.error), "the inside is for the log, not for the user"
        again = Listener()
        thread.submit([(new_task(thread),)], again)
        finished = again.until_end()[-1]
        assert isinstance(finished, Finished)
        assert finished.tokens == solo(PROMPT, 5, model=MODEL)


def broken(*_: object) -> NoReturn:
    raise RuntimeError("a fault of ours")


def told_of_a_fault(listener: Listener) -> None:
    end = listener.until_end()[-1]
    assert isinstance(end, Failed)
    assert isinstance(end.error, ServerError)
    assert "a fault of ours" not in str(end.error)


def served(thread: EngineThread) -> None:
    listener = Listener()
    thread.submit([(new_task(thread),)], listener)
    end = listener.until_end()[-1]
    assert isinstance(end, Finished)
    assert end.tokens == solo(PROMPT, 5, model=MODEL)


def test_a_task_that_cannot_be_taken_in_for_a_fault_of_ours_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with serving(gate) as thread:
        gate.is_open.clear()
        running, bad = Listener(), Listener()
        thread.submit([(new_task(thread),)], running)
        gate.wait_for_pass()
        with monkeypatch.context() as patch:
            patch.setattr(core, "new_row_sampler", broken)
            thread.submit([(new_task(thread),)], bad)
            gate.is_open.set()
            told_of_a_fault(bad)
        assert isinstance(running.until_end()[-1], Finished)
        served(thread)


def test_a_fault_in_the_books_of_rows_ends_the_tasks_and_not_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as thread, monkeypatch.context() as patch:
        books, decode = thread._engine.books, SimContext.decode

        def spoiling(context: SimContext, spans: Sequence[Span]) -> DecodeStatus:
            for lease in [s.lease for s in books.slots if s.lease]:
                books.ledger.release(lease)
            return decode(context, spans)

        patch.setattr(SimContext, "decode", spoiling)
        listener = Listener()
        thread.submit([(new_task(thread),)], listener)
        told_of_a_fault(listener)
        patch.undo()
        served(thread)


def test_whatever_ends_the_thread_everybody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with serving(gate) as thread:
        gate.is_open.clear()
        running, unread = Listener(), Listener()
        thread.submit([(new_task(thread),)], running)
        gate.wait_for_pass()
        monkeypatch.setattr(Engine, "step", broken)
        monkeypatch.setattr(Engine, "fail_all", broken)
        thread.submit([(new_task(thread),)], unread)
        gate.is_open.set()
        told_of_a_fault(running)
        told_of_a_fault(unread)
        with pytest.raises(Unavailable):
            thread.submit([(new_task(thread),)], Listener())


def test_stopping_with_time_lets_running_tasks_finish() -> None:
    with serving() as thread:
        listener = Listener()
        thread.submit([(new_task(thread, n_predict=50),)], listener)
        thread.stop(drain_s=WAIT_S)
        assert isinstance(listener.until_end()[-1], Finished)
        with pytest.raises(Unavailable) as refused:
            thread.submit([(new_task(thread),)], listener)
        assert refused.value.retry_after_s


def test_stopping_without_time_fails_what_runs_and_what_waits() -> None:
    gate = Gate()
    with serving(gate, n_slots=1) as thread:
        gate.is_open.clear()
        listener = Listener()
        for _ in range(3):
            thread.submit([(new_task(thread, n_predict=400),)], listener)
        gate.wait_for_pass()
        stopper = threading.Thread(target=thread.stop)
        stopper.start()
        gate.is_open.set()
        stopper.join(WAIT_S)
        ends = [e for e in listener.until_end(3) if isinstance(e, Failed)]
        assert len(ends) == 3
        assert all(isinstance(e.error, Unavailable) for e in ends)


# --- streams ---------------------------------------------------------------------------------------------------------


def run_bounded(body: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(body, WAIT_S))


def test_a_stream_gives_its_tasks_events_and_ends_by_itself() -> None:
    async def body() -> None:
        task = new_task(thread)
        async with thread.stream([(task,)]) as events:
            heard = [event async for event in events]
        assert isinstance(heard[0], Started)
        assert isinstance(heard[-1], Finished)
        assert "".join(e.text for e in heard if isinstance(e, Chunk)) == heard[-1].text

    with serving() as thread:
        run_bounded(body())


def test_many_streams_on_one_loop_do_not_mix() -> None:
    async def one(n_predict: int) -> None:
        async with thread.stream([(new_task(thread, n_predict),)]) as events:
            end = [event async for event in events][-1]
        assert isinstance(end, Finished)
        assert end.tokens == solo(PROMPT, n_predict, model=MODEL)

    async def body() -> None:
        await asyncio.gather(*(one(n) for n in range(1, 20)))

    with serving() as thread:
        run_bounded(body())


def test_s26_leaving_a_stream_cancels_what_is_not_finished() -> None:
    async def body() -> None:
        async with thread.stream([(new_task(thread, 400),)]) as events:
            async for event in events:
                if isinstance(event, Chunk):
                    break
        async with thread.stream([(new_task(thread),)]) as events:
            assert isinstance([e async for e in events][-1], Finished)
        assert thread.snapshot.counters.n_cancelled == 1
        assert thread.snapshot.n_busy == 0

    with serving(n_slots=1) as thread:
        run_bounded(body())


def test_s26_a_reader_that_is_cancelled_cancels_its_task() -> None:
    gate = Gate()

    async def read() -> None:
        async with thread.stream([(new_task(thread, 400),)]) as events:
            async for _ in events:
                pass

    async def body() -> None:
        gate.is_open.clear()
        reader = asyncio.create_task(read())
        await asyncio.to_thread(gate.wait_for_pass)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        gate.is_open.set()
        async with thread.stream([(new_task(thread),)]) as events:
            assert isinstance([e async for e in events][-1], Finished)
        assert thread.snapshot.counters.n_cancelled == 1

    with serving(gate, n_slots=1) as thread:
        run_bounded(body())


def test_a_batch_holds_all_that_came_since_the_last() -> None:
    async def body() -> None:
        heard: list[Event] = []
        async with thread.stream([(new_task(thread),)]) as events:
            while batch := await events.batch():
                heard += batch
        assert isinstance(heard[0], Started)
        assert isinstance(heard[-1], Finished)

    with serving() as thread:
        run_bounded(body())


def test_s7_control_acts_right_after_the_pass_that_runs() -> None:
    gate = Gate()
    thoughts = ThoughtBudget(-1, ("<t>",), ("</t>",), tuple(b"</t>"), n_open=0, can_end=True)

    async def body(thread: EngineThread) -> None:
        sampling = Sampling(temperature=0, thoughts=thoughts)
        task = replace(new_task(thread, n_predict=40), sampling=sampling, request_id="chatcmpl-1")
        gate.is_open.clear()
        async with thread.stream([(task,)]) as events:
            await asyncio.to_thread(gate.wait_for_pass)
            asked = asyncio.create_task(thread.control(ControlAction(thread.new_task_id(), "chatcmpl-1")))
            await asyncio.sleep(0)
            gate.is_open.set()
            assert (await asked).fault == ""
            (end,) = [event async for event in events if isinstance(event, Finished)]
        assert end.tokens[1:5] == thoughts.forced, "the first pass ran while it was asked for"

    with serving(gate) as thread:
        run_bounded(body(thread))


def test_events_for_a_loop_that_is_closed_harm_nobody() -> None:
    gate = Gate()

    async def leave() -> None:
        gate.is_open.clear()
        thread.stream([(new_task(thread, 3),)])
        await asyncio.to_thread(gate.wait_for_pass)

    with serving(gate) as thread:
        run_bounded(leave())
        gate.is_open.set()
        listener = Listener()
        thread.submit([(new_task(thread),)], listener)
        assert isinstance(listener.until_end()[-1], Finished)
