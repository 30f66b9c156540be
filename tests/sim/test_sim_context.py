"""The fake cache is honest: every mistake with cells becomes a wrong token, and libllama's traps are all there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from corral.config import ContextConfig
from corral.errors import LoadError
from corral.ids import RowId
from corral.ops import Copy, Shift, Span, Trim
from corral.ports import DecodeStatus
from corral.sim.context import Faults, SimContext
from corral.sim.model import SimModel, SimSpec
from corral.sim.oracle import solo

UNIFIED = ContextConfig(n_ctx=64, n_slots=2, n_rows=4, n_batch=32, n_ubatch=8)
SPLIT = replace(UNIFIED, kv_unified=False)
MODEL = SimModel(SimSpec(eos_every=0))
A, B, C = RowId(0), RowId(1), RowId(2)
PROMPT = tuple(b"a herd of llamas")


def open_context(config: ContextConfig = UNIFIED, faults: Faults | None = None) -> SimContext:
    return MODEL.new_context(config, faults=faults)


def put(context: SimContext, row: RowId, tokens: tuple[int, ...]) -> DecodeStatus:
    """Append tokens to a row without asking for logits."""
    return context.decode([Span(row, context.bounds(row)[1], tokens)])


def next_token(context: SimContext, row: RowId, token: int) -> int:
    """Append one token and let the fake say what follows."""
    assert context.decode([Span(row, context.bounds(row)[1], (token,), 1)]) is DecodeStatus.OK
    return int(context.logits()[0].argmax())


def expected(tokens: tuple[int, ...]) -> int:
    return solo(tokens, 1, model=MODEL)[0]


@pytest.fixture(params=[UNIFIED, SPLIT], ids=["unified", "split"])
def context(request: pytest.FixtureRequest) -> SimContext:
    return open_context(request.param)


def test_greedy_generation_is_what_the_oracle_says(context: SimContext) -> None:
    tokens = list(PROMPT)
    put(context, B, PROMPT[:-1])
    for _ in range(15):
        tokens.append(next_token(context, B, tokens[-1]))
    assert tuple(tokens[len(PROMPT) :]) == solo(PROMPT, 15, model=MODEL)


def test_chunks_and_neighbours_do_not_change_the_token(context: SimContext) -> None:
    put(context, A, PROMPT[:3])
    context.decode([Span(A, 3, PROMPT[3:9]), Span(B, 0, tuple(b"other"))])
    put(context, C, tuple(b"third"))
    put(context, A, PROMPT[9:-1])
    assert next_token(context, A, PROMPT[-1]) == expected(PROMPT)


def test_every_output_position_sees_only_what_lies_before_it(context: SimContext) -> None:
    context.decode([Span(A, 0, PROMPT, 3)])
    assert context.logits().argmax(axis=1).tolist() == [expected(PROMPT[:n]) for n in (14, 15, 16)]


def test_outputs_come_in_span_order(context: SimContext) -> None:
    context.decode([Span(C, 0, (1, 2), 1), Span(A, 0, (3,), 0), Span(B, 0, (4,), 1)])
    assert context.logits().argmax(axis=1).tolist() == [expected((1, 2)), expected((4,))]


def test_a_missed_trim_makes_a_wrong_token(context: SimContext) -> None:
    put(context, A, (*PROMPT[:-1], 7))
    assert next_token(context, A, PROMPT[-1]) != expected(PROMPT)
    context.apply(Trim(A, len(PROMPT) - 1))
    assert next_token(context, A, PROMPT[-1]) == expected(PROMPT)


def test_a_wrong_prefix_makes_a_wrong_token() -> None:
    context = open_context()
    put(context, A, (*PROMPT[:5], 7, *PROMPT[6:-1]))
    context.apply(Copy(A, B, len(PROMPT) - 1))
    assert next_token(context, B, PROMPT[-1]) != expected(PROMPT)


def test_the_order_of_tokens_matters(context: SimContext) -> None:
    put(context, A, (1, 2))
    put(context, B, (2, 1))
    assert next_token(context, A, 3) == expected((1, 2, 3)) != next_token(context, B, 3)


def test_a_shared_cell_written_over_is_noticed_by_both_rows() -> None:
    context = open_context()
    put(context, A, PROMPT[:-1])
    context.apply(Copy(A, B, 5))
    main = context.memory.main
    main.word[main.cells(B)[0]] = 99
    assert context.tokens(A)[0] == context.tokens(B)[0] == 99
    assert next_token(context, A, PROMPT[-1]) != expected(PROMPT)


def test_a_position_held_twice_makes_a_wrong_token_and_fails_the_check(context: SimContext) -> None:
    put(context, A, PROMPT[:-1])
    context.check()
    main = context.memory.main
    main.hold(A, main.free(A)[:1])
    assert next_token(context, A, PROMPT[-1]) != expected(PROMPT)
    with pytest.raises(AssertionError, match="holds positions"):
        context.check()


def test_a_miscounted_holder_fails_the_check(context: SimContext) -> None:
    put(context, A, PROMPT)
    main = context.memory.main
    main.n_holders[main.cells(A)[0]] += 1
    with pytest.raises(AssertionError, match="miscounted"):
        context.check()


def test_copy_shares_cells_and_the_copies_part_afterwards() -> None:
    context = open_context()
    put(context, A, PROMPT)
    context.apply(Copy(A, B, 10))
    assert (context.n_used, context.bounds(B)) == (len(PROMPT), (0, 10))
    assert next_token(context, B, 65) == expected((*PROMPT[:10], 65))
    assert next_token(context, A, 66) == expected((*PROMPT, 66))
    context.apply(Trim(A, 0))
    assert (context.n_used, context.tokens(B)) == (11, (*PROMPT[:10], 65))
    context.check()


def test_copy_empties_its_target_first() -> None:
    context = open_context()
    put(context, A, (1, 2))
    put(context, B, (3, 4, 5))
    context.apply(Copy(A, B, 1))
    assert (context.tokens(B), context.n_used) == ((1,), 2)


def test_split_rows_share_nothing() -> None:
    context = open_context(SPLIT)
    put(context, A, PROMPT)
    for n in (3, len(PROMPT)):
        with pytest.raises(ValueError, match="split"):
            context.apply(Copy(A, B, n))
    assert context.bounds(B) == (0, 0)


def test_no_room_stores_nothing_and_takes_no_time(context: SimContext) -> None:
    n_room = context.traits.n_cells_row
    for _ in range(n_room // 16 - 1):
        put(context, A, PROMPT)
    free = n_room - context.bounds(A)[1]
    assert context.decode([Span(A, n_room - free, PROMPT[:1] * (free + 1))]) is DecodeStatus.NO_ROOM
    assert (context.bounds(A)[1], context.n_used) == (n_room - free, n_room - free)
    assert put(context, A, PROMPT[:1] * free) is DecodeStatus.OK


def test_unified_room_is_everybodys_and_split_room_is_ones_own() -> None:
    for config, status in ((UNIFIED, DecodeStatus.NO_ROOM), (SPLIT, DecodeStatus.OK)):
        context = open_context(config)
        for row in (A, A, B, B):
            put(context, row, PROMPT)
        assert put(context, C, PROMPT[:1]) is status


@pytest.mark.parametrize("status", [DecodeStatus.ABORTED, DecodeStatus.FAILED])
def test_what_was_computed_before_a_failure_stays(status: DecodeStatus) -> None:
    context = open_context(faults=Faults(decode=lambda n: status if n == 1 else None))
    put(context, B, (1,))
    assert context.decode([Span(A, 0, PROMPT, 1), Span(B, 1, (5,))]) is status
    assert context.bounds(A) == (0, 8)
    assert context.bounds(B) == (0, 1)
    context.check()


def test_going_on_after_a_failure_without_trimming_gives_a_wrong_token() -> None:
    faults = Faults(decode=lambda n: DecodeStatus.FAILED if n == 1 else None)
    for trim in (False, True):
        context = open_context(faults=faults)
        put(context, A, (1,))
        context.decode([Span(A, 1, PROMPT, 1)])
        with pytest.raises(ValueError, match="starts at"):
            context.decode([Span(A, 1, PROMPT, 1)])
        if trim:
            context.apply(Trim(A, 1))
        put(context, A, PROMPT[:-1])
        assert (next_token(context, A, PROMPT[-1]) == expected((1, *PROMPT))) is trim


@pytest.mark.parametrize("status", [DecodeStatus.NO_ROOM, DecodeStatus.INVALID])
def test_injected_refusals_store_nothing(status: DecodeStatus) -> None:
    context = open_context(faults=Faults(decode=lambda n: status))
    assert put(context, A, PROMPT) is status
    assert context.n_used == 0


def test_tokens_outside_the_vocabulary_are_an_invalid_batch(context: SimContext) -> None:
    for token in (-1, MODEL.info.n_vocab):
        assert put(context, A, (1, token)) is DecodeStatus.INVALID
    assert context.bounds(A) == (0, 0)


def test_logits_can_only_be_read_after_success() -> None:
    context = open_context(faults=Faults(decode=lambda n: DecodeStatus.FAILED if n == 1 else None))
    with pytest.raises(ValueError, match="no logits"):
        context.logits()
    next_token(context, A, 1)
    context.decode([Span(A, 1, (2,), 1)])
    with pytest.raises(ValueError, match="no logits"):
        context.logits()


def test_kept_logits_go_bad_at_the_next_decode(context: SimContext) -> None:
    next_token(context, A, 1)
    kept = context.logits()
    put(context, A, (2,))
    assert np.isnan(kept).all()


def test_a_saved_row_comes_back_anywhere(context: SimContext) -> None:
    put(context, A, PROMPT[:-1])
    data = context.save(A)
    put(context, B, (9, 9))
    assert context.load(B, data)
    assert next_token(context, B, PROMPT[-1]) == expected(PROMPT)
    assert context.tokens(A) == PROMPT[:-1]
    context.check()


def test_load_duplicates_cells() -> None:
    context = open_context()
    put(context, A, PROMPT)
    context.load(B, context.save(A))
    assert context.n_used == 2 * len(PROMPT)


def test_load_without_room_fails_and_leaves_the_row_empty() -> None:
    context = open_context()
    for row in (A, A, A, B):
        put(context, row, PROMPT)
    assert not context.load(B, context.save(A))
    assert context.bounds(B) == (0, 0)
    assert context.bounds(A) == (0, 48)
    context.check()


def test_an_injected_load_failure_leaves_the_row_empty() -> None:
    context = open_context(faults=Faults(load=lambda n: n == 0))
    put(context, A, PROMPT)
    data = context.save(A)
    assert not context.load(A, data)
    assert context.bounds(A) == (0, 0)
    assert context.load(A, data)


@pytest.mark.parametrize("spoil", [lambda d: b"", lambda d: d[:-1], lambda d: d + b"x", lambda d: b"XXXX" + d[4:]])
def test_bad_bytes_are_refused(context: SimContext, spoil) -> None:  # type: ignore[no-untyped-def]
    put(context, A, PROMPT)
    assert not context.load(B, spoil(context.save(A)))
    assert context.bounds(B) == (0, 0)


def test_bytes_are_bound_to_the_kind_of_context_and_model() -> None:
    context, split = open_context(), open_context(SPLIT)
    other = SimModel(SimSpec(seed=1)).new_context(UNIFIED)
    put(context, A, PROMPT)
    data = context.save(A)
    assert not split.load(A, data)
    assert not other.load(A, data)


def test_an_empty_row_saved_empties_its_target(context: SimContext) -> None:
    data = context.save(A)
    put(context, B, PROMPT)
    assert context.load(B, data)
    assert context.bounds(B) == (0, 0)


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [Span(A, 2, ())],
        [Span(RowId(4), 0, (1,))],
        [Span(RowId(-1), 0, (1,))],
        [Span(A, 0, (1,))],
        [Span(A, 3, (1,))],
        [Span(A, 2, (1,), 2)],
        [Span(A, 2, (1,), -1)],
        [Span(A, 2, (1,)), Span(A, 3, (1,))],
        [Span(A, 2, (1,) * 33)],
        [Span(A, 2, (1,) * 21, 21)],
    ],
)
def test_bad_batches_are_refused_whole(context: SimContext, spans: list[Span]) -> None:
    put(context, A, (1, 2))
    with pytest.raises(ValueError, match=r"row|batch|outputs"):
        context.decode(spans)
    assert (context.bounds(A), context.n_used) == ((0, 2), 2)


@pytest.mark.parametrize(
    "op", [Trim(A, 3), Trim(A, -1), Trim(RowId(9), 0), Copy(A, A, 1), Copy(A, B, 3), Copy(B, RowId(7), 0)]
)
def test_bad_ops_are_refused(op: Trim | Copy) -> None:
    context = open_context()
    put(context, A, (1, 2))
    with pytest.raises(ValueError, match="row"):
        context.apply(op)
    assert context.tokens(A) == (1, 2)


def test_a_closed_context_refuses_everything(context: SimContext) -> None:
    context.close()
    context.close()
    for call in (lambda: context.bounds(A), lambda: context.apply(Trim(A, 0)), lambda: context.load(A, b"")):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_sizes_follow_libllama() -> None:
    padded = SimModel(SimSpec(n_pad=256))
    unified = padded.new_context(ContextConfig(n_ctx=500, n_slots=3, n_rows=5, n_batch=2048)).traits
    assert (unified.n_cells, unified.n_cells_row, unified.n_streams, unified.n_batch) == (512, 512, 1, 512)
    split = padded.new_context(ContextConfig(n_ctx=900, n_slots=3, n_rows=5, kv_unified=False)).traits
    assert (split.n_cells, split.n_cells_row, split.n_streams) == (2560, 512, 5)
    assert open_context(replace(UNIFIED, n_ctx=0)).traits.n_cells == MODEL.info.n_ctx_train


def test_sizes_libllama_would_refuse() -> None:
    for config in (replace(UNIFIED, n_rows=1), replace(UNIFIED, n_batch=0), replace(UNIFIED, n_ctx=-1)):
        with pytest.raises(LoadError):
            open_context(config)


def test_a_shifted_row_keeps_what_it_saw(context: SimContext) -> None:
    """Its tokens move down, the next one is another than of a cold row with the same tokens, and bytes keep that."""
    tokens = tuple(range(97, 109))
    context.decode([Span(A, 0, tokens)])
    context.apply(Shift(A, 2, 5))
    assert context.tokens(A) == (tokens[:2] + tokens[7:])
    assert context.bounds(A) == (0, 7)
    context.check()
    context.decode([Span(A, 7, (97,), 1)])
    warm = context.logits()[0].copy()
    data = context.save(A)
    context.decode([Span(B, 0, tokens[:2] + tokens[7:] + (97,), 1)])
    cold = context.logits()[0].copy()
    assert not np.array_equal(warm, cold)
    assert context.load(C, data)
    context.decode([Span(C, 8, (98,), 1), Span(A, 8, (98,), 1)])
    assert np.array_equal(*context.logits())


def test_a_shift_takes_place_with_the_next_decode(context: SimContext) -> None:
    context.decode([Span(A, 0, (97, 98, 99, 100))])
    context.apply(Shift(A, 0, 1))
    with pytest.raises(ValueError, match="before the next decode"):
        context.save(A)
    context.decode([Span(B, 0, (97,))])
    assert context.save(A)


@pytest.mark.parametrize(("keep", "discard"), [(0, 4), (-1, 2), (2, 0), (4, 1)])
def test_a_shift_leaves_something_that_moves(context: SimContext, keep: int, discard: int) -> None:
    context.decode([Span(A, 0, (97, 98, 99, 100))])
    with pytest.raises(ValueError, match="cannot keep"):
        context.apply(Shift(A, keep, discard))
