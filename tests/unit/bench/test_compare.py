"""Alternation and ratios."""

from __future__ import annotations

import asyncio

from corral.bench.compare import Pair, Side, comparison_table, median, ratios, run_pair
from corral.bench.report import Figures


def pair(a: float, b: float, number: int = 0) -> Pair:
    return Pair(number, ("a", "b"), {"gen_tok_s": a}, {"gen_tok_s": b})


def test_sides_take_turns_at_being_first_and_each_pair_has_its_own_seed():
    calls: list[tuple[Side, int]] = []

    async def measure(side: Side, seed: int) -> Figures:
        calls.append((side, seed))
        return {"gen_tok_s": 2.0 if side == "a" else 1.0}

    async def run() -> list[Pair]:
        return [await run_pair(measure, number, seed=7) for number in range(3)]

    pairs = asyncio.run(run())
    assert calls == [("a", 7), ("b", 7), ("b", 8), ("a", 8), ("a", 9), ("b", 9)]
    assert [(p.a["gen_tok_s"], p.b["gen_tok_s"]) for p in pairs] == [(2.0, 1.0)] * 3


def test_ratio_is_the_median_of_the_pairs_ratios():
    found = ratios([pair(2, 1), pair(30, 10), pair(10, 20)])["gen_tok_s"]
    assert (found.median, found.low, found.high) == (2.0, 0.5, 3.0)


def test_figures_without_a_ratio_are_left_out():
    one = Pair(1, ("a", "b"), {"slots_busy": 0, "only_a": 1.0, "wall_s": 2.0}, {"slots_busy": 0, "wall_s": 4.0})
    assert ratios([one]).keys() == {"wall_s"}


def test_medians_are_of_one_side():
    pairs = [pair(1, 10), pair(2, 20), pair(9, 90)]
    assert (median(pairs, "a", "gen_tok_s"), median(pairs, "b", "gen_tok_s")) == (2, 20)
    assert median(pairs, "a", "wall_s") is None


def test_table_has_medians_the_ratio_and_its_range():
    text = comparison_table([pair(2, 1), pair(30, 10), pair(10, 20)], ["gen_tok_s", "absent"])
    heading, row = text.splitlines()
    assert heading.split() == ["figure", "A", "B", "A/B", "min..max"]
    assert row.split() == ["gen_tok_s", "(more", "is", "better)", "10", "10", "2", "0.5..3"]
