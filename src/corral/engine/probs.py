"""Rows of logits to candidates and probabilities: the arithmetic of sampling, over many rows at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.events import Ranked
from corral.ids import Token

Floats = NDArray[np.float32]
Ints = NDArray[np.intp]

N_FOLD = 16

N_FIRST = 512
"""Candidates that are tried before a whole vocabulary is sorted."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which candidates are kept, and how flat the draw among them is; as llama-server's fields of these names.

    ``top_k`` <= 0 keeps all. ``temperature`` > 0.
    """

    top_k: int
    top_p: float
    min_p: float
    temperature: float
    min_keep: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Candidates of n rows, most likely first where any was dropped: ``tokens`` and ``weights`` of shape (n, width).

    Weights are proportional to the probabilities of the draw, and 0 for what was filtered out.
    """

    tokens: Ints
    weights: Floats


def top(row: Floats, k: int) -> Ints:
    """Indices of the k largest of a row (of all for k <= 0), largest first."""
    if not 0 < k < len(row):
        return np.argsort(-row)
    found = _shortlist(row, k) if k <= len(row) // (4 * N_FOLD) else _reaching(row, _kth(row, k))[0]
    return found[np.argsort(-row[found], kind="stable")[:k]]


def _shortlist(row: Floats, k: int) -> Ints:
    """Indices of the k largest of a row, ascending, and maybe of some that come next.

    The row is folded, and each column of ``N_FOLD`` values stands for its largest. The k columns with the largest hold
    k values that reach the least of these, so every one of the k largest does: only those columns need to be read.
    """
    n_columns = len(row) // N_FOLD
    highest = row[: N_FOLD * n_columns].reshape(N_FOLD, n_columns).max(axis=0)
    bound = _kth(highest, k)
    inside = (np.arange(N_FOLD)[:, None] * n_columns + _reaching(highest, bound)[0]).ravel()
    index = np.concatenate((inside, np.arange(N_FOLD * n_columns, len(row))))
    return index[_reaching(row[index], bound)[0]]


def candidates_of_all(rows: Floats, k: int) -> tuple[Ints, Floats]:
    """As ``candidates`` for each of n rows at once: tokens and logits of shape (n, k).

    A few operations on the whole table cost less than a dozen on each row.
    """
    n_rows, n_vocab = rows.shape
    if k > n_vocab // (4 * N_FOLD) or n_vocab % N_FOLD:
        return table([candidates(row, k) for row in rows])
    n_columns = n_vocab // N_FOLD
    folded = rows.reshape(n_rows, N_FOLD, n_columns)
    highest = folded.max(axis=1)
    bound = np.partition(highest, n_columns - k, axis=1)[:, n_columns - k]
    at_row, at_column = _reaching(highest, bound[:, None])
    values = folded[at_row, :, at_column]
    inside, fold = _reaching(values, bound[at_row, None])
    at_row, tokens, logits = at_row[inside], fold * n_columns + at_column[inside], values[inside, fold]
    order = np.lexsort((tokens, -logits, at_row))
    first = np.searchsorted(at_row, np.arange(n_rows))
    best = order[first[:, None] + np.arange(k)]
    return tokens[best], logits[best]


def _kth(values: Floats, k: int) -> np.float32:
    return np.float32(np.partition(values, len(values) - k)[len(values) - k])


def _reaching(values: Floats, bound: Floats | np.float32) -> tuple[Ints, ...]:
    """Where values are not below the bound; NaN is not, so that no row is left without candidates."""
    return (~(values < bound)).nonzero()


Candidates = tuple[Ints, Floats]
"""Tokens and their logits, the likeliest first."""


def candidates(row: Floats, k: int) -> Candidates:
    """The k likeliest of a row."""
    tokens = top(row, k)
    return tokens, row[tokens]


def keep(found: Sequence[Candidates], filters: Sequence[Filter]) -> Kept:
    """Apply to the top-k candidates of each row its own filter: top-p, min-p, temperature."""
    return keep_of_all(table(found), filters)


def keep_of_all(table: Candidates, filters: Sequence[Filter]) -> Kept:
    """The same for candidates in a table of shape (n, width)."""
    return _filter(*table, filters, None)


def draw_listed(logits: list[float], f: Filter, uniform: float) -> int:
    """Column drawn from a row of sorted candidates: as ``keep`` and ``draw``, for a few candidates without numpy.

    Two dozen array operations take longer than a loop over 40 numbers.
    """
    top = logits[0]
    n_min, n_kept = max(f.min_keep, 1), len(logits)
    if f.min_p > 0.0:
        bound = top + math.log(f.min_p)
        n_kept = max(n_min, sum(1 for x in logits if x >= bound))
    if f.top_p < 1.0:
        masses = [math.exp(x - top) for x in logits]
        left = f.top_p * sum(masses)
        n_top_p = 0
        while n_top_p < n_kept and left > 0.0:
            left -= masses[n_top_p]
            n_top_p += 1
        n_kept = min(n_kept, max(n_top_p, n_min))
    weights = [math.exp((x - top) / f.temperature) for x in logits[:n_kept]]
    rest = uniform * sum(weights)
    for column, weight in enumerate(weights):
        rest -= weight
        if rest < 0.0:
            return column
    return max((column for column, weight in enumerate(weights) if weight > 0.0), default=0)


def keep_wide(row: Floats, f: Filter) -> Kept:
    """The same for one row whose top-k keeps much. One that keeps all is sorted no further than the rest needs."""
    if 0 < f.top_k < len(row):
        return keep([candidates(row, f.top_k)], [f])
    below = row - row.max()
    if f.top_p >= 1.0 and f.min_p <= 0.0:
        return Kept(np.arange(len(row))[None], np.exp(below / np.float32(f.temperature))[None])
    tokens = top(row, N_FIRST)
    kept = _filter(tokens[None], row[tokens][None], [f], np.exp(below).sum())
    return kept if kept.weights[0, -1] == 0.0 else keep([candidates(row, f.top_k)], [f])


def _filter(tokens: Ints, logits: Floats, filters: Sequence[Filter], total: np.float32 | None) -> Kept:
    """Top-p, min-p and temperature over sorted rows. ``total``: of exp(logit - largest) if more than these count."""
    top_p, min_p, temperature, min_keep = np.array([_settings(f) for f in filters]).T[:, :, None]
    below = logits - logits[:, :1]
    sums = np.cumsum(np.exp(below), axis=1)
    n_top_p = np.maximum(_count(sums < top_p * (sums[:, -1:] if total is None else total)) + 1, min_keep)
    n_min_p = np.maximum(_count(below >= np.log(min_p)), np.maximum(min_keep, 1))
    n_kept = np.where(top_p < 1.0, np.minimum(n_top_p, n_min_p), n_min_p)
    weights = np.exp(below / temperature.astype(np.float32))
    weights[np.arange(logits.shape[1]) >= n_kept] = 0.0
    return Kept(tokens, weights)


def _settings(f: Filter) -> tuple[float, float, float, int]:
    return f.top_p, f.min_p, f.temperature, f.min_keep


def _count(mask: NDArray[np.bool_]) -> Ints:
    counts: Ints = np.count_nonzero(mask, axis=1, keepdims=True)
    return counts


def table(found: Sequence[Candidates]) -> Candidates:
    """Rows of different length as one table: tokens (0 where short) and their logits (-inf there)."""
    width = max(len(tokens) for tokens, _ in found)
    tokens = np.zeros((len(found), width), np.intp)
    logits = np.full((len(found), width), -np.inf, np.float32)
    for i, (index, values) in enumerate(found):
        tokens[i, : len(index)] = index
        logits[i, : len(index)] = values
    return tokens, logits


def draw(kept: Kept, uniform: Sequence[float]) -> Ints:
    """Columns drawn with the kept weights; ``uniform`` has one number in [0, 1) for each row."""
    sums = np.cumsum(kept.weights, axis=1, dtype=np.float64)
    return _count(sums < np.array(uniform)[:, None] * sums[:, -1:])[:, 0]


def top_logprobs(row: Floats, token: Token, n: int) -> tuple[float, Ranked]:
    """Natural log-probability of a token over the whole row, and those of the n likeliest tokens, sorted."""
    best = top(row, n)[:n]
    below = row - row[best[0]]
    log_sum = row[best[0]] + np.log(np.exp(below, out=below).sum())
    return float(row[token] - log_sum), Ranked(best.tolist(), (row[best] - log_sum).tolist())


def top_kept(kept: Kept, i: int, column: int, n: int) -> tuple[float, Ranked]:
    """Probability of row i's drawn column after filtering, and the n likeliest kept tokens, none with 0."""
    p = kept.weights[i] / kept.weights[i].sum()
    best = top(p, n)[:n]
    best = best[p[best] > 0.0]
    return float(p[column]), Ranked(kept.tokens[i, best].tolist(), p[best].tolist())
