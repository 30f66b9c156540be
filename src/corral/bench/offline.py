"""The engine without a server: what a step costs besides the forward pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corral.bench.load import BenchError
from corral.bench.report import Figures
from corral.bench.text import words
from corral.config import ContextConfig, EngineConfig, ModelConfig, n_rows_for
from corral.engine.state import Counters
from corral.engine.thread import EngineThread
from corral.errors import CorralError
from corral.events import Chunk, Event, Failed, Finished
from corral.ids import TaskId
from corral.ports import Tokenizer
from corral.runtime import Runtime
from corral.tasks import Constraint, ConstraintKind, Limits, Sampling, Task


@dataclass(frozen=True, slots=True)
class OfflineConfig:
    """``rows`` streams of ``steps`` tokens each, all at once; ``json_schema`` is what they obey."""

    model: Path
    rows: int = 16
    steps: int = 200
    prompt_words: int = 24
    n_threads: int = 2
    n_ctx_row: int = 2048
    kv_unified: bool = False
    sampled: bool = False
    seed: int = 1
    json_schema: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """The engine's counters at a moment of the wall clock."""

    at_ms: float
    counters: Counters


class SteadyState:
    """Listens on the engine thread and marks the step after all streams have begun and that which ends the first.

    Between the two every step computes one token of each row and nothing else.
    """

    def __init__(self, n_rows: int, counters: Callable[[], Counters]) -> None:
        self._n_rows = n_rows
        self._counters = counters
        self._begun: set[TaskId] = set()
        self._n_ended = 0
        self.start: Mark | None = None
        self.end: Mark | None = None
        self.error: CorralError | None = None
        self.done = threading.Event()

    def __call__(self, events: list[Event]) -> None:
        # A step later than the last begin: the time of a step may be published with the next one, and the step that
        # begins the last stream is a prefill.
        if self.start is None and len(self._begun) == self._n_rows:
            self.start = self._mark()
        for event in events:
            match event:
                case Chunk():
                    self._begun.add(event.task_id)
                case Finished():
                    self._finish()
                case Failed():
                    self.error = event.error
                    self.done.set()
                case _:
                    pass

    def _finish(self) -> None:
        self.end = self.end or self._mark()
        self._n_ended += 1
        if self._n_ended == self._n_rows:
            self.done.set()

    def _mark(self) -> Mark:
        return Mark(time.perf_counter() * 1e3, self._counters())


def measure(config: OfflineConfig, limit_s: float = 600.0) -> Figures:
    """Load the model, run, free it. Raises BenchError, LoadError."""
    runtime = Runtime.open(
        ModelConfig(config.model),
        ContextConfig(
            n_ctx=config.rows * config.n_ctx_row,
            n_slots=config.rows,
            n_rows=n_rows_for(config.rows, config.kv_unified),
            n_threads=config.n_threads,
            n_threads_batch=config.n_threads,
            kv_unified=config.kv_unified,
        ),
        EngineConfig(n_slots=config.rows),
    )
    try:
        return steady_figures(run(runtime.engine, runtime.model.tokenizer, config, limit_s))
    finally:
        runtime.close()


def run(engine: EngineThread, tokenizer: Tokenizer, config: OfflineConfig, limit_s: float) -> SteadyState:
    """Submit all streams and wait for their ends. Raises BenchError."""
    steady = SteadyState(config.rows, lambda: engine.snapshot.counters)
    tasks = [_task(engine.new_task_id(), tokenizer, config, row) for row in range(config.rows)]
    engine.submit([(task,) for task in tasks], steady)
    if not steady.done.wait(limit_s):
        engine.cancel([task.id for task in tasks])
        raise BenchError(f"the engine did not finish within {limit_s:g} s")
    return steady


def _task(task_id: TaskId, tokenizer: Tokenizer, config: OfflineConfig, row: int) -> Task:
    prompt = tokenizer.tokenize(
        words(config.prompt_words, config.seed, "engine", row), add_special=True, parse_special=False
    )
    temperature = 0.8 if config.sampled else 0.0
    constraint = Constraint(ConstraintKind.JSON_SCHEMA, config.json_schema) if config.json_schema else None
    sampling = Sampling(temperature=temperature, seed=row + 1, ignore_eos=True, constraint=constraint)
    return Task(task_id, tuple(prompt), sampling=sampling, limits=Limits(n_predict=config.steps))


def steady_figures(steady: SteadyState) -> Figures:
    """Means over the steps between both marks.

    ``outside_ms`` is the wall time of a step besides the forward pass and ``outside_share`` its part of the whole:
    planning, sampling and bookkeeping (what the engine counts as the step), then ``loop_ms``, what its thread does
    between steps. Raises BenchError if the streams never ran all together.
    """
    if steady.error is not None:
        raise steady.error
    if steady.start is None or steady.end is None or steady.end.counters.n_decode <= steady.start.counters.n_decode:
        raise BenchError("the streams never ran all at the same time; use more --steps")
    a, b = steady.start.counters, steady.end.counters
    n_steps = b.n_decode - a.n_decode
    wall_ms = steady.end.at_ms - steady.start.at_ms
    step_ms, forward_ms = b.step_ms - a.step_ms, b.forward_ms - a.forward_ms
    return {
        "gen_tok_s": round((b.n_predicted - a.n_predicted) / wall_ms * 1e3, 1),
        "steps": n_steps,
        "step_ms": round(step_ms / n_steps, 3),
        "forward_ms": round(forward_ms / n_steps, 3),
        "outside_ms": round((wall_ms - forward_ms) / n_steps, 3),
        "outside_share": round((wall_ms - forward_ms) / wall_ms, 4),
        "loop_ms": round((wall_ms - step_ms) / n_steps, 3),
    }
