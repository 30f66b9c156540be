"""How much of which prompt a step computes beside running generations, so that they keep their pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corral.engine.cost import N_TILED, CostModel, Part, features
from corral.ids import RowId

SMALL = (48, 32, 16, 8)
"""Chunks below a tile, for when not even one tile is affordable."""

PATIENCE = 1.5
"""A step may exceed its target by this factor when nothing worth computing fits it."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Prompt tokens of a row that are not computed yet: ``n_left`` >= 1 from position ``pos0`` on."""

    row: RowId
    pos0: int
    n_left: int


Chunks = list[int]
"""Tokens for each prompt, from the first on; the rest get none."""


def choose_chunks(
    cost: CostModel,
    running: Sequence[Part],
    prompts: Sequence[Pending],
    n_budget: int,
    n_used: int,
    target_ms: float,
) -> Chunks:
    """The most prompt tokens, in the order given, that keep the step within ``target_ms`` beside ``running`` parts.

    Whole prompts first: several short ones together may cost less than one alone, since the kernel works in tiles.
    Then a part of the next. If nothing fits, the most for ``PATIENCE`` times the target, else a few tokens.
    ``n_budget``: tokens the batch still holds. Empty only if there is no prompt or no budget.
    """

    def price(chunks: Chunks) -> float:
        parts = [Part(p.row, p.pos0, n) for p, n in zip(prompts, chunks, strict=False)]
        return cost.predict(features(sorted([*running, *parts]), cost.traits, n_used))

    if not prompts or n_budget <= 0:
        return []
    wholes = _wholes(prompts, n_budget)
    chosen: Chunks = next((w for w in wholes if price(w) <= target_ms), [])
    if len(chosen) < len(prompts):
        sizes = tiled_sizes(cost, len(running), prompts[len(chosen)].n_left, n_budget - sum(chosen))
        n = _largest(sizes, lambda n: price([*chosen, n]), target_ms)
        chosen = [*chosen, n] if n else chosen
    return chosen or _least(
        price, [*wholes, *([n] for n in _sizes_of_first(cost, running, prompts[0], n_budget))], target_ms
    )


def _wholes(prompts: Sequence[Pending], n_budget: int) -> list[Chunks]:
    """The first m prompts whole, for each m that the budget allows, most first."""
    found: list[Chunks] = []
    n_total = 0
    for i, prompt in enumerate(prompts):
        n_total += prompt.n_left
        if n_total > n_budget:
            break
        found.append([p.n_left for p in prompts[: i + 1]])
    return found[::-1]


def tiled_sizes(cost: CostModel, n_running: int, n_left: int, n_budget: int) -> list[int]:
    """Chunks that fill the kernel's tiles and leave enough for one more, ascending.

    64k + 1 where each row has its stream (one token goes with the others, the rest alone), else 64k together with the
    running rows. A rest below a tile would cost more than a whole one.
    """
    offset = 1 if cost.traits.n_streams > 1 else -n_running % N_TILED
    return [n for n in range(offset, min(n_left - N_TILED, n_budget) + 1, N_TILED) if n >= N_TILED // 2]


def _sizes_of_first(cost: CostModel, running: Sequence[Part], prompt: Pending, n_budget: int) -> list[int]:
    n_max = min(prompt.n_left, n_budget)
    return [*tiled_sizes(cost, len(running), prompt.n_left, n_budget)[:1], *(n for n in SMALL if n < n_max), n_max]


def n_given_back(cost: CostModel, n_reused: int, n_left: int, n_beside: int) -> int:
    """How many tokens of a reused prefix to compute again, since a whole tile costs less than the few that are left.

    ``n_beside``: queries that share the kernel with the ``n_left`` ones (none where each row has its stream; then one
    token goes apart). With 20 tokens at position 800 on a slow path of 12 ms a query, 64 took a third less. Ubatches
    smaller than a tile never fill one.
    """
    if cost.traits.n_ubatch < N_TILED:
        return 0
    if cost.traits.n_streams > 1:
        n_left, n_beside = n_left - 1, 0
    n_queries = n_left + n_beside
    n_missing = N_TILED - n_queries
    if not 0 < n_missing <= n_reused or n_queries <= n_beside:
        return 0
    w, pos = cost.weights, n_reused
    tiled_ms = w.seen_tiled * N_TILED * pos + w.n_tokens * n_missing
    return n_missing if tiled_ms < w.seen * n_queries * pos else 0


def _least(price: Callable[[Chunks], float], options: list[Chunks], target_ms: float) -> Chunks:
    """What to do when nothing fits: the most that is not much too dear, else the cheapest."""
    prices = [(price(option), option) for option in options]
    affordable = [option for ms, option in prices if ms <= PATIENCE * target_ms]
    return max(affordable, key=sum) if affordable else min(prices)[1]


def _largest(sizes: list[int], price: Callable[[int], float], target_ms: float) -> int:
    """The largest of ascending sizes that costs at most the target (bisection: time grows with the size); 0 if none."""
    lo, hi, best = 0, len(sizes) - 1, 0
    while lo <= hi:
        mid = (lo + hi) // 2
        if price(sizes[mid]) <= target_ms:
            best, lo = sizes[mid], mid + 1
        else:
            hi = mid - 1
    return best
