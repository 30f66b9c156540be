"""Context shift and chunk reuse on libllama: what is moved still makes sense, and nobody else is given it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from corral.config import ContextConfig, EngineConfig, ModelConfig
from corral.engine.core import Engine
from corral.events import Failed, Finished
from corral.ids import RowId, TaskId, Token
from corral.llama.context import LlamaContext
from corral.llama.model import LlamaModel
from corral.ops import Shift, Span, Trim
from corral.runtime import SystemClock
from corral.tasks import Limits, Sampling, Task

pytestmark = pytest.mark.timeout(900)

GREEDY = Sampling(temperature=0.0, ignore_eos=True)
EXACT = ContextConfig(n_threads=1, n_threads_batch=1, type_k="f32", type_v="f32", flash_attn=False)
TEXT = (
    "A lighthouse stands on the cliff. Every evening the keeper climbs the stairs and lights the lamp. Ships far out "
    "on the sea see the light and know where the rocks are. In winter the storms are long and the keeper reads old "
    "books by the stove. In summer children come up from the village and ask him to tell them about the ships. He "
    "tells them about the sailor who came home after ten years and found his house"
)


class Served:
    """An engine driven to the end of all its tasks."""

    def __init__(self, model: LlamaModel, context: ContextConfig, **kinds: bool) -> None:
        settings = EngineConfig(n_slots=context.n_slots, audit=True, **kinds)
        self.engine = Engine(model, model.new_context(context), SystemClock(), settings)
        self._n_tasks = 0

    def run(self, prompt: tuple[Token, ...], n_predict: int, n: int = 1, **fields: int) -> list[Finished]:
        ids = [TaskId(self._n_tasks + i) for i in range(n)]
        self._n_tasks += n
        limits = Limits(n_predict=n_predict)
        first = Task(ids[0], prompt, sampling=GREEDY, limits=limits, **fields)
        self.engine.submit((first, *(replace(first, id=i, index=i - ids[0], parent=ids[0]) for i in ids[1:])))
        ends: dict[TaskId, Finished] = {}
        while self.engine.has_work:
            for event in self.engine.step():
                assert not isinstance(event, Failed), event
                if isinstance(event, Finished):
                    ends[event.task_id] = event
        return [ends[i] for i in ids]


@pytest.fixture(scope="module")
def smollm2(smollm2_f32: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(ModelConfig(smollm2_f32))
    yield model
    model.close()


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(ModelConfig(tiny_model))
    yield model
    model.close()


def tokens_of(model: LlamaModel, text: str) -> tuple[Token, ...]:
    return tuple(model.tokenizer.tokenize(text, add_special=True, parse_special=False))


def next_token(context: LlamaContext, tokens: tuple[Token, ...], keep: int, discard: int) -> NDArray[np.float64]:
    """Probabilities after all but the last of ``tokens`` were computed, shifted, and the last one came."""
    row = RowId(0)
    context.apply(Trim(row, 0))
    context.decode([Span(row, 0, tokens[:-1])])
    if discard:
        context.apply(Shift(row, keep, discard))
    context.decode([Span(row, len(tokens) - 1 - discard, tokens[-1:], 1)])
    logits = context.logits()[0].astype(np.float64)
    weights: NDArray[np.float64] = np.exp(logits - logits.max())
    return weights / weights.sum()


def test_s17_after_a_shift_the_model_expects_about_what_it_would_cold(smollm2: LlamaModel) -> None:
    tokens = tokens_of(smollm2, TEXT)
    keep, discard = 4, 40
    context = smollm2.new_context(replace(EXACT, n_ctx=256, n_slots=1, n_rows=1))
    shifted = next_token(context, tokens, keep, discard)
    cold = next_token(context, tokens[:keep] + tokens[keep + discard :], 0, 0)
    context.close()
    overlap = float(np.minimum(shifted, cold).sum())
    assert 0.7 < overlap < 1 - 1e-6, f"{overlap:.3f}: garbage, or not shifted at all"


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_s17_a_real_model_writes_on_and_the_next_user_gets_cold_tokens(smollm2: LlamaModel, unified: bool) -> None:
    prompt = tokens_of(smollm2, TEXT)
    config = replace(EXACT, n_ctx=256 if unified else 512, n_slots=2, n_rows=4 if unified else 2, kv_unified=unified)
    served = Served(smollm2, config, context_shift=True)
    (end,) = served.run(prompt, 190, n_keep=len(prompt) // 2)
    assert (end.truncated, len(end.tokens)) == (True, 190)
    assert served.engine.snapshot.counters.n_shifted > 0
    assert end.text.isascii() and len(set(end.tokens)) > 10
    other = prompt[: len(prompt) - 3]
    (warm,) = served.run(other, 8)
    served.engine.close()
    cold = Served(smollm2, config)
    (expected,) = cold.run(other, 8)
    cold.engine.close()
    assert warm.tokens == expected.tokens


def test_s17_siblings_shift_on_a_real_model(tiny: LlamaModel) -> None:
    """Each may use 1024 cells of the 4096 they share."""
    config = replace(EXACT, n_ctx=4096, n_slots=3, n_rows=8, n_batch=512, n_ubatch=512)
    served = Served(tiny, config, context_shift=True)
    ends = served.run(tuple(range(40, 140)) * 10, 60, n=3)
    served.engine.close()
    assert [(end.truncated, len(end.tokens)) for end in ends] == [(True, 60)] * 3
    assert served.engine.snapshot.counters.n_shifted >= 3


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_s15_chunks_move_on_a_real_model_and_exact_requests_are_exact(tiny: LlamaModel, unified: bool) -> None:
    first, gap, rest = tuple(range(40, 80)), tuple(range(80, 100)), tuple(range(100, 200))
    config = replace(EXACT, n_ctx=1024, n_slots=2, n_rows=4 if unified else 2, kv_unified=unified)
    served = Served(tiny, config)
    served.run(first + gap + rest, 1)
    (moved,) = served.run((*first, *rest, 7), 4, n_cache_reuse=32)
    (exact,) = served.run((*first, *rest, 7), 4)
    served.engine.close()
    cold = Served(tiny, config)
    (expected,) = cold.run((*first, *rest, 7), 4)
    cold.engine.close()
    assert moved.timings.n_cached == len(first + rest)
    assert exact.timings.n_cached <= len(first)
    assert exact.tokens == expected.tokens
