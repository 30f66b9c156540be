"""The mirror of libllama's batch splitting (llama-batch.cpp: split_simple, split_equal with sequential ids)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.config import ContextConfig
from corral.ids import RowId
from corral.ops import Span
from corral.sim.shape import MemorySpec, traits_of
from corral.sim.ubatch import ubatches


def cut(rows: list[tuple[int, int]], n_ubatch: int, unified: bool) -> list[list[tuple[int, int]]]:
    config = ContextConfig(n_ctx=4096, n_slots=8, n_rows=8, n_ubatch=n_ubatch, kv_unified=unified)
    spans = [Span(RowId(row), 0, (0,) * n) for row, n in rows]
    return [list(piece) for piece in ubatches(spans, traits_of(config, MemorySpec(n_pad=256)))]


@pytest.mark.parametrize(
    ("rows", "n_ubatch", "pieces"),
    [
        ([(3, 5)], 8, [[(3, 5)]]),
        ([(3, 5), (0, 5)], 8, [[(3, 5), (0, 3)], [(0, 2)]]),
        ([(0, 20)], 8, [[(0, 8)], [(0, 8)], [(0, 4)]]),
    ],
)
def test_unified_batches_are_cut_in_order(
    rows: list[tuple[int, int]], n_ubatch: int, pieces: list[list[tuple[int, int]]]
) -> None:
    assert cut(rows, n_ubatch, unified=True) == pieces


@pytest.mark.parametrize(
    ("rows", "n_ubatch", "pieces"),
    [
        ([(0, 1), (1, 1), (2, 1), (3, 1)], 8, [[(0, 1), (1, 1), (2, 1), (3, 1)]]),
        ([(0, 1), (1, 1), (2, 1), (4, 1)], 8, [[(0, 1), (1, 1), (2, 1)], [(4, 1)]]),
        ([(0, 1), (2, 1), (4, 1)], 8, [[(0, 1)], [(2, 1)], [(4, 1)]]),
        ([(2, 1), (1, 1), (0, 1)], 8, [[(2, 1)], [(1, 1)], [(0, 1)]]),
        ([(0, 1), (2, 1), (1, 1)], 8, [[(0, 1), (1, 1)], [(2, 1)]]),
        ([(0, 1), (1, 9)], 8, [[(0, 1), (1, 1)], [(1, 8)]]),
        ([(0, 6), (1, 6)], 8, [[(0, 4), (1, 4)], [(0, 2), (1, 2)]]),
        ([(0, 3), (1, 3), (2, 3)], 8, [[(0, 2), (1, 2), (2, 2)], [(0, 1), (1, 1), (2, 1)]]),
        ([(row, 1) for row in range(4)], 2, [[(0, 1), (1, 1), (2, 1)], [(3, 1)]]),
    ],
)
def test_split_batches_are_cut_into_equal_runs_of_consecutive_rows(
    rows: list[tuple[int, int]], n_ubatch: int, pieces: list[list[tuple[int, int]]]
) -> None:
    assert cut(rows, n_ubatch, unified=False) == pieces


@given(
    st.dictionaries(st.integers(0, 7), st.integers(1, 40), min_size=1),
    st.integers(1, 24),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_pieces_hold_each_token_once(lengths: dict[int, int], n_ubatch: int, unified: bool, random) -> None:  # type: ignore[no-untyped-def]
    rows = list(lengths.items())
    random.shuffle(rows)
    pieces = cut(rows, n_ubatch, unified)
    assert {row: sum(dict(piece).get(row, 0) for piece in pieces) for row in lengths} == lengths
    assert all(0 < sum(n for _, n in piece) <= n_ubatch + (not unified) for piece in pieces)
