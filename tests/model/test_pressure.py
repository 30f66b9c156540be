"""A real model with less memory than everybody wants: nobody fails, and nothing is computed twice."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from corral.config import ContextConfig, EngineConfig, ModelConfig, n_rows_for
from corral.engine.core import Engine
from corral.events import Failed, Finished
from corral.ids import TaskId, Token
from corral.llama.model import LlamaModel
from corral.runtime import SystemClock
from corral.tasks import Limits, Sampling, Task

pytestmark = pytest.mark.timeout(900)

LONG = os.environ.get("CORRAL_LONG") == "1"
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
EXACT = {"type_k": "f32", "type_v": "f32", "flash_attn": False}


@dataclass
class Served:
    """An engine driven step by step. ``max_snapshot_bytes`` is the most that RAM held after any step."""

    engine: Engine
    ends: dict[TaskId, Finished] = field(default_factory=dict)
    n_tasks: int = 0
    max_snapshot_bytes: int = 0

    def submit(self, prompt: tuple[Token, ...], n_predict: int, n: int = 1) -> list[TaskId]:
        ids = [TaskId(self.n_tasks + i) for i in range(n)]
        self.n_tasks += n
        self.engine.submit(
            tuple(
                Task(
                    task,
                    prompt,
                    sampling=GREEDY,
                    limits=Limits(n_predict=n_predict),
                    index=i,
                    parent=ids[0] if i else None,
                )
                for i, task in enumerate(ids)
            )
        )
        return ids

    def drain(self) -> None:
        while self.engine.has_work:
            for event in self.engine.step():
                assert not isinstance(event, Failed), event
                if isinstance(event, Finished):
                    self.ends[event.task_id] = event
            self.max_snapshot_bytes = max(self.max_snapshot_bytes, self.engine.snapshot.snapshot_bytes)
        assert self.engine.snapshot.n_leased == 0

    def answer(self, prompt: tuple[Token, ...], n_predict: int) -> Finished:
        (task,) = self.submit(prompt, n_predict)
        self.drain()
        return self.ends[task]


@contextlib.contextmanager
def serving(
    model: LlamaModel, *, n_ctx: int, n_slots: int, unified: bool, cache_ram_bytes: int = -1, **kinds: object
) -> Iterator[Served]:
    config = ContextConfig(
        n_ctx=n_ctx,
        n_slots=n_slots,
        n_rows=n_rows_for(n_slots, unified),
        kv_unified=unified,
        n_threads=1,
        n_threads_batch=1,
        **kinds,  # type: ignore[arg-type]
    )
    settings = EngineConfig(n_slots=n_slots, cache_ram_bytes=cache_ram_bytes, audit=True)
    engine = Engine(model, model.new_context(config), SystemClock(), settings)
    yield Served(engine)
    engine.close()


def words(n_tokens: int, seed: int) -> tuple[Token, ...]:
    """Tokens of letters and words; which ones depends on the seed."""
    return tuple(random.Random(seed).choices(range(1000, 20_000), k=n_tokens))


@pytest.fixture(scope="module")
def quantised(smollm2_q4_0: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(ModelConfig(smollm2_q4_0))
    yield model
    model.close()


def test_eight_answers_to_a_long_prompt_fit_where_two_copies_of_it_would_not(quantised: LlamaModel) -> None:
    """llama.cpp#26204: -c 1536 -np 8 --kv-unified, n = 8."""
    with serving(quantised, n_ctx=1536, n_slots=8, unified=True) as served:
        ids = served.submit(words(1000, 1), 32, n=8)
        served.drain()
        assert [served.ends[i].timings.n_predicted for i in ids] == [32] * 8
        assert {served.ends[i].tokens for i in ids} == {served.ends[ids[0]].tokens}
        counters = served.engine.snapshot.counters
        assert counters.n_prompt == 1000
        assert counters.n_parked == counters.n_saved == counters.n_evicted == 0
        assert counters.n_copied == 7


def test_more_text_than_cells_and_every_answer_is_the_one_written_alone(smollm2_f32: Path) -> None:
    """llama.cpp#10072, llama.cpp#29090, llama.cpp#23720: each request alone fits, all together by far do not.

    Of 8 x 210 tokens 512 fit, or 256 of 8 x 80 unless CORRAL_LONG=1.
    """
    n_ctx, n_predict = (512, 200) if LONG else (256, 70)
    prompts: Sequence[tuple[Token, ...]] = [words(10, seed) for seed in range(8)]
    model = LlamaModel.load(ModelConfig(smollm2_f32))
    with serving(model, n_ctx=n_ctx, n_slots=1, unified=False, **EXACT) as solo:
        alone = [solo.answer(prompt, n_predict).tokens for prompt in prompts[-4:]]
    with serving(model, n_ctx=n_ctx, n_slots=4, unified=True, **EXACT) as served:
        ids = [served.submit(prompt, n_predict)[0] for prompt in prompts]
        served.drain()
        ends = [served.ends[i] for i in ids]
        counters = served.engine.snapshot.counters
    model.close()
    assert [end.timings.n_predicted for end in ends] == [n_predict] * 8
    assert [end.tokens for end in ends[-4:]] == alone
    assert counters.n_parked > 0
    assert counters.n_failed == 0
    assert counters.n_prompt == 80, "a prompt was computed twice"


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_conversations_that_return_find_their_past_in_ram_within_its_budget(
    quantised: LlamaModel, unified: bool
) -> None:
    """llama.cpp#22756, llama.cpp#23561: 24 conversations on 4 slots and 1,024 cells, RAM for two thirds of them."""
    n_prompt, n_new = 120, 4
    prompts = [words(n_prompt, 100 + i) for i in range(24)]
    with serving(quantised, n_ctx=1024, n_slots=4, unified=unified) as probe:
        entry = (n_prompt + n_new) * probe.engine.books.traits.bytes_per_token
    limit = 16 * entry
    with serving(quantised, n_ctx=1024, n_slots=4, unified=unified, cache_ram_bytes=limit) as served:
        first = [served.submit(prompt, n_new)[0] for prompt in prompts]
        served.drain()
        turns = [(*prompt, *served.ends[i].tokens, 1000, 1001) for prompt, i in zip(prompts, first, strict=True)]
        again = [served.submit(turn, 2)[0] for turn in turns[-12:]]
        served.drain()
        n_past = n_prompt + n_new - 1  # the last token of an answer was never computed
        assert [served.ends[i].timings.n_cached for i in again] == [n_past] * 12
        assert 0 < served.max_snapshot_bytes <= limit + entry
        assert served.engine.snapshot.counters.n_loaded > 0
