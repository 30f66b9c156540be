"""A real model: a task that had to leave its slot in the middle of its answer writes what it would have written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from corral.config import ContextConfig, EngineConfig, ModelConfig, n_rows_for
from corral.engine.core import Engine
from corral.events import Failed, Finished
from corral.ids import TaskId, Token
from corral.llama.model import LlamaModel
from corral.runtime import SystemClock
from corral.tasks import Limits, Sampling, Task

GREEDY = Sampling(temperature=0.0, ignore_eos=True)
DRAWN = Sampling(temperature=1.0, top_k=40, repeat_penalty=1.3, seed=11, ignore_eos=True)
"""Penalties and random numbers are a state that has to come along."""


def open_engine(model: LlamaModel, unified: bool) -> Engine:
    """One slot, and nothing that rounds with the company of a row."""
    config = ContextConfig(
        n_ctx=512,
        n_slots=1,
        n_rows=n_rows_for(1, unified),
        kv_unified=unified,
        type_k="f32",
        type_v="f32",
        flash_attn=False,
        n_threads=1,
        n_threads_batch=1,
    )
    return Engine(model, model.new_context(config), SystemClock(), EngineConfig(n_slots=1, min_reuse=1, audit=True))


def words(seed: int, n: int = 50) -> tuple[Token, ...]:
    return tuple(random.Random(seed).choices(range(10, 250), k=n))


def task(i: int, sampling: Sampling, priority: int = 0) -> Task:
    return Task(TaskId(i), words(i), sampling=sampling, limits=Limits(n_predict=40), priority=priority)


def ends(engine: Engine, *, urgent_at: frozenset[int] = frozenset()) -> dict[TaskId, Finished]:
    """Step to the end; at each of these steps an urgent request comes in."""
    found: dict[TaskId, Finished] = {}
    step = 0
    while engine.has_work:
        step += 1
        if step in urgent_at:
            engine.submit((task(100 + step, GREEDY, priority=5),))
        for event in engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                found[event.task_id] = event
    return found


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_n5_a_held_task_writes_what_it_would_undisturbed(tiny_model: Path, unified: bool, sampling: Sampling) -> None:
    model = LlamaModel.load(ModelConfig(tiny_model))
    answers = []
    for urgent_at in (frozenset[int](), frozenset({5, 70, 71})):
        engine = open_engine(model, unified)
        engine.submit((task(1, sampling),))
        found = ends(engine, urgent_at=urgent_at)
        answers.append(found[TaskId(1)])
        engine.close()
    undisturbed, held = answers
    assert held.tokens == undisturbed.tokens
    assert held.text == undisturbed.text
    assert (undisturbed.timings.n_parked, held.timings.n_parked) == (0, 2)
