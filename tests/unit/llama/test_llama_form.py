"""What is wrong with a saved state from elsewhere is said, for every kind of memory; a good one passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from corral.config import ContextConfig, ModelConfig
from corral.ids import RowId
from corral.llama.context import LlamaContext
from corral.llama.form import form_of
from corral.llama.model import LlamaModel
from corral.ops import Span, Trim

Open = Callable[..., LlamaContext]

N = 40
KINDS = ("tiny_model", "tiny_window_model", "tiny_recurrent_model", "tiny_hybrid_model", "tiny_window_hybrid_model")
SHAPE = ContextConfig(n_ctx=1024, n_slots=4, n_rows=4, n_threads=1, flash_attn=True)


@pytest.fixture
def open_context() -> Iterator[Callable[..., LlamaContext]]:
    """Makes contexts that were warmed up."""
    with contextlib.ExitStack() as stack:

        def make(path: Path, **settings: object) -> LlamaContext:
            model = LlamaModel.load(ModelConfig(path))
            stack.callback(model.close)
            context = model.new_context(replace(SHAPE, **settings))  # type: ignore[arg-type]
            context.warmup()
            return context

        yield make


@pytest.fixture(params=[(kind, unified) for kind in KINDS for unified in (True, False)], ids=str)
def context(request: pytest.FixtureRequest, open_context: Open) -> LlamaContext:
    kind, unified = request.param
    return open_context(request.getfixturevalue(kind), kv_unified=unified)


def state_of(context: LlamaContext, n: int = N) -> bytes:
    """Of row 2, with the head that a slot file does without."""
    context.apply(Trim(RowId(2), 0))
    context.decode([Span(RowId(2), 0, tuple(range(3, 3 + n)))])
    return context.traits.state_head + context.save(RowId(2))[len(context.traits.state_head) :]


@pytest.mark.parametrize("n", [1, 15, 16, 17, N])
def test_a_whole_state_passes_and_every_cut_and_addition_is_told(context: LlamaContext, n: int) -> None:
    data = state_of(context, n)
    assert context.fault(data, n) == ""
    for end in (len(data) - 1, len(data) * 3 // 4, len(data) // 2, 60, 20):
        assert "cut short" in context.fault(data[:end], n), end
    for more in (b"x", b"ckpt" * 100, data):
        assert context.fault(data + more, n) == f"{len(more)} bytes were added behind its end"


def test_a_count_that_is_nonsense_is_no_endless_loop(open_context: Open, tiny_window_model: Path) -> None:
    context = open_context(tiny_window_model)
    data = state_of(context)
    second = data.rindex(b"\1\0\0\0" + (16).to_bytes(4, "little"))
    assert context.fault(data[:second] + b"\xff" * (len(data) - second), N) != ""


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"flash_attn": False}, "it was saved with -fa off, here it is on"),
        ({"type_k": "f32"}, "it was saved with -ctk f32, here it is f16"),
        ({"type_v": "f32"}, "it was saved with -ctv f32, here it is f16"),
        ({"kv_unified": False}, "it was saved with 4 KV pools, here there are 1"),
    ],
)
@pytest.mark.parametrize("kind", ["tiny_model", "tiny_window_model", "tiny_hybrid_model"])
def test_other_settings_are_named(
    request: pytest.FixtureRequest, open_context: Open, kind: str, other: dict[str, object], why: str
) -> None:
    path = request.getfixturevalue(kind)
    theirs = open_context(path, **other)
    data = state_of(theirs)
    ours = open_context(path)
    assert ours.fault(data, N).startswith(why)


def test_other_models_are_told(
    open_context: Open, tiny_model: Path, tiny_window_model: Path, smollm2_q4_0: Path
) -> None:
    tiny = open_context(tiny_model)
    large = open_context(smollm2_q4_0)
    assert tiny.fault(state_of(large), N) == "it is of another model: 30 layers have cells, here 2"
    assert large.fault(state_of(tiny), N) == "it is of another model: 2 layers have cells, here 30"
    window = open_context(tiny_window_model)
    assert "another model" in window.fault(state_of(tiny), N)


def test_bytes_of_no_known_form_have_none(open_context: Open, tiny_model: Path) -> None:
    context = open_context(tiny_model)
    one = state_of(context, 1)
    assert form_of(one, 1, has_rest=False) is not None
    assert form_of(one, 2, has_rest=False) is None
    assert form_of(one[:-1], 1, has_rest=False) is None
    assert form_of(one + b"x", 1, has_rest=False) is None
    assert form_of(state_of(context, 2), 1, has_rest=False) is None
    for data in (b"", bytes(200), b"\xff" * 200):
        assert form_of(data, 1, has_rest=True) is None
