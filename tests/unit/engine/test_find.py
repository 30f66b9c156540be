"""Found together, the candidates of rows are what each row's own would be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.engine.edits import Edits
from corral.engine.find import find
from corral.engine.sampling import RowSampler
from corral.guidance.token_set import TokenBits
from corral.tasks import Sampling

N_VOCAB, K = 16_384, 40


def sampler(seed: int, share: float | None, bias: float = 0.0) -> RowSampler:
    """One that may draw a share of the vocabulary; None: all of it."""
    sampling = Sampling(logit_bias=((5, bias), (77, -bias))) if bias else Sampling()
    made = RowSampler(sampling, seed, Edits(sampling, (), (), 0), None)
    if share is not None:
        rng = np.random.default_rng(seed)
        left_out = np.flatnonzero(rng.random(N_VOCAB) >= share).tolist()
        made.allowed = TokenBits.all_but(left_out, N_VOCAB)
    return made


SHARES = st.sampled_from([None, 0.0005, 0.01, 0.3, 0.9, 0.999])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.dictionaries(st.integers(0, 7), SHARES, min_size=1), st.booleans(), st.booleans())
def test_together_or_alone(seed: int, shares: dict[int, float | None], has_ties: bool, has_bias: bool) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, (8, N_VOCAB)).astype(np.float32)
    if has_ties:
        logits = logits.round()
    before = logits.copy()
    rows = [(i, sampler(seed + i, share, 9.0 * has_bias)) for i, share in shares.items()]
    tokens, values = find(logits, rows, K)
    for at, (i, one) in enumerate(rows):
        mine, likely = one.candidates(logits[i], K)
        assert tokens[at][: len(mine)].tolist() == mine.tolist()
        assert values[at][: len(mine)].tolist() == likely.tolist()
        assert np.isneginf(values[at][len(mine) :]).all()
        assert one.allowed is None or all(int(token) in one.allowed for token in mine)
    assert (logits == before).all()


@pytest.mark.parametrize("rows", [[0, 0, 1], [0, 7], [3]])
def test_rows_that_are_shared_or_far_apart(rows: list[int]) -> None:
    logits = np.random.default_rng(1).normal(0, 3, (8, N_VOCAB)).astype(np.float32)
    tokens, _ = find(logits, [(i, sampler(n, 0.5)) for n, i in enumerate(rows)], K)
    for n, i in enumerate(rows):
        assert tokens[n].tolist() == sampler(n, 0.5).candidates(logits[i], K)[0].tolist()
