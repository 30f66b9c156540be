"""Which models the composition root takes, and how."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from corral.config import ContextConfig, EngineConfig, ModelConfig
from corral.errors import LoadError
from corral.events import Event, Failed, Finished
from corral.ids import Token
from corral.runtime import Runtime
from corral.tasks import Limits, Sampling, Task

CONTEXT = ContextConfig(n_ctx=512, n_slots=2, n_rows=4, n_batch=64, n_ubatch=32, n_threads=1, n_threads_batch=1)


def answer(runtime: Runtime, prompt: tuple[Token, ...]) -> Finished:
    """The end of one greedy task of 8 tokens."""
    from queue import SimpleQueue

    ends: SimpleQueue[Event] = SimpleQueue()
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    task = Task(runtime.engine.new_task_id(), prompt, sampling=sampling, limits=Limits(n_predict=8))
    runtime.engine.submit([(task,)], lambda events: [ends.put(e) for e in events if isinstance(e, Finished | Failed)])
    end = ends.get(timeout=60)
    assert isinstance(end, Finished), end
    return end


def test_a_sliding_window_model_keeps_its_whole_context(
    tiny_window_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut back below its window such a memory would answer wrongly: prefixes are reused on the full one only."""
    with caplog.at_level(logging.WARNING, "corral.runtime"):
        runtime = Runtime.open(ModelConfig(tiny_window_model), CONTEXT, EngineConfig(n_slots=2, audit=True))
    try:
        assert runtime.traits.window_cells == runtime.traits.n_cells
        assert "sliding window of 16" in caplog.text
        prompt = tuple(range(20, 80))
        first = answer(runtime, prompt)
        answer(runtime, prompt[:40] + tuple(range(100, 120)))
        again = answer(runtime, prompt)
        assert again.tokens == first.tokens
        assert again.timings.n_cached > 0
    finally:
        runtime.close()


def test_a_recurrent_model_is_refused_in_one_line(tiny_recurrent_model: Path) -> None:
    with pytest.raises(LoadError, match="recurrent and hybrid models are not supported yet"):
        Runtime.open(ModelConfig(tiny_recurrent_model), CONTEXT, EngineConfig(n_slots=2))
