"""Sets of tokens as bits are sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corral.guidance.token_set import TokenBits

SIZES = st.sampled_from([1, 31, 32, 33, 64, 100])


def of(tokens: set[int], n_vocab: int) -> TokenBits:
    made = TokenBits.none(n_vocab)
    for token in tokens:
        made.add(token)
    return made


def members(made: TokenBits) -> set[int]:
    return set(np.flatnonzero(made.flags).tolist())


@given(SIZES, st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)))
def test_a_set(n_vocab: int, some: set[int], others: set[int]) -> None:
    some, others = ({t for t in one if t < n_vocab} for one in (some, others))
    made = of(some, n_vocab)
    assert members(made) == some and made.is_empty == (not some) and len(made.flags) == n_vocab
    every = np.arange(n_vocab)
    assert made.among(every).tolist() == [t in some for t in every] == [int(t) in made for t in every]
    made.keep(of(others, n_vocab))
    assert members(made) == some & others
    but = TokenBits.all_but(others, n_vocab)
    assert members(but) == set(range(n_vocab)) - others and but.is_empty == (len(others) == n_vocab)
    for token in some:
        but.discard(token)
    assert members(but) == set(range(n_vocab)) - others - some
