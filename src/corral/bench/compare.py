"""Two servers in alternation: ratios of pairs, so that drift of the machine does not count."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from corral.bench.report import Figures, higher_is_better, table

Side = Literal["a", "b"]
Measure = Callable[[Side, int], Awaitable[Figures]]
"""(side, seed) -> the figures of one run."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides under the same prompts, measured in ``order``."""

    seed: int
    order: tuple[Side, Side]
    a: Figures
    b: Figures


@dataclass(frozen=True, slots=True)
class Ratio:
    """a / b over all pairs that have both."""

    median: float
    low: float
    high: float


async def run_pair(measure: Measure, number: int, seed: int) -> Pair:
    """The pair ``number`` >= 0: a first in even ones, b first in odd ones. Each has prompts of its own."""
    order: tuple[Side, Side] = ("b", "a") if number % 2 else ("a", "b")
    figures = {side: await measure(side, seed + number) for side in order}
    return Pair(seed + number, order, figures["a"], figures["b"])


def ratios(pairs: Sequence[Pair]) -> dict[str, Ratio]:
    """For each figure that is a number other than zero on both sides."""
    found = {}
    for figure in pairs[0].a:
        values = [value for pair in pairs if (value := _ratio(pair, figure)) is not None]
        if values:
            found[figure] = Ratio(*(round(f(values), 3) for f in (statistics.median, min, max)))
    return found


def _ratio(pair: Pair, figure: str) -> float | None:
    a, b = pair.a.get(figure), pair.b.get(figure)
    return a / b if isinstance(a, int | float) and isinstance(b, int | float) and a and b else None


def median(pairs: Sequence[Pair], side: Side, figure: str) -> float | None:
    """Of one side; None if it never has the figure."""
    runs = [pair.a if side == "a" else pair.b for pair in pairs]
    values = [value for run in runs if isinstance(value := run.get(figure), int | float)]
    return statistics.median(values) if values else None


def rows(pairs: Sequence[Pair], figures: Sequence[str]) -> list[list[object]]:
    """[figure, median of a, median of b, median ratio, "min..max"] for each figure that either side has."""
    by_figure = ratios(pairs)
    return [
        _row(pairs, figure, by_figure.get(figure))
        for figure in figures
        if any(figure in pair.a or figure in pair.b for pair in pairs)
    ]


def _row(pairs: Sequence[Pair], figure: str, ratio: Ratio | None) -> list[object]:
    sides = [value if (value := median(pairs, side, figure)) is not None else "" for side in ("a", "b")]
    name = f"{figure} {'(more is better)' if higher_is_better(figure) else '(less is better)'}"
    return [name, *sides, *([ratio.median, f"{ratio.low:g}..{ratio.high:g}"] if ratio else ["", ""])]


def comparison_table(pairs: Sequence[Pair], figures: Sequence[str]) -> str:
    return table(["figure", "A", "B", "A/B", "min..max"], rows(pairs, figures))
