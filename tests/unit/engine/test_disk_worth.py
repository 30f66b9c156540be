"""What is kept on disk, what is read from it, and what goes first."""

from __future__ import annotations

from corral.engine.disk_worth import HALF_LIFE_S, is_worth_reading, is_worth_writing, worth

SPEED = 5e5


def test_a_prefix_is_kept_if_reading_it_is_much_faster_than_computing_it() -> None:
    """A 135M model: 23 kB and 3 ms a token. A large one on a fast device: 1 MB and 0.1 ms a token."""
    assert is_worth_writing(2000 * 3.0, 2000 * 23_000, SPEED)
    assert not is_worth_writing(2000 * 0.1, 2000 * 1_000_000, SPEED)


def test_what_nobody_would_notice_is_not_kept() -> None:
    assert not is_worth_writing(10.0, 100, SPEED)


def test_one_waits_for_a_file_if_that_is_faster() -> None:
    assert is_worth_reading(1000.0, 100_000_000, SPEED, 100.0)
    assert not is_worth_reading(1000.0, 1_000_000_000, SPEED, 100.0)
    assert not is_worth_reading(100.0, 1000, SPEED, 100.0)


def test_worth_is_time_for_bytes_and_halves_with_age() -> None:
    assert worth(1000, 10, 0) > worth(1000, 20, 0) > worth(900, 20, 0)
    assert worth(1000, 10, HALF_LIFE_S) == worth(500, 10, 0)
    assert worth(1000, 10, -5.0) == worth(1000, 10, 0)  # a clock that was set back
