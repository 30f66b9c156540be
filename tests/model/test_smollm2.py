"""A real model: what is shared, moved or computed in company gives the same tokens as computing alone."""

from __future__ import annotations

import pytest

from corral.config import ContextConfig, ModelConfig
from corral.llama.model import LlamaModel
from corral.ops import Copy, Span, Trim
from corral.ports import DecodeStatus

EXACT = {
    "n_ctx": 2048,
    "n_slots": 4,
    "n_rows": 4,
    "type_k": "f32",
    "type_v": "f32",
    "flash_attn": False,
    "n_threads": 1,
}
SHARED = "The quick brown fox jumps over the lazy dog. In the beginning there was a small village by the sea, and "
TAILS = (" the people", " nobody knew why", " a dragon", " its harbour was")
N_NEW = 12


@pytest.fixture(scope="module")
def exact(smollm2_f32):
    model = LlamaModel.load(ModelConfig(smollm2_f32))
    yield model
    model.close()


def tokens_of(model, text):
    return tuple(model.tokenizer.tokenize(text, add_special=True, parse_special=True))


def grow(context, rows, first):
    """Greedy tokens of several rows that each wait for ``first[row]`` at the row's end."""
    texts = {row: [] for row in rows}
    last = dict(first)
    for _ in range(N_NEW):
        spans = [Span(row, context.bounds(row)[1], last[row], 1) for row in rows]
        assert context.decode(spans) is DecodeStatus.OK
        for row, logits in zip(rows, context.logits(), strict=True):
            last[row] = (int(logits.argmax()),)
            texts[row] += last[row]
    return texts


@pytest.fixture(scope="module")
def alone(exact):
    """Each prompt computed from nothing in a context of its own."""
    texts = {}
    for row, tail in enumerate(TAILS):
        context = exact.new_context(ContextConfig(**EXACT | {"n_slots": 1, "n_rows": 1, "kv_unified": False}))
        texts[row] = grow(context, [0], {0: tokens_of(exact, SHARED + tail)})[0]
        context.close()
    return texts


def start_together(exact, context):
    """Row 0 holds the shared prefix; returns what each row still wants."""
    prompts = [tokens_of(exact, SHARED + tail) for tail in TAILS]
    n_shared = next(at for at, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1)
    context.decode([Span(0, 0, prompts[0][:n_shared])])
    return n_shared, {row: prompt[n_shared:] for row, prompt in enumerate(prompts)}


def test_rows_that_share_cells_write_what_they_would_alone(exact, alone):
    context = exact.new_context(ContextConfig(**EXACT, kv_unified=True))
    n_shared, wanted = start_together(exact, context)
    for row in (1, 2, 3):
        context.apply(Copy(0, row, n_shared))
    assert grow(context, [0, 1, 2, 3], wanted) == alone
    context.close()


def test_rows_filled_from_bytes_write_what_they_would_alone(exact, alone):
    context = exact.new_context(ContextConfig(**EXACT, kv_unified=False))
    _, wanted = start_together(exact, context)
    state = context.save(0)
    assert all(context.load(row, state) for row in (1, 2, 3))
    assert grow(context, [0, 1, 2, 3], wanted) == alone
    context.close()


@pytest.mark.parametrize("kv_unified", [False, True])
def test_a_row_cut_back_writes_what_it_would_alone(exact, alone, kv_unified):
    context = exact.new_context(ContextConfig(**EXACT, kv_unified=kv_unified))
    n_shared, wanted = start_together(exact, context)
    grow(context, [0], {0: wanted[3]})
    context.apply(Trim(0, n_shared))
    assert grow(context, [0], {0: wanted[2]})[0] == alone[2]
    context.close()


def test_the_quantised_model_knows_its_capitals(smollm2_q4_0):
    model = LlamaModel.load(ModelConfig(smollm2_q4_0))
    context = model.new_context(ContextConfig(n_ctx=512, n_slots=1, n_rows=1, n_threads=1))
    context.warmup()
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    tokens = grow(context, [0], {0: tokens_of(model, text)})[0]
    assert "Paris" in model.tokenizer.detokenize(tokens, special=False)
    assert model.info.ftype == "Q4_0"
    model.close()
