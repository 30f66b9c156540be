"""Owns the search for the likeliest tokens of all rows of a step that may be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corral.engine.edits import undo
from corral.engine.probs import Candidates, Floats, candidates_of_all, table

if TYPE_CHECKING:
    from corral.engine.sampling import RowSampler

N_SPARE = 88
"""Candidates beyond those asked for where constraints leave some out: mostly few of the likeliest."""


def find(logits: Floats, rows: Sequence[tuple[int, RowSampler]], k: int) -> Candidates:
    """The k likeliest of each (row of ``logits``, sampler) as a table, fewer where fewer may be drawn.

    The rows are searched together if most of those between the first and the last are asked for.
    """
    first, last = min(i for i, _ in rows), max(i for i, _ in rows)
    if len(rows) == 1 or 2 * len(rows) <= last - first or len({i for i, _ in rows}) < len(rows):
        return table([sampler.candidates(logits[i], k) for i, sampler in rows])
    is_held = any(sampler.allowed is not None for _, sampler in rows)
    edits = [(logits[i], sampler.edits.apply(logits[i])) for i, sampler in rows]
    try:
        tokens, values = candidates_of_all(logits[first : last + 1], min(k + N_SPARE * is_held, logits.shape[1]))
    finally:
        for row, edit in edits:
            undo(row, edit)
    at = np.array([i - first for i, _ in rows])
    if not is_held:
        return tokens[at], values[at]
    found = zip(rows, tokens[at], values[at], strict=True)
    return table([_allowed(logits[i], sampler, one, k) for (i, sampler), *one in found])


def _allowed(row: Floats, sampler: RowSampler, found: Sequence[np.ndarray], k: int) -> Candidates:
    """The k likeliest of a row that may be drawn, from more of the likeliest if they are among them."""
    tokens, values = found
    if sampler.allowed is not None:
        inside = sampler.allowed.among(tokens)
        tokens, values = tokens[inside], values[inside]
    return (tokens[:k], values[:k]) if len(tokens) >= k else sampler.candidates(row, k)
