"""Owns the fake's sampler: greedy, or drawn from the seed and the draws before; a literal as its only grammar."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from corral.errors import InvalidRequest
from corral.ids import Token
from corral.ports import Picked
from corral.sim.attend import scramble_one
from corral.sim.tokenizer import EOS, SimTokenizer
from corral.tasks import Sampling

Row = NDArray[np.float32]
Mask = NDArray[np.bool_]

_LITERAL = re.compile(r'\s*root\s*::=\s*("(?:[^"\\]|\\.)*")\s*')


def literal_tokens(grammar: str, tokenizer: SimTokenizer) -> tuple[Token, ...]:
    """What ``root ::= "text"`` forces, EOS included. Raises InvalidRequest for any other grammar."""
    match = _LITERAL.fullmatch(grammar)
    if match is None:
        raise InvalidRequest('the simulated model knows only grammars of the form root ::= "text"')
    text = json.loads(match.group(1))
    return (*tokenizer.tokenize(text, add_special=False, parse_special=False), EOS)


class SimSampler:
    """Implements ``ports.Sampler``: bias, grammar, top-k, temperature, then one draw. Penalties do nothing."""

    def __init__(self, sampling: Sampling, seed: int, eog_tokens: frozenset[Token], forced: Sequence[Token]) -> None:
        self._sampling = sampling
        self._seed = seed
        self._biases = dict(sampling.logit_bias)
        if sampling.ignore_eos:
            self._biases |= dict.fromkeys(eog_tokens, -math.inf)
        self._forced = tuple(forced)
        self._n_picked = 0

    def pick(self, logits: Row, allowed: Mask | None = None) -> Picked:
        """Raises InvalidRequest if grammar and bans leave no token."""
        row = self._constrained(logits, allowed)
        probs = self._probabilities(row)
        token = int(row.argmax()) if self._sampling.temperature <= 0 else self._draw(probs)
        self._n_picked += 1
        if not self._sampling.n_probs:
            return Picked(token)
        return self._picked(token, probs if self._sampling.post_sampling_probs else _log_softmax(logits))

    def take(self, token: Token) -> bool:
        if self._n_picked < len(self._forced) and token != self._forced[self._n_picked]:
            return False
        self._n_picked += 1
        return True

    def feed(self, tokens: Sequence[Token]) -> None:
        pass

    def close(self) -> None:
        pass

    def _constrained(self, logits: Row, allowed: Mask | None) -> Row:
        row = logits.copy()
        if allowed is not None:
            row[~allowed] = -math.inf
        for token, bias in self._biases.items():
            row[token] += bias
        if self._n_picked < len(self._forced):
            kept = self._forced[self._n_picked]
            row[:kept] = row[kept + 1 :] = -math.inf
        if np.isneginf(row).all():
            raise InvalidRequest("no token is left: bans and the grammar exclude each other")
        return row

    def _probabilities(self, row: Row) -> Row:
        if self._sampling.top_k > 0:
            floor = (
                np.partition(row, -self._sampling.top_k)[-self._sampling.top_k]
                if self._sampling.top_k < row.size
                else -math.inf
            )
            row = np.where(row >= floor, row, np.float32(-math.inf))
        scaled = np.exp((row - row.max()) / max(self._sampling.temperature, 1e-3))
        probs: Row = scaled / scaled.sum()
        return probs

    def _draw(self, probs: Row) -> Token:
        at = scramble_one(scramble_one(self._seed) + self._n_picked) / (1 << 64)
        return int(min(np.searchsorted(np.cumsum(probs), at, side="right"), np.flatnonzero(probs)[-1]))

    def _picked(self, token: Token, values: Row) -> Picked:
        best = np.argsort(-values, kind="stable")[: self._sampling.n_probs]
        return Picked(token, float(values[token]), tuple((int(t), float(values[t])) for t in best))


def _log_softmax(logits: Row) -> Row:
    shifted = logits - logits.max()
    row: Row = shifted - np.log(np.exp(shifted).sum())
    return row
