"""The window in which the engine is measured, and its figures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from corral.bench.load import BenchError
from corral.bench.offline import Mark, OfflineConfig, SteadyState, run, steady_figures
from corral.engine.state import Counters
from corral.errors import DecodeFailed
from corral.events import Chunk, Failed, Finished, StopReason, Timings
from corral.ids import SlotId, TaskId
from corral.sim.model import SimModel

TIMINGS = Timings(0, 1, 1.0, 1, 1.0)


def chunk(task: int) -> Chunk:
    return Chunk(TaskId(task), "x", (1,), 1, TIMINGS)


def finished(task: int) -> Finished:
    return Finished(
        TaskId(task), SlotId(0), StopReason.LIMIT, "", "x", (1,), (), TIMINGS, 2,
        truncated=False, has_new_line=False, seed=0,
    )  # fmt: skip


class Steps:
    """An engine whose every step takes 10 ms, 9 of them in the forward pass, and gives two tokens."""

    def __init__(self, *steps: list[object]) -> None:
        self.steps = steps
        self.tasks: list[TaskId] = []
        self.snapshot = SimpleNamespace(counters=Counters())
        self.cancelled: list[TaskId] = []

    def new_task_id(self) -> TaskId:
        return TaskId(len(self.tasks))

    def submit(self, groups, sink) -> None:
        self.groups = groups
        for n, events in enumerate(self.steps, start=1):
            counters = Counters(n_decode=n, n_predicted=2 * n, step_ms=10.0 * n, forward_ms=9.0 * n)
            self.snapshot = SimpleNamespace(counters=counters)
            sink(events)

    def cancel(self, tasks) -> None:
        self.cancelled = list(tasks)


def listen(*steps: list[object]) -> SteadyState:
    return run(Steps(*steps), SimModel().tokenizer, OfflineConfig("m", rows=2, steps=4), limit_s=0.0)


def test_the_window_is_from_the_step_after_the_last_begin_to_the_first_end():
    both = [chunk(0), chunk(1)]
    steady = listen([chunk(0)], both, both, both, [finished(0), chunk(1)], [finished(1)])
    assert (steady.start.counters.n_decode, steady.end.counters.n_decode) == (3, 5)


def test_figures_are_means_of_the_window():
    steady = SteadyState(1, Counters)
    steady.start = Mark(100.0, Counters(n_decode=2, n_predicted=4, step_ms=20.0, forward_ms=18.0))
    steady.end = Mark(132.0, Counters(n_decode=5, n_predicted=10, step_ms=50.0, forward_ms=45.0))
    figures = steady_figures(steady)
    assert figures["steps"] == 3
    assert (figures["step_ms"], figures["forward_ms"]) == (10.0, 9.0)
    assert figures["outside_ms"] == pytest.approx(5 / 3, abs=1e-3)
    assert figures["outside_share"] == pytest.approx(5 / 32, abs=1e-4)
    assert figures["loop_ms"] == pytest.approx(2 / 3, abs=1e-3)
    assert figures["gen_tok_s"] == pytest.approx(6 / 0.032)


def test_streams_that_never_ran_together_have_no_figures():
    steady = listen([chunk(0)], [finished(0)], [chunk(1)], [finished(1)])
    with pytest.raises(BenchError, match="more --steps"):
        steady_figures(steady)


def test_a_failed_stream_fails_the_measurement():
    steady = listen([chunk(0), chunk(1)], [Failed(TaskId(0), DecodeFailed("out of room"))])
    with pytest.raises(DecodeFailed):
        steady_figures(steady)


def test_an_engine_that_does_not_finish_is_left():
    engine = Steps([chunk(0), chunk(1)])
    with pytest.raises(BenchError, match="did not finish"):
        run(engine, SimModel().tokenizer, OfflineConfig("m", rows=2, steps=4), limit_s=0.0)
    assert len(engine.cancelled) == 2


def test_streams_have_prompts_of_their_own_and_run_to_the_last_step():
    engine = Steps([chunk(0), chunk(1)], [finished(0), finished(1)])
    run(engine, SimModel().tokenizer, OfflineConfig("m", rows=2, steps=7), limit_s=0.0)
    (first,), (second,) = engine.groups
    assert first.prompt != second.prompt
    assert first.limits.n_predict == 7
    assert first.sampling.ignore_eos
