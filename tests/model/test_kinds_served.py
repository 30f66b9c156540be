"""The engine on real libllama over every kind of memory: whoever comes, goes or is parked, an answer is that of a cold
run alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.model.test_kinds import CLOSE, KINDS

from corral.config import ContextConfig, EngineConfig, ModelConfig
from corral.engine.core import Engine
from corral.events import Failed, Finished
from corral.ids import RowId, TaskId, Token
from corral.llama.context import LlamaContext
from corral.llama.model import LlamaModel
from corral.ops import Span, Trim
from corral.ports import DecodeStatus
from corral.runtime import SystemClock
from corral.tasks import Limits, Sampling, Task

N_SLOTS, N_NEW, EOS = 3, 30, 2
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
STEMS = [tuple(random.Random(i).choices(range(3, 354), k=120)) for i in range(2)]


def shape(unified: bool, full: bool, n_slots: int = N_SLOTS, n_batch: int = 64) -> ContextConfig:
    """256 cells for all on unified KV, for each on split KV: for three that need up to 155 that is not enough."""
    return ContextConfig(
        n_ctx=256 if unified else 256 * n_slots,
        n_slots=n_slots,
        n_rows=n_slots + 2 * unified,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_threads=1,
        n_threads_batch=1,
        kv_unified=unified,
        flash_attn=False,
        type_k="f32",
        type_v="f32",
        swa_full=full,
    )


@dataclass
class House:
    """An engine, what was asked of it and what came of it."""

    engine: Engine
    draw: random.Random
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    ends: dict[TaskId, Finished] = field(default_factory=dict)
    cancelled: set[TaskId] = field(default_factory=set)

    def submit(self) -> None:
        """One to three answers to a prompt that begins like others, or the next turn of a conversation."""
        n, first = self.draw.choice([1, 1, 2, 3]), len(self.tasks)
        stem = self.draw.choice(STEMS)[: self.draw.randrange(20, 121)]
        if self.ends and self.draw.random() < 0.3:
            end = self.draw.choice([*self.ends.values()])
            stem = (self.tasks[end.task_id].prompt + end.tokens)[:110]
        prompt = (*stem, *self.draw.choices(range(3, 354), k=5))
        priority, parent = self.draw.choice([0, 0, 0, 5]), TaskId(first)
        group = tuple(
            Task(
                TaskId(first + i),
                prompt,
                sampling=GREEDY,
                limits=Limits(n_predict=N_NEW),
                priority=priority,
                index=i,
                parent=parent if i else None,
                borders=(20, len(stem)),
            )
            for i in range(n)
        )
        self.tasks |= {task.id: task for task in group}
        self.engine.submit(group)

    def cancel(self) -> None:
        left = sorted(self.tasks.keys() - self.ends.keys() - self.cancelled)
        if left:
            gone = self.draw.choice(left)
            self.cancelled.add(gone)
            self.engine.cancel([gone])

    def step(self) -> None:
        for event in self.engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                self.ends[event.task_id] = event


def assert_as_alone(alone: LlamaContext, prompt: tuple[Token, ...], said: tuple[Token, ...]) -> None:
    """Each token is the best one after those before it, in one cold pass over all."""
    alone.apply(Trim(RowId(0), 0))
    assert alone.decode([Span(RowId(0), 0, (prompt + said)[:-1], len(said))]) is DecodeStatus.OK
    logits = alone.logits().copy()
    logits[:, EOS] = -np.inf
    lag = logits.max(axis=1) - logits[np.arange(len(said)), said]
    assert (lag < CLOSE).all(), f"{lag.argmax()} of {said}"


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_company_as_alone(kind: str, unified: bool, kinds_of_models: dict[str, Path]) -> None:
    model = LlamaModel.load(ModelConfig(kinds_of_models[kind.removesuffix("-full")]))
    full = kind.endswith("-full")
    settings = EngineConfig(n_slots=N_SLOTS, min_checkpoint=8, checkpoint_min_step=16, min_reuse=1, audit=True)
    house = House(Engine(model, model.new_context(shape(unified, full)), SystemClock(), settings), random.Random(7))
    for _ in range(14):
        house.submit()
        for _ in range(house.draw.choice([1, 4, 30])):
            house.step()
        if house.draw.random() < 0.4:
            house.cancel()
    while house.engine.has_work:
        house.step()
    counters = house.engine.snapshot.counters
    house.engine.close()
    assert counters.n_parked and counters.n_prompt_cached and counters.n_cancelled
    alone = model.new_context(shape(False, False, n_slots=1, n_batch=256))
    for task_id, end in house.ends.items():
        assert_as_alone(alone, house.tasks[task_id].prompt, end.tokens)
    model.close()
