"""Owns the mirror of how libllama cuts a batch into the pieces it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.ids import RowId
from corral.ops import Span
from corral.ports import MemoryTraits

Ubatch = list[tuple[RowId, int]]
"""(row, n_tokens) in order; what one forward pass computes."""


def ubatches(spans: Sequence[Span], traits: MemoryTraits) -> list[Ubatch]:
    """The pieces of a batch in the order they are computed. Rows of ``spans`` are distinct.

    Where rows keep states all rows of a piece must have as many tokens; so on split KV, of consecutive rows.
    """
    if traits.n_streams == 1 and not traits.whole_copy_only:
        return _cut(spans, traits.n_ubatch, _cut_in_order)
    return _cut(spans, traits.n_ubatch, _cut_equal if traits.shared_cells else _cut_consecutive)


def ubatches_if_full(spans: Sequence[Span], traits: MemoryTraits) -> list[Ubatch]:
    """What is tried next where the pieces of ``ubatches`` found no room in one of two pools."""
    return _cut(spans, traits.n_ubatch, _cut_equal if traits.shared_cells else _cut_consecutive)


def _cut(spans: Sequence[Span], n_ubatch: int, cut: Callable[[Ubatch, int], Ubatch]) -> list[Ubatch]:
    left = [(span.row, len(span.tokens)) for span in spans]
    pieces: list[Ubatch] = []
    while left:
        piece = cut(left, n_ubatch)
        pieces.append(piece)
        taken = dict(piece)
        left = [(row, n - taken.get(row, 0)) for row, n in left if n > taken.get(row, 0)]
    return pieces


def _cut_in_order(left: Ubatch, n_ubatch: int) -> Ubatch:
    """One pool: the next ``n_ubatch`` tokens, whatever rows they belong to."""
    piece: Ubatch = []
    room = n_ubatch
    for row, n in left:
        if room == 0:
            break
        piece.append((row, min(n, room)))
        room -= min(n, room)
    return piece


def _cut_consecutive(left: Ubatch, n_ubatch: int) -> Ubatch:
    """A pool for each row: the first run of consecutive ascending ids, the same number of tokens of each."""
    run = left[:1]
    for row, n in left[1:]:
        if row == run[-1][0] + 1:
            run.append((row, n))
    return _cut_equal(run, n_ubatch)


def _cut_equal(left: Ubatch, n_ubatch: int) -> Ubatch:
    """The same number of tokens of each row.

    libllama stops collecting rows only after one too many and always takes one token of each, so a piece may hold
    ``n_ubatch + 1`` tokens.
    """
    rows = left[: n_ubatch + 1]
    each = min(min(n for _, n in rows), max(1, n_ubatch // len(rows)))
    return [(row, each) for row, _ in rows]
