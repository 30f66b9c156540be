"""Packed probabilities are what they would be as tuples."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from corral.events import Ranked

PAIRS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(allow_nan=False)), max_size=20)


def packed(pairs: list[tuple[int, float]]) -> Ranked:
    return Ranked((token for token, _ in pairs), (value for _, value in pairs))


@given(PAIRS, st.slices(20))
def test_packed_is_equal_to_tuples(pairs: list[tuple[int, float]], part: slice) -> None:
    ranked = packed(pairs)
    assert list(ranked) == pairs and len(ranked) == len(pairs)
    assert ranked == tuple(pairs) and tuple(pairs) == ranked and hash(ranked) == hash(packed(pairs))
    assert ranked[part] == tuple(pairs[part])
    assert [ranked[i] for i in range(len(pairs))] == pairs
    assert ranked != (*pairs, (0, 0.0))


def test_a_vocabulary_takes_16_bytes_a_token() -> None:
    ranked = Ranked(range(10_000), [0.5] * 10_000)
    held = [getattr(ranked, name) for name in Ranked.__slots__]
    assert sum(map(sys.getsizeof, held)) < 17 * 10_000
