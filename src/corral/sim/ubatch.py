"""Owns the mirror of how libllama cuts a batch into the pieces it computes."""

from __future__ import annotations

from collections.abc import Sequence

from corral.ids import RowId
from corral.ops import Span
from corral.ports import MemoryTraits

Ubatch = list[tuple[RowId, int]]
"""(row, n_tokens) in order; what one forward pass computes."""


def ubatches(spans: Sequence[Span], traits: MemoryTraits) -> list[Ubatch]:
    """The pieces of a batch in the order they are computed. Rows of ``spans`` are distinct."""
    left = [(span.row, len(span.tokens)) for span in spans]
    cut = _cut_in_order if traits.n_streams == 1 else _cut_equal
    pieces: list[Ubatch] = []
    while left:
        piece = cut(left, traits.n_ubatch)
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


def _cut_equal(left: Ubatch, n_ubatch: int) -> Ubatch:
    """A pool for each row: the first run of consecutive ascending ids, the same number of tokens of each.

    libllama stops collecting rows only after one too many and always takes one token of each, so a piece may hold
    ``n_ubatch + 1`` tokens.
    """
    rows: list[RowId] = []
    shortest = left[0][1]
    for row, n in left:
        if rows and row != rows[-1] + 1:
            continue
        rows.append(row)
        shortest = min(shortest, n)
        if len(rows) > n_ubatch:
            break
    each = min(shortest, max(1, n_ubatch // len(rows)))
    return [(row, each) for row in rows]
