"""Memory that cannot be cut anywhere: what a row sees, what is refused, and what misuse comes to."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from corral.config import ContextConfig
from corral.ids import RowId
from corral.ops import Copy, Span, Trim
from corral.ports import DecodeStatus
from corral.sim.clock import CostModel, VirtualClock
from corral.sim.context import Faults, SimContext
from corral.sim.model import SimModel, SimSpec
from corral.sim.oracle import solo
from corral.sim.shape import Kind

CONFIG = ContextConfig(n_ctx=1024, n_slots=4, n_rows=4, n_batch=64, n_ubatch=8)
SLIDING = SimModel(SimSpec(eos_every=0, kind=Kind.SLIDING, window=8))
RECURRENT = SimModel(SimSpec(eos_every=0, kind=Kind.RECURRENT))
HYBRID = SimModel(SimSpec(eos_every=0, kind=Kind.HYBRID))
BOTH = SimModel(SimSpec(eos_every=0, kind=Kind.SLIDING_HYBRID, window=8))
A, B, C, D = map(RowId, range(4))
TEXT = tuple(b"a herd of llamas went up the hill to see the sun")

ALL = [SLIDING, RECURRENT, HYBRID, BOTH]
KINDS = pytest.mark.parametrize("model", ALL, ids=["sliding", "recurrent", "hybrid", "sliding-hybrid"])
STATES = pytest.mark.parametrize("model", ALL[1:], ids=["recurrent", "hybrid", "sliding-hybrid"])
UNIFIED = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


def put(context: SimContext, row: RowId, tokens: tuple[int, ...]) -> None:
    """Append tokens, at most a batch at a time."""
    for at in range(0, len(tokens), context.traits.n_batch):
        part = tokens[at : at + context.traits.n_batch]
        assert context.decode([Span(row, context.bounds(row)[1], part)]) is DecodeStatus.OK


def next_token(context: SimContext, row: RowId, token: int) -> int:
    assert context.decode([Span(row, context.bounds(row)[1], (token,), 1)]) is DecodeStatus.OK
    return int(context.logits()[0].argmax())


def expected(model: SimModel, tokens: tuple[int, ...]) -> int:
    return solo(tokens, 1, model=model)[0]


@KINDS
@UNIFIED
def test_neighbours_and_chunks_do_not_change_the_token(model: SimModel, unified: bool) -> None:
    context = model.new_context(replace(CONFIG, kv_unified=unified))
    put(context, C, TEXT[:30])
    for at in range(0, len(TEXT) - 1, 3):
        spans = [
            Span(A, at, TEXT[at : min(at + 3, len(TEXT) - 1)]),
            Span(C, 30 + at, (at, 7, at)),
            Span(D, at // 3, (at,)),
        ]
        assert context.decode(spans) is DecodeStatus.OK
    assert next_token(context, A, TEXT[-1]) == expected(model, TEXT)
    context.check()


@KINDS
@UNIFIED
def test_a_checkpoint_brings_a_row_back(model: SimModel, unified: bool) -> None:
    context = model.new_context(replace(CONFIG, kv_unified=unified))
    put(context, A, TEXT[:20])
    data = context.checkpoint(A)
    for _ in range(3):
        put(context, A, TEXT)
        assert context.restore(A, 20, data)
        assert context.bounds(A)[1] == 20
        put(context, A, TEXT[20:-1])
        assert next_token(context, A, TEXT[-1]) == expected(model, TEXT)
        context.check()


@KINDS
def test_a_checkpoint_of_another_length_empties_the_row(model: SimModel) -> None:
    context = model.new_context(CONFIG)
    put(context, A, TEXT[:20])
    data = context.checkpoint(A)
    put(context, A, TEXT[20:])
    assert not context.restore(A, 19, data)
    assert context.bounds(A) == (0, 0)


@KINDS
def test_a_checkpoint_of_other_tokens_gives_a_wrong_token(model: SimModel) -> None:
    context = model.new_context(CONFIG)
    put(context, A, (7, *TEXT[1:20]))
    data = context.checkpoint(A)
    put(context, B, TEXT)
    assert context.restore(B, 20, data)
    put(context, B, TEXT[20:-1])
    assert next_token(context, B, TEXT[-1]) != expected(model, TEXT)


@KINDS
def test_bytes_are_bound_to_kind_and_mode(model: SimModel) -> None:
    context = model.new_context(CONFIG)
    put(context, A, TEXT)
    whole, part = context.save(A), context.checkpoint(A)
    assert context.load(B, whole)
    assert not context.load(B, part)
    for other in (SimModel(SimSpec()), *ALL):
        assert other is model or not other.new_context(CONFIG).load(A, whole)
    if model is SLIDING:
        assert not model.new_context(replace(CONFIG, swa_full=True)).load(A, whole)
    if model in (SLIDING, HYBRID):  # of the others there is one mode only
        assert not model.new_context(replace(CONFIG, kv_unified=False)).load(A, whole)


@KINDS
def test_a_failed_pass_leaves_whole_rows_or_none(model: SimModel) -> None:
    context = model.new_context(CONFIG, faults=Faults(decode=lambda n: DecodeStatus.FAILED if n == 7 else None))
    for at in range(0, len(TEXT), 7):
        put(context, A, TEXT[at : at + 7])
    assert context.decode([Span(A, len(TEXT), TEXT[:8])]) is DecodeStatus.FAILED
    first, end = context.bounds(A)
    assert end == 0 or first <= max(0, len(TEXT) - 8 + 1)


@UNIFIED
@pytest.mark.parametrize("full", [False, True])
def test_a_row_is_not_cut_below_its_window(unified: bool, full: bool) -> None:
    context = SLIDING.new_context(replace(CONFIG, kv_unified=unified, swa_full=full))
    for _ in range(4):
        put(context, A, TEXT)
    first, end = context.bounds(A)
    assert (first > 0) is not full
    if not full:
        with pytest.raises(ValueError, match="lost positions"):
            context.apply(Trim(A, first + 7))
    n = first + 8
    context.apply(Trim(A, n))
    tokens = (TEXT * 4)[:n]
    assert next_token(context, A, 65) == expected(SLIDING, (*tokens, 65))
    assert end > n


def test_a_loaded_row_holds_only_its_window() -> None:
    """Even where the whole context is kept."""
    context = SLIDING.new_context(replace(CONFIG, swa_full=True))
    put(context, A, TEXT)
    assert context.load(B, context.save(A))
    assert context.bounds(B) == (len(TEXT) - 8, len(TEXT))
    with pytest.raises(ValueError, match="lost positions"):
        context.apply(Trim(B, len(TEXT) - 1))
    assert next_token(context, B, 65) == expected(SLIDING, (*TEXT, 65))


def test_neighbours_recycle_what_a_row_cannot_see_any_more() -> None:
    context = SLIDING.new_context(CONFIG)
    put(context, A, TEXT[:30])
    assert context.bounds(A) == (0, 30)
    put(context, B, TEXT)
    assert context.bounds(A)[0] > 0
    assert next_token(context, A, 65) == expected(SLIDING, (*TEXT[:30], 65))


def test_copies_get_windows_of_their_own() -> None:
    """Cells of two rows would never be recycled: the window pool would be full while the main one is not."""
    context = SLIDING.new_context(CONFIG)
    put(context, A, TEXT)
    for row in (B, C, D):
        assert context.apply(Copy(A, row, len(TEXT)))
    for n in range(30):
        rows = (A, B, C, D)
        assert context.decode([Span(row, len(TEXT) + n, (n + row,)) for row in rows]) is DecodeStatus.OK
    tokens = (*TEXT, *(n + C for n in range(30)), 65)
    assert next_token(context, C, 65) == expected(SLIDING, tokens)


def test_a_copy_without_room_for_its_window_is_no_copy() -> None:
    context = SLIDING.new_context(CONFIG, faults=Faults(copy=lambda n: n == 0))
    put(context, A, TEXT[:40])
    put(context, B, TEXT[:3])
    assert not context.apply(Copy(A, B, 40))
    assert context.bounds(B) == (0, 0)
    context.check()


@STATES
def test_states_are_kept_whole_or_dropped(model: SimModel) -> None:
    context = model.new_context(CONFIG)
    put(context, A, TEXT)
    for n in (1, len(TEXT) - 1):
        with pytest.raises(ValueError, match="kept whole"):
            context.apply(Trim(A, n))
    context.apply(Trim(A, len(TEXT)))
    assert next_token(context, A, 65) == expected(model, (*TEXT, 65))
    context.apply(Trim(A, 0))
    assert next_token(context, A, TEXT[0]) == expected(model, TEXT[:1])


def test_a_copy_cut_short_has_no_state() -> None:
    context = HYBRID.new_context(CONFIG)
    put(context, A, TEXT[:20])
    data = context.checkpoint(A)
    put(context, A, TEXT[20:])
    assert context.apply(Copy(A, B, 30))
    for use in (lambda: put(context, B, (1,)), lambda: context.save(B), lambda: context.checkpoint(B)):
        with pytest.raises(ValueError, match="without the state"):
            use()
    assert context.restore(B, 20, data)
    assert context.n_used == len(TEXT)
    assert next_token(context, B, 65) == expected(HYBRID, (*TEXT[:20], 65))
    assert next_token(context, A, 65) == expected(HYBRID, (*TEXT, 65))


def test_a_whole_copy_has_the_state() -> None:
    context = HYBRID.new_context(CONFIG)
    put(context, A, TEXT)
    assert context.apply(Copy(A, B, len(TEXT)))
    assert next_token(context, B, 65) == expected(HYBRID, (*TEXT, 65))


def test_recurrent_rows_take_no_cells_and_share_none() -> None:
    context = RECURRENT.new_context(replace(CONFIG, n_ctx=64))
    for _ in range(5):
        put(context, A, TEXT)
    assert (context.n_used, context.bounds(A)) == (0, (0, 5 * len(TEXT)))
    traits = context.traits
    assert (traits.n_cells, traits.n_cells_row, traits.n_streams, traits.shared_cells) == (256, 64, 1, False)
    with pytest.raises(ValueError, match="share no cells"):
        context.apply(Copy(A, B, len(TEXT)))


def test_any_row_needs_no_checkpoint() -> None:
    context = SimModel().new_context(CONFIG)
    put(context, A, TEXT)
    for use in (lambda: context.checkpoint(A), lambda: context.restore(A, 3, b"")):
        with pytest.raises(ValueError, match="needs no checkpoint"):
            use()


@KINDS
def test_restoring_fails_by_injection_and_empties_the_row(model: SimModel) -> None:
    context = model.new_context(CONFIG, faults=Faults(load=lambda n: n == 0))
    put(context, A, TEXT)
    data = context.checkpoint(A)
    assert not context.restore(A, len(TEXT), data)
    assert context.bounds(A) == (0, 0)


def n_wrong(n_batch: int) -> int:
    """Wrong tokens in random histories of three rows, where a batch holds up to ``n_batch`` tokens."""
    model, wrong = SimModel(SimSpec(eos_every=0, kind=Kind.SLIDING, window=4)), 0
    for seed in range(20):
        draw = random.Random(seed)
        traits = replace(model.new_context(CONFIG).traits, n_batch=n_batch)
        context = SimContext(model.head, traits, Kind.SLIDING, 0, VirtualClock(), CostModel(), Faults())
        tokens: dict[RowId, tuple[int, ...]] = {A: (), B: (), C: ()}
        for _ in range(12):
            new = {row: tuple(draw.randrange(256) for _ in range(draw.choice([1, n_batch // 3]))) for row in tokens}
            spans = [Span(row, len(tokens[row]), new[row], 1) for row in tokens]
            assert context.decode(spans) is DecodeStatus.OK
            tokens = {row: tokens[row] + new[row] for row in tokens}
            seen = context.logits().argmax(axis=1).tolist()
            wrong += sum(token != expected(model, tokens[row]) for row, token in zip(tokens, seen, strict=True))
            if draw.random() < 0.3:
                context.apply(Trim(A, 0))
                tokens[A] = ()
    return wrong


def test_a_batch_is_no_larger_than_a_ubatch_where_there_is_a_window() -> None:
    """libllama finds cells for all ubatches first; a later one takes from the windows of earlier ones."""
    traits = SLIDING.new_context(CONFIG).traits
    assert traits.n_batch == traits.n_ubatch == CONFIG.n_ubatch
    assert n_wrong(traits.n_ubatch) == 0
    assert n_wrong(6 * traits.n_ubatch) > 0
