"""The context checks what it is asked, shares and moves prefixes exactly, and leaves memory as it says."""

from __future__ import annotations

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from corral.config import ContextConfig, ModelConfig
from corral.llama.model import LlamaModel
from corral.ops import Copy, Shift, Span, Trim
from corral.ports import DecodeStatus, Rollback

EXACT = {"type_k": "f32", "type_v": "f32", "flash_attn": False}
PROMPT = tuple(range(40, 80))


def settings(**values):
    """One thread: spinning threads of several test runs on few cores slow each other down a hundredfold."""
    return ContextConfig(n_threads=1, **values)


@pytest.fixture(scope="module")
def model(tiny_model):
    model = LlamaModel.load(ModelConfig(tiny_model))
    yield model
    model.close()


@pytest.fixture(scope="module")
def window_model(tiny_window_model):
    model = LlamaModel.load(ModelConfig(tiny_window_model))
    yield model
    model.close()


@pytest.fixture(params=[False, True], ids=["split", "unified"])
def context(model, request):
    context = model.new_context(settings(n_ctx=1024, n_rows=5, kv_unified=request.param, **EXACT))
    yield context
    context.close()


@pytest.fixture
def unified(model):
    context = model.new_context(settings(n_ctx=256, kv_unified=True, **EXACT))
    yield context
    context.close()


def fresh_logits(model, tokens):
    """What one row alone gives for the last token."""
    context = model.new_context(settings(n_ctx=1024, n_slots=1, n_rows=1, kv_unified=False, **EXACT))
    assert context.decode([Span(0, 0, tuple(tokens), 1)]) is DecodeStatus.OK
    logits = context.logits()[0].copy()
    context.close()
    return logits


def close(a, b):
    np.testing.assert_allclose(a, b, atol=1e-4)
    return True


def test_split_rows_have_a_slots_share_padded(model):
    context = model.new_context(settings(n_ctx=1100, n_slots=4, n_rows=5, kv_unified=False))
    traits = context.traits
    assert (traits.n_cells_row, traits.n_cells, traits.n_rows, traits.n_streams) == (512, 2560, 5, 5)
    assert not traits.shared_cells
    context.close()


def test_unified_rows_may_use_the_whole_pool(model):
    context = model.new_context(settings(n_ctx=1000, n_slots=4, n_rows=8, kv_unified=True))
    traits = context.traits
    assert (traits.n_cells_row, traits.n_cells, traits.n_rows, traits.n_streams) == (1024, 1024, 8, 1)
    assert traits.shared_cells and traits.can_shift and traits.rollback is Rollback.ANY
    context.close()


def test_no_size_means_the_training_context(model):
    context = model.new_context(settings(n_ctx=0, n_rows=4, kv_unified=True))
    assert context.traits.n_cells == model.info.n_ctx_train
    context.close()


def test_batch_holds_a_token_of_every_row(model):
    context = model.new_context(settings(n_ctx=1024, n_rows=6, n_batch=2, n_ubatch=2))
    assert context.traits.n_batch >= 6
    context.close()


def test_bytes_per_token_is_about_what_saving_writes(context):
    context.decode([Span(0, 0, PROMPT)])
    assert len(context.save(0)) / len(PROMPT) == pytest.approx(context.traits.bytes_per_token, rel=0.1)


def test_logits_come_in_span_order(model, context):
    prompts = [PROMPT[:7], PROMPT[:1], PROMPT[3:30], PROMPT[5:6]]
    order = [2, 0, 3, 1]
    assert context.decode([Span(row, 0, prompts[row], 1) for row in order]) is DecodeStatus.OK
    logits = context.logits()
    assert logits.shape == (4, model.info.n_vocab)
    for got, row in zip(logits, order, strict=True):
        assert close(got, fresh_logits(model, prompts[row]))


def test_rows_without_output_give_no_logits(model, context):
    context.decode([Span(0, 0, PROMPT[:5]), Span(1, 0, PROMPT[:9], 1), Span(2, 0, PROMPT[:3])])
    assert close(context.logits()[0], fresh_logits(model, PROMPT[:9]))
    assert len(context.logits()) == 1
    context.decode([Span(0, 5, (7,))])
    assert context.logits().shape == (0, model.info.n_vocab)


def test_several_outputs_of_one_row(model, context):
    context.decode([Span(0, 0, PROMPT[:6], 3), Span(1, 0, PROMPT[:2], 1)])
    logits = context.logits()
    for got, n in zip(logits[:3], (4, 5, 6), strict=True):
        assert close(got, fresh_logits(model, PROMPT[:n]))
    assert close(logits[3], fresh_logits(model, PROMPT[:2]))


def test_a_prompt_in_chunks_equals_a_prompt_at_once(model, context):
    context.decode([Span(3, 0, PROMPT[:11])])
    context.decode([Span(3, 11, PROMPT[11:], 1)])
    assert close(context.logits()[0], fresh_logits(model, PROMPT))


def test_trim_then_go_on_equals_fresh(model, context):
    context.decode([Span(1, 0, PROMPT)])
    context.apply(Trim(1, 10))
    assert context.bounds(1) == (0, 10)
    context.decode([Span(1, 10, (99, 98), 1)])
    assert close(context.logits()[0], fresh_logits(model, (*PROMPT[:10], 99, 98)))


def test_trim_to_nothing_empties(context):
    context.decode([Span(1, 0, PROMPT)])
    context.apply(Trim(1, 0))
    assert context.bounds(1) == (0, 0)
    assert context.decode([Span(1, 0, PROMPT)]) is DecodeStatus.OK


def test_copy_shares_a_prefix_and_both_go_their_ways(model, unified):
    unified.decode([Span(0, 0, PROMPT)])
    unified.decode([Span(1, 0, (5, 6, 7))])
    unified.apply(Copy(0, 1, 20))
    assert unified.bounds(1) == (0, 20)
    unified.decode([Span(0, len(PROMPT), (9,), 1), Span(1, 20, (8,), 1)])
    first, second = unified.logits().copy()
    assert close(first, fresh_logits(model, (*PROMPT, 9)))
    assert close(second, fresh_logits(model, (*PROMPT[:20], 8)))
    unified.apply(Trim(0, 0))
    unified.decode([Span(1, 21, (8,), 1)])
    assert close(unified.logits()[0], fresh_logits(model, (*PROMPT[:20], 8, 8)))


def test_copy_costs_no_cells(unified):
    unified.decode([Span(0, 0, tuple([50] * 200))])
    for row in (1, 2, 3):
        unified.apply(Copy(0, row, 200))
    assert unified.decode([Span(row, 200, (7,)) for row in range(4)]) is DecodeStatus.OK


def test_state_moves_between_rows_exactly(model, context):
    context.decode([Span(0, 0, PROMPT)])
    state = context.save(0)
    context.decode([Span(4, 0, (5, 6, 7))])
    assert context.load(4, state)
    assert context.bounds(4) == (0, len(PROMPT))
    context.apply(Trim(0, 0))
    context.decode([Span(4, len(PROMPT), (9,), 1)])
    assert close(context.logits()[0], fresh_logits(model, (*PROMPT, 9)))


def test_state_of_an_empty_row(context):
    state = context.save(2)
    context.decode([Span(3, 0, PROMPT)])
    assert context.load(3, state)
    assert context.bounds(3) == (0, 0)


def test_bad_bytes_leave_the_row_empty_and_usable(context, model):
    context.decode([Span(0, 0, PROMPT), Span(1, 0, PROMPT)])
    state = context.save(0)
    for data in (b"", b"\0", b"not a state" * 100, state[:4], state[:100], state[:-1], state + b"\0", state[:40] * 30):
        assert context.load(0, data) is False
        assert context.bounds(0) == (0, 0)
        assert context.bounds(1) == (0, len(PROMPT))
    assert context.decode([Span(0, 0, PROMPT, 1), Span(1, len(PROMPT), (9,))]) is DecodeStatus.OK
    assert close(context.logits()[0], fresh_logits(model, PROMPT))


def test_state_of_other_settings_is_refused(model, context):
    other = model.new_context(settings(n_ctx=1024, n_rows=5, type_k="f16", type_v="f16"))
    other.decode([Span(0, 0, PROMPT)])
    assert context.load(0, other.save(0)) is False
    other.close()


def test_a_state_that_does_not_fit_is_refused(model, unified):
    big = model.new_context(settings(n_ctx=1024, kv_unified=True, **EXACT))
    big.decode([Span(0, 0, tuple([50] * 300))])
    assert unified.load(0, big.save(0)) is False
    assert unified.bounds(0) == (0, 0)
    big.close()


def test_no_room_leaves_memory_as_it_was(model, unified):
    unified.decode([Span(0, 0, PROMPT), Span(1, 0, tuple([50] * 200))])
    assert unified.decode([Span(0, len(PROMPT), (9,), 1), Span(2, 0, PROMPT, 1)]) is DecodeStatus.NO_ROOM
    assert [unified.bounds(row) for row in range(4)] == [(0, 40), (0, 200), (0, 0), (0, 0)]
    with pytest.raises(ValueError, match="no logits"):
        unified.logits()
    assert unified.decode([Span(0, len(PROMPT), (9,), 1)]) is DecodeStatus.OK
    assert close(unified.logits()[0], fresh_logits(model, (*PROMPT, 9)))


@pytest.mark.parametrize("token", [-1, -5, 354, 2**31, 2**70])
def test_tokens_outside_the_vocabulary_are_an_invalid_batch(context, token):
    context.decode([Span(0, 0, PROMPT)])
    assert context.decode([Span(0, 40, (9, token), 1), Span(1, 0, (8,), 1)]) is DecodeStatus.INVALID
    assert (context.bounds(0), context.bounds(1)) == ((0, 40), (0, 0))
    assert context.decode([Span(0, 40, (9,), 1)]) is DecodeStatus.OK


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [Span(0, 0, ())],
        [Span(5, 0, (7,))],
        [Span(-1, 0, (7,))],
        [Span(0, 1, (7,))],
        [Span(1, 0, (7,))],
        [Span(1, 4, (7,))],
        [Span(0, 0, (7,)), Span(0, 1, (7,))],
        [Span(0, 0, (7,), 2)],
        [Span(0, 0, (7,), -1)],
        [Span(0, 0, (7,) * 2049)],
        [Span(0, 0, (7,) * 200, 200)],
    ],
)
def test_bad_spans_change_nothing(context, spans):
    context.decode([Span(1, 0, (5, 6, 7))])
    with pytest.raises(ValueError):
        context.decode(spans)
    assert context.bounds(1) == (0, 3)
    assert context.decode([Span(1, 3, (7,), 1)]) is DecodeStatus.OK


@pytest.mark.parametrize("op", [Trim(0, 41), Trim(0, -1), Trim(5, 0), Trim(-1, 0), Copy(0, 1, 41), Copy(0, 0, 5)])
def test_bad_ops_change_nothing(context, op):
    context.decode([Span(0, 0, PROMPT)])
    with pytest.raises(ValueError):
        context.apply(op)
    assert context.bounds(0) == (0, 40)


def test_split_rows_cannot_share(model):
    context = model.new_context(settings(n_ctx=1024, kv_unified=False))
    context.decode([Span(0, 0, PROMPT)])
    for n in (20, 40):
        with pytest.raises(ValueError, match="share"):
            context.apply(Copy(0, 1, n))
    context.close()


def test_rows_outside_are_refused_everywhere(context):
    for row in (-1, 5):
        for call in (context.bounds, context.save, lambda row: context.load(row, b"")):
            with pytest.raises(ValueError):
                call(row)


def test_abort_ends_the_next_pass_and_only_that(model, context):
    context.decode([Span(0, 0, PROMPT)])
    context.request_abort()
    assert context.decode([Span(0, 40, (9,), 1), Span(1, 0, (8,))]) is DecodeStatus.ABORTED
    assert context.bounds(0) == (0, 40)
    assert context.bounds(1) == (0, 0)
    assert context.decode([Span(0, 40, (9,), 1)]) is DecodeStatus.OK
    assert close(context.logits()[0], fresh_logits(model, (*PROMPT, 9)))


def test_warmup_leaves_every_row_empty(context):
    context.decode([Span(2, 0, PROMPT)])
    context.warmup()
    assert [context.bounds(row) for row in range(5)] == [(0, 0)] * 5
    with pytest.raises(ValueError, match="no logits"):
        context.logits()


def test_a_closed_context_refuses(model):
    context = model.new_context(settings(n_ctx=256))
    context.close()
    context.close()
    for call in (context.logits, context.warmup, lambda: context.decode([Span(0, 0, (7,))]), lambda: context.save(0)):
        with pytest.raises(ValueError):
            call()


def test_sliding_window_is_read_from_the_model(window_model):
    context = window_model.new_context(settings(n_ctx=1024, n_rows=4, n_ubatch=64, kv_unified=True))
    traits = context.traits
    assert (traits.rollback, traits.window, traits.window_cells) == (Rollback.BOUNDED, 16, 256)
    context.close()
    full = window_model.new_context(settings(n_ctx=1024, n_rows=4, swa_full=True))
    assert (full.traits.rollback, full.traits.window, full.traits.window_cells) == (Rollback.BOUNDED, 16, 1024)
    full.close()


def test_what_the_window_lost_cannot_be_cut_back_to(window_model):
    context = window_model.new_context(settings(n_ctx=1024, n_rows=2, n_slots=2, n_ubatch=64, kv_unified=True))
    for at in range(0, 400, 50):
        context.decode([Span(0, at, (50,) * 50)])
    first, end = context.bounds(0)
    assert (first > 0, end) == (True, 400)
    with pytest.raises(ValueError, match="lost"):
        context.apply(Trim(0, 20))
    with pytest.raises(ValueError, match="lost"):
        context.apply(Copy(0, 1, 20))
    assert context.bounds(0) == (first, end)
    context.apply(Trim(0, 399))
    context.apply(Trim(0, 0))
    assert context.bounds(0) == (0, 0)
    context.close()


@pytest.fixture(params=[False, True], ids=["split", "unified"])
def recurrent(tiny_recurrent_model, request):
    model = LlamaModel.load(ModelConfig(tiny_recurrent_model))
    yield model.new_context(settings(n_ctx=1024, kv_unified=request.param, **EXACT))
    model.close()


def test_recurrent_rows_are_kept_whole_or_dropped(recurrent):
    assert (recurrent.traits.rollback, recurrent.traits.whole_copy_only) == (Rollback.WHOLE_ROW, True)
    recurrent.decode([Span(0, 0, PROMPT), Span(1, 0, PROMPT[:5])])
    assert (recurrent.bounds(0)[1], recurrent.bounds(1)[1]) == (40, 5)
    with pytest.raises(ValueError, match="whole"):
        recurrent.apply(Trim(0, 20))
    recurrent.apply(Trim(0, 40))
    assert recurrent.bounds(0)[1] == 40
    recurrent.apply(Trim(0, 0))
    assert recurrent.bounds(0) == (0, 0)
    assert recurrent.bounds(1)[1] == 5


def test_recurrent_states_move_exactly(recurrent):
    recurrent.decode([Span(0, 0, PROMPT), Span(2, 0, PROMPT[:3])])
    assert recurrent.load(2, recurrent.save(0))
    if recurrent.traits.shared_cells:
        with pytest.raises(ValueError, match="whole"):
            recurrent.apply(Copy(0, 1, 20))
        recurrent.apply(Copy(0, 1, 40))
    else:
        assert recurrent.load(1, recurrent.save(0))
    assert [recurrent.bounds(row)[1] for row in range(3)] == [40, 40, 40]
    recurrent.decode([Span(row, 40, (9,), 1) for row in range(3)])
    first, second, third = recurrent.logits()
    assert close(first, second)
    assert close(first, third)
    assert recurrent.load(1, b"nonsense") is False
    assert recurrent.bounds(1) == (0, 0)


def test_a_shift_moves_the_rest_and_keeps_what_it_saw(model, context):
    """With rotary positions only distances matter: cells moved down as one give what they gave where they were."""
    context.decode([Span(0, 0, PROMPT), Span(1, 0, PROMPT), Span(2, 0, PROMPT)])
    lib.llama_memory_seq_rm(context._memory, 1, 0, 15)
    context.apply(Shift(0, 0, 15))
    assert context.bounds(0) == (0, 25)
    context.decode([Span(0, 25, (9,), 1), Span(1, 40, (9,), 1), Span(2, 40, (9,), 1)])
    shifted, in_place, whole = context.logits().copy()
    assert close(shifted, in_place)
    assert close(whole, fresh_logits(model, (*PROMPT, 9)))
    assert np.abs(shifted - fresh_logits(model, (*PROMPT[15:], 9))).max() > 1e-3


def test_a_shifted_row_is_saved_after_the_next_decode_and_not_before(context):
    context.decode([Span(0, 0, PROMPT), Span(1, 0, PROMPT[:3])])
    context.apply(Shift(0, 4, 10))
    with pytest.raises(ValueError, match="before the next decode"):
        context.save(0)
    context.decode([Span(1, 3, (5,))])
    data = context.save(0)
    assert context.load(2, data)
    context.decode([Span(0, 30, (9,), 1), Span(2, 30, (9,), 1)])
    assert close(*context.logits())


@pytest.mark.parametrize(("keep", "discard"), [(0, 40), (-1, 2), (2, 0), (39, 1)])
def test_a_shift_leaves_something_that_moves(context, keep, discard):
    context.decode([Span(0, 0, PROMPT)])
    with pytest.raises(ValueError, match="cannot keep"):
        context.apply(Shift(0, keep, discard))
    assert context.bounds(0) == (0, 40)


def test_what_keeps_a_window_is_not_shifted(window_model):
    context = window_model.new_context(settings(n_ctx=512, n_rows=2, n_slots=2, kv_unified=False, **EXACT))
    context.decode([Span(0, 0, PROMPT)])
    with pytest.raises(ValueError, match="cannot shift"):
        context.apply(Shift(0, 0, 10))
    context.close()
