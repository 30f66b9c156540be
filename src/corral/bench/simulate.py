"""The scheduler under a virtual clock: what a policy's settings do to many users, in milliseconds instead of minutes.

The engine is the one that serves; the model and the time of a forward pass are simulated.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from corral.bench.load import BenchError, Stream
from corral.bench.report import Figures, summarise
from corral.bench.text import words
from corral.config import ContextConfig, EngineConfig, n_rows_for
from corral.engine.core import Engine
from corral.events import Chunk, Event, Failed, Finished
from corral.ids import TaskId, Token
from corral.ports import Tokenizer
from corral.sim.clock import VirtualClock
from corral.sim.model import SimModel, SimSpec
from corral.tasks import Limits, Sampling, Task


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a prompt of ``n_shared`` tokens that others have too, then ``n_own``, at ``at_ms``."""

    at_ms: float
    n_shared: int
    n_own: int
    n_predict: int
    prefix: int = 0


def decode(users: int, draw: random.Random) -> list[Arrival]:
    return [Arrival(0.0, 0, 30, 64) for _ in range(users)]


def shared(users: int, draw: random.Random) -> list[Arrival]:
    return [Arrival(0.0, 1000, 25, 16) for _ in range(users)]


def mixed(users: int, draw: random.Random) -> list[Arrival]:
    running = [Arrival(0.0, 0, 30, 160) for _ in range(2)]
    return running + [Arrival(1000.0 + 500.0 * user, 0, 1500, 4) for user in range(users)]


def poisson(users: int, draw: random.Random) -> list[Arrival]:
    at_ms, arrivals = 0.0, []
    for _ in range(8 * users):
        n_shared = 400 if draw.random() < 0.5 else 0
        arrivals.append(Arrival(at_ms, n_shared, 25, 32, draw.randrange(4)))
        at_ms += draw.expovariate(2.0) * 1e3
    return arrivals


TRACES: Mapping[str, Callable[[int, random.Random], list[Arrival]]] = {
    "decode": decode,
    "shared": shared,
    "mixed": mixed,
    "poisson": poisson,
}


@dataclass(frozen=True, slots=True)
class SimConfig:
    """One trial. ``trace`` is a name in ``TRACES``."""

    trace: str
    users: int = 4
    n_slots: int = 4
    n_ctx_slot: int = 2048
    kv_unified: bool = False
    itl_target_ms: float = 250.0
    seed: int = 1


def simulate(config: SimConfig) -> Figures:
    """Figures in virtual time; the same for the same config. Raises BenchError if a request fails."""
    clock = VirtualClock()
    model = SimModel(SimSpec(seed=config.seed, eos_every=0, n_pad=256))
    context = ContextConfig(
        n_ctx=config.n_slots * config.n_ctx_slot,
        n_slots=config.n_slots,
        n_rows=n_rows_for(config.n_slots, config.kv_unified),
        kv_unified=config.kv_unified,
    )
    settings = EngineConfig(n_slots=config.n_slots, itl_target_ms=config.itl_target_ms)
    engine = Engine(model, model.new_context(context, clock), clock, settings)
    try:
        arrivals = TRACES[config.trace](config.users, random.Random(config.seed))
        streams = _Play(engine, clock, arrivals, _tasks(arrivals, model.tokenizer, config.seed)).run()
    finally:
        engine.close()
    return summarise(streams, clock.now_ms() / 1e3, n_decode=engine.snapshot.counters.n_decode)


def _tasks(arrivals: Sequence[Arrival], tokenizer: Tokenizer, seed: int) -> list[Task]:
    def text(n_tokens: int, *labels: object) -> tuple[Token, ...]:
        return tuple(tokenizer.tokenize(words(n_tokens, seed, *labels), add_special=False, parse_special=False))[
            :n_tokens
        ]

    return [
        Task(
            TaskId(number),
            text(arrival.n_shared, "prefix", arrival.prefix) + text(arrival.n_own, "own", number),
            sampling=Sampling(temperature=0.0, ignore_eos=True),
            limits=Limits(n_predict=arrival.n_predict),
        )
        for number, arrival in enumerate(arrivals)
    ]


@dataclass(slots=True)
class _Play:
    """Arrivals put into an engine when their time has come, and what comes out."""

    engine: Engine
    clock: VirtualClock
    arrivals: Sequence[Arrival]
    tasks: Sequence[Task]
    stamps_s: dict[TaskId, list[float]] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)

    def run(self) -> list[Stream]:
        due = deque(sorted(zip(self.arrivals, self.tasks, strict=True), key=lambda pair: pair[0].at_ms))
        while due or self.engine.has_work:
            if not self.engine.has_work:
                self.clock.advance(max(0.0, due[0][0].at_ms - self.clock.now_ms()))
            while due and due[0][0].at_ms <= self.clock.now_ms():
                self.engine.submit((due.popleft()[1],))
            for event in self.engine.step():
                self._take(event)
        return self.streams

    def _take(self, event: Event) -> None:
        now_s = self.clock.now_ms() / 1e3
        match event:
            case Chunk():
                self.stamps_s.setdefault(event.task_id, []).append(now_s)
            case Finished(timings=timings):
                sent_s = self.arrivals[event.task_id].at_ms / 1e3
                stamps = tuple(self.stamps_s.pop(event.task_id, ()))
                n_prompt = timings.n_cached + timings.n_prompt
                self.streams.append(
                    Stream(sent_s, stamps, now_s, timings.n_predicted, event.text, n_prompt, timings.n_cached)
                )
            case Failed(error=error):
                raise BenchError(f"a request failed after {now_s:.3f} simulated seconds: {error}")
            case _:
                pass
