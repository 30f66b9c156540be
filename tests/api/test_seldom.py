"""How often the same complaint is logged."""

from __future__ import annotations

from corral.api.seldom import Seldom


def test_the_first_and_then_one_a_minute_with_the_number_of_those_between() -> None:
    now_s = 5.0
    seldom = Seldom(60.0, lambda: now_s)
    assert seldom.take() == 0
    assert [seldom.take() for _ in range(3)] == [None] * 3
    now_s = 64.9
    assert seldom.take() is None
    now_s = 65.0
    assert (seldom.take(), seldom.take()) == (4, None)
    now_s = 200.0
    assert seldom.take() == 1
