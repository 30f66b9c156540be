"""Owns what a task changes in a row of logits before a token is drawn from it: biases, bans, penalties."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

import numpy as np

from corral.engine.probs import Floats, Ints
from corral.events import Ranked
from corral.ids import Token
from corral.tasks import Sampling

FLOAT32_MAX = 3.4028234e38

Undo = list[tuple[Ints, Floats]]
"""Tokens and the logits that they had before."""


class Edits:
    """What a task changes in its rows before filtering: biases and bans, then penalties for its last tokens.

    A negative ``repeat_last_n`` means ``n_ctx_train``.
    """

    __slots__ = (
        "_bias",
        "_biased",
        "_counts",
        "_frequency",
        "_last",
        "_only_bans",
        "_presence",
        "_repeat",
    )

    def __init__(self, sampling: Sampling, banned: Iterable[Token], prompt: Sequence[Token], n_ctx_train: int) -> None:
        biases = Ranked.of(sampling.logit_bias)
        bans = np.fromiter(banned, np.intp)
        tokens = np.concatenate((np.asarray(biases.tokens, np.intp), bans))
        self._biased, at = np.unique(tokens, return_inverse=True)
        bias = np.bincount(at, np.concatenate((biases.values, np.full(len(bans), -np.inf))), len(self._biased))
        self._only_bans = bool((bias <= 0.0).all())
        with np.errstate(over="ignore"):
            self._bias = np.minimum(bias.astype(np.float32), np.float32(FLOAT32_MAX))
        self._repeat = np.float32(sampling.repeat_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        n_last = n_ctx_train if sampling.repeat_last_n < 0 else sampling.repeat_last_n
        self._last: deque[Token] = deque(maxlen=n_last if _is_penalised(sampling) else 0)
        self._last.extend(prompt[max(0, len(prompt) - n_last) :])
        self._counts = Counter(self._last)

    @property
    def only_bans(self) -> bool:
        """Whether it only makes some tokens less likely, whatever came before."""
        return self._only_bans and not self._counts

    def touches(self, token: Token) -> bool:
        """Whether a bias is on the token."""
        if not len(self._biased):
            return False
        at = int(np.searchsorted(self._biased, token))
        return at < len(self._biased) and int(self._biased[at]) == token

    def apply(self, row: Floats) -> Undo:
        """Change the row; returns what ``undo`` needs. A copy of the row would cost more than the edits."""
        undo: Undo = []
        if len(self._biased):
            undo.append((self._biased, row[self._biased]))
            row[self._biased] += self._bias
        if self._counts:
            undo.append(self._penalise(row))
        return undo

    def _penalise(self, row: Floats) -> tuple[Ints, Floats]:
        """Returns the tokens and their logits before."""
        tokens = np.fromiter(self._counts.keys(), np.intp, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        before = row[tokens]
        logits = np.where(before <= 0.0, before * self._repeat, before / self._repeat)
        row[tokens] = logits - (counts * self._frequency + self._presence)
        return tokens, before

    def accept(self, token: Token) -> None:
        """Add a token to the history, which forgets the oldest."""
        if not self._last.maxlen:
            return
        if len(self._last) == self._last.maxlen:
            oldest = self._last[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._last.append(token)
        self._counts[token] += 1


def undo(row: Floats, edits: Undo) -> None:
    """Make the row what it was before ``Edits.apply``."""
    for tokens, logits in reversed(edits):
        row[tokens] = logits


def _is_penalised(sampling: Sampling) -> bool:
    penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    return "penalties" in sampling.samplers and penalties != (1.0, 0.0, 0.0)
