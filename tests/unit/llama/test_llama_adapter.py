"""Adapters over a real context: loading, refusing, and which of them a pass computes with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.model.tiny import write_tiny_lora

from corral.config import AdapterConfig, ContextConfig, ModelConfig
from corral.errors import LoadError
from corral.ids import AdapterId, AdapterSet, RowId, adapter_set
from corral.llama.context import LlamaContext
from corral.llama.model import LlamaModel
from corral.ops import Span, Trim

FIRST, SECOND = adapter_set({AdapterId(0): 1.0}), adapter_set({AdapterId(1): 1.0})
ROW = RowId(0)


def load(path: Path, *adapters: Path) -> LlamaModel:
    return LlamaModel.load(ModelConfig(path, adapters=tuple(AdapterConfig(a, 0.5) for a in adapters)))


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Iterator[LlamaModel]:
    plain = write_tiny_lora(tmp_path / "plain.gguf", task="rhyme")
    alora = write_tiny_lora(tmp_path / "alora.gguf", seed=2, invocation=(100, 101))
    loaded = load(tiny_model, plain, alora)
    yield loaded
    loaded.close()


@pytest.fixture
def context(model: LlamaModel) -> LlamaContext:
    return model.new_context(ContextConfig(n_ctx=256, n_slots=1, n_rows=1, n_threads=1))


def logits(context: LlamaContext, adapters: AdapterSet) -> np.ndarray:
    context.use(adapters)
    context.apply(Trim(ROW, 0))
    context.decode((Span(ROW, 0, (300, 310, 320, 330), 1),))
    return context.logits()[0].copy()


def test_what_an_adapter_says_of_itself(model: LlamaModel, tmp_path: Path) -> None:
    plain, alora = model.adapters
    assert (plain.id, plain.path, plain.scale) == (0, str(tmp_path / "plain.gguf"), 0.5)
    assert (plain.task_name, plain.prompt_prefix, plain.invocation) == ("rhyme", "", ())
    assert (alora.id, alora.invocation) == (1, (100, 101))


def test_a_pass_computes_with_the_set_in_use_and_no_other(context: LlamaContext) -> None:
    base, first, second = (logits(context, s) for s in ((), FIRST, SECOND))
    half = logits(context, adapter_set({AdapterId(0): 0.5}))
    both = logits(context, adapter_set({AdapterId(0): 1.0, AdapterId(1): 1.0}))
    for a, b in ((base, first), (first, second), (first, half), (base, half), (both, first), (both, second)):
        assert np.abs(a - b).max() > 0.1
    assert np.array_equal(logits(context, ()), base)
    assert np.array_equal(logits(context, FIRST), first)


def test_one_that_is_not_loaded_is_refused(context: LlamaContext) -> None:
    before = logits(context, FIRST)
    with pytest.raises(ValueError, match="adapter 2 is not loaded: there are 2"):
        context.use(adapter_set({AdapterId(2): 1.0}))
    context.apply(Trim(ROW, 0))
    context.decode((Span(ROW, 0, (300, 310, 320, 330), 1),))
    assert np.array_equal(context.logits()[0], before)


def test_files_that_are_no_adapter_of_this_model_are_refused_in_one_line(tiny_model: Path, tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "gone.gguf", "no such file"),
        (tiny_model, "expect general.type to be 'adapter'"),
        (write_tiny_lora(tmp_path / "arch.gguf", arch="gemma2"), "model arch and LoRA arch mismatch"),
        (
            write_tiny_lora(tmp_path / "token.gguf", invocation=(9999,)),
            "its activation has token 9999, not in [0, 354)",
        ),
    ):
        with pytest.raises(LoadError) as failure:
            load(tiny_model, path)
        assert str(path) in str(failure.value)
        assert reason in str(failure.value)
        assert "\n" not in str(failure.value)
