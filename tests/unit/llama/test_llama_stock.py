"""Samplers that take long to make are made by who reads a request; the engine's thread finds them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from corral.config import ModelConfig
from corral.errors import InvalidRequest
from corral.llama import stock
from corral.llama.model import LlamaModel
from corral.tasks import Sampling

GRAMMAR = 'root ::= "yes" | "no"'
DRY = Sampling(temperature=0.0, dry_multiplier=5.0, dry_allowed_length=1, dry_sequence_breakers=("x",))


@pytest.fixture
def model(tiny_model: Path) -> Iterator[LlamaModel]:
    loaded = LlamaModel.load(ModelConfig(tiny_model))
    yield loaded
    loaded.close()
    loaded.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is made, in order."""
    found: list[str] = []

    def watch(name: str) -> None:
        make = getattr(stock, name)

        def making(vocab: Any, what: Any) -> Any:
            found.append(name)
            return make(vocab, what)

        monkeypatch.setattr(stock, name, making)

    watch("_new_grammar")
    watch("_new_dry")
    return found


def open_and_close(model: LlamaModel, sampling: Sampling) -> None:
    model.new_sampler(sampling, 1, 64).close()


def test_prepared_grammars_are_taken_once(model: LlamaModel, made: list[str]) -> None:
    sampling = Sampling(grammar=GRAMMAR)
    model.prepare(sampling, 2)
    assert len(made) == 2
    open_and_close(model, sampling)
    open_and_close(model, sampling)
    assert len(made) == 2
    open_and_close(model, sampling)
    assert len(made) == 3
    with pytest.raises(InvalidRequest, match="grammar"):
        model.prepare(Sampling(grammar="root ::= a"), 1)


def test_grammars_that_nobody_takes_are_bounded(
    model: LlamaModel, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "MAX_READY_CHARS", 3 * len(GRAMMAR))
    other = Sampling(grammar=GRAMMAR.replace("yes", "YES"))
    model.prepare(Sampling(grammar=GRAMMAR), 3)
    model.prepare(other, 2)
    made.clear()
    for _ in range(2):
        open_and_close(model, other)
    open_and_close(model, Sampling(grammar=GRAMMAR))
    assert not made
    open_and_close(model, Sampling(grammar=GRAMMAR))
    assert len(made) == 1


def test_dry_settings_are_made_once_and_copied(model: LlamaModel, made: list[str]) -> None:
    model.prepare(DRY, 5)
    logits = np.zeros(model.info.n_vocab, np.float32)
    logits[100], logits[101] = 2.0, 1.0
    samplers = [model.new_sampler(DRY, 1, 64) for _ in range(2)]
    assert made == ["_new_dry"]
    for sampler in samplers:  # each has a history of its own
        sampler.feed([100, 100, 100])
        assert sampler.pick(logits.copy()).token == 101
    fresh = model.new_sampler(DRY, 1, 64)
    assert fresh.pick(logits.copy()).token == 100
    for sampler in (*samplers, fresh):
        sampler.close()


def test_of_dry_settings_the_last_are_remembered(model: LlamaModel, made: list[str]) -> None:
    kinds = [Sampling(dry_multiplier=1.0 + i) for i in range(stock.MAX_DRY + 1)]
    for sampling in kinds:
        model.prepare(sampling, 1)
    made.clear()
    open_and_close(model, kinds[-1])
    assert not made
    open_and_close(model, kinds[0])
    assert made == ["_new_dry"]


def test_from_several_threads(model: LlamaModel) -> None:
    kinds = [Sampling(dry_multiplier=1.0 + i % 3, grammar=GRAMMAR) for i in range(12)]

    def work(sampling: Sampling) -> None:
        for _ in range(20):
            model.prepare(sampling, 1)
            open_and_close(model, sampling)

    threads = [threading.Thread(target=work, args=[sampling]) for sampling in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_no_memory_is_taken_for_a_history_that_cannot_be(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """libllama takes four bytes for each token to look back on, or eight: all at once."""
    asked: list[int] = []
    penalties, dry = lib.llama_sampler_init_penalties, lib.llama_sampler_init_dry

    def watched_penalties(n_vocab: int, last_n: int, *rest: float) -> Any:
        asked.append(last_n)
        return penalties(n_vocab, min(last_n, 100), *rest)

    def watched_dry(vocab: Any, multiplier: float, base: float, allowed: int, last_n: int, *rest: Any) -> Any:
        asked.append(last_n)
        return dry(vocab, multiplier, base, allowed, min(last_n, 100), *rest)

    monkeypatch.setattr(lib, "llama_sampler_init_penalties", watched_penalties)
    monkeypatch.setattr(lib, "llama_sampler_init_dry", watched_dry)
    most = 2**31 - 1
    sampling = Sampling(repeat_last_n=most, repeat_penalty=1.1, dry_multiplier=1.0, dry_penalty_last_n=most)
    open_and_close(model, sampling)
    assert asked == [65_536, 65_536]
