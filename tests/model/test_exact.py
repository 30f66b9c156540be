"""The same prompt gives the same tokens whatever the company and whatever way its beginning came into the cache.

In exact mode (F32 weights, f32 KV, no flash attention), and with quantised weights on split KV, where no row sees the
cells of another. A different token is a failure unless the two best logits at its place are nearly equal.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from corral.config import ContextConfig, EngineConfig, ModelConfig, n_rows_for
from corral.engine.core import Engine
from corral.events import Failed, Finished
from corral.ids import RowId, TaskId, Token
from corral.llama.model import LlamaModel
from corral.ops import Span
from corral.ports import DecodeStatus
from corral.runtime import SystemClock
from corral.tasks import Limits, Sampling, Task

pytestmark = pytest.mark.timeout(900)  # two minutes in all on a core of its own

N_NEW = 8
N_SLOTS = 16
TIE = 1e-3
GREEDY = Sampling(temperature=0.0, ignore_eos=True)

SENTENCES = (
    "The capital of France is Paris, and the capital of Italy is",
    "Once upon a time there was a small village by the sea, and nobody in it had ever seen",
    "Water boils at one hundred degrees, unless you climb a mountain, because",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Dear Sir or Madam,\n\nI am writing to you about the bicycle that I bought in your shop last week.",
    "1, 1, 2, 3, 5, 8, 13,",
    "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n",
    "In 1969 two men walked on the moon while a third, whose name hardly anybody remembers, flew around it and",
)
TAILS = ("What is it?", "Write one line.", "Why?", "Say it in other words, please.", "Who was there, and when?")
WORDS = [
    "river",
    "stone",
    "window",
    "garden",
    "paper",
    "market",
    "letter",
    "summer",
    "bridge",
    "candle",
    "forest",
    "silver",
    "harbour",
    "engine",
    "winter",
    "mirror",
    "shadow",
    "kitchen",
    "village",
    "music",
    "doctor",
    "ladder",
    "orange",
    "teacher",
    "planet",
    "history",
    "coffee",
    "button",
    "thunder",
    "island",
]


@dataclass(frozen=True)
class Kind:
    """Weights and the kind of KV cache that goes with them."""

    ftype: str
    type_kv: str
    flash_attn: bool | None


F32 = Kind("f32", "f32", False)
Q4_0 = Kind("q4_0", "f16", None)


class Lab:
    """A loaded model, its 40 prompts and what it writes after each, computed alone from nothing."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self.kind = kind
        self.model = LlamaModel.load(ModelConfig(path))
        self.prompts = [self._tokens(text) for text in texts()]
        with self.engine(n_slots=1, unified=False) as engine:
            self.alone = [ask(engine, [prompt], cache_prompt=False)[0].tokens for prompt in self.prompts]
            assert engine.snapshot.counters.n_prompt_cached == 0

    def _tokens(self, text: str) -> tuple[Token, ...]:
        return tuple(self.model.tokenizer.tokenize(text, add_special=True, parse_special=True))

    def _config(self, n_slots: int, n_rows: int, n_ctx: int, unified: bool) -> ContextConfig:
        kind = self.kind
        return ContextConfig(
            n_ctx=n_ctx,
            n_slots=n_slots,
            n_rows=n_rows,
            kv_unified=unified,
            flash_attn=kind.flash_attn,
            type_k=kind.type_kv,
            type_v=kind.type_kv,
            n_threads=1,
            n_threads_batch=1,
        )

    @contextlib.contextmanager
    def engine(self, *, n_slots: int, unified: bool, n_rows: int = 0, n_ctx: int = 0) -> Iterator[Engine]:
        n_rows = n_rows or n_rows_for(n_slots, unified)
        context = self.model.new_context(self._config(n_slots, n_rows, n_ctx or 256 * n_slots, unified))
        engine = Engine(self.model, context, SystemClock(), EngineConfig(n_slots=n_slots, audit=True))
        yield engine
        assert engine.snapshot.n_leased == 0
        engine.close()

    def assert_as_alone(self, answers: Sequence[Finished], n: int = 1) -> None:
        """``answers`` of the first prompts, ``n`` of each."""
        for i, answer in enumerate(answers):
            prompt, alone = self.prompts[i // n], self.alone[i // n]
            at = first_difference(answer.tokens, alone)
            if at is not None:
                gap = self._gap(prompt + alone[:at])
                assert gap < TIE, f"prompt {i // n}: {answer.tokens}, alone {alone}; logits {gap:.2g} apart"

    def _gap(self, tokens: tuple[Token, ...]) -> float:
        """How far the two best logits after these tokens are apart."""
        context = self.model.new_context(self._config(1, 1, 256, unified=False))
        assert context.decode([Span(RowId(0), 0, tokens, 1)]) is DecodeStatus.OK
        second, best = np.sort(context.logits()[0])[-2:]
        context.close()
        return float(best - second)


def texts() -> list[str]:
    """Real sentences, lists of words, and four families that begin alike."""
    draw = random.Random(40)
    lists = [" ".join(draw.choices(WORDS, k=draw.randint(8, 52))) for _ in range(12)]
    stems = ["Read this: " + " ".join(draw.choices(WORDS, k=30)) + ". " for _ in range(4)]
    return [*SENTENCES, *lists, *(stem + tail for tail in TAILS for stem in stems)]


def first_difference(a: Sequence[Token], b: Sequence[Token]) -> int | None:
    assert len(a) == len(b)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)


def ask(engine: Engine, prompts: Sequence[tuple[Token, ...]], n: int = 1, cache_prompt: bool = True) -> list[Finished]:
    """Submit all at once, ``n`` siblings of each, and step until the last has ended."""
    ends: dict[TaskId, Finished] = {}
    for i, prompt in enumerate(prompts):
        parent = TaskId(i * n)
        limits = Limits(n_predict=N_NEW)
        engine.submit(
            tuple(
                Task(
                    TaskId(parent + j),
                    prompt,
                    sampling=GREEDY,
                    limits=limits,
                    cache_prompt=cache_prompt,
                    index=j,
                    parent=parent if j else None,
                )
                for j in range(n)
            )
        )
    while engine.has_work:
        for event in engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                ends[event.task_id] = event
    return [ends[TaskId(i)] for i in range(n * len(prompts))]


@pytest.fixture(scope="module")
def exact(smollm2_f32: Path) -> Iterator[Lab]:
    lab = Lab(smollm2_f32, F32)
    yield lab
    lab.model.close()


@pytest.fixture(scope="module")
def quantised(smollm2_q4_0: Path) -> Iterator[Lab]:
    lab = Lab(smollm2_q4_0, Q4_0)
    yield lab
    lab.model.close()


def test_the_prompts_are_as_they_should_be(quantised: Lab) -> None:
    assert len(set(quantised.prompts)) == 40
    assert all(8 < len(prompt) <= 60 for prompt in quantised.prompts)
    assert len(set(quantised.alone)) > 24, "too many equal answers prove little"


def in_company_then_warm_then_forked(lab: Lab, unified: bool) -> None:
    with lab.engine(n_slots=N_SLOTS, unified=unified) as engine:
        together = ask(engine, lab.prompts)
        lab.assert_as_alone(together)
        counters = engine.snapshot.counters
        assert counters.n_busy_slots / counters.n_decode > 8, "there was hardly any company"
        shared = [end for end in together if end.timings.n_cached >= 32]
        assert len(shared) >= 16, "prompts that begin alike were computed each for itself"

        again = ask(engine, lab.prompts)
        lab.assert_as_alone(again)
        assert [end.timings.n_prompt for end in again] == [1] * len(again), "asked again: all but the last is cached"
        n_loaded = engine.snapshot.counters.n_loaded - counters.n_loaded
        assert unified or n_loaded >= len(again) - N_SLOTS, "16 rows hold 16 of 40 conversations"

        before = engine.snapshot.counters
        forked = ask(engine, lab.prompts, n=4)
        lab.assert_as_alone(forked, n=4)
        moved = engine.snapshot.counters
        n_forks = moved.n_copied - before.n_copied if unified else moved.n_loaded - before.n_loaded
        assert n_forks >= 3 * len(lab.prompts)


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_in_company_warm_and_forked_as_alone(exact: Lab, unified: bool) -> None:
    """llama.cpp#7052, llama.cpp#27148."""
    in_company_then_warm_then_forked(exact, unified)


def test_in_company_warm_and_forked_with_quantised_weights(quantised: Lab) -> None:
    in_company_then_warm_then_forked(quantised, unified=False)


def test_parked_and_restored_as_alone(exact: Lab) -> None:
    """llama.cpp#29090: 40 requests on 256 cells, more than 1,800 of them wanted."""
    with exact.engine(n_slots=8, unified=True, n_rows=10, n_ctx=256) as engine:
        answers = ask(engine, exact.prompts)
        exact.assert_as_alone(answers)
        assert sum(end.timings.n_parked for end in answers) == engine.snapshot.counters.n_parked > 0
        before = engine.snapshot.counters
        again = ask(engine, exact.prompts)
        exact.assert_as_alone(again)
        assert engine.snapshot.counters.n_loaded - before.n_loaded >= 20
        assert sum(end.timings.n_cached for end in again) > 0.9 * sum(map(len, exact.prompts))
