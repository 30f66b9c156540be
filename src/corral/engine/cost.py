"""What a step costs: how libllama will cut it into ubatches, and an online fit of their time."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from corral.ids import RowId
from corral.ports import MemoryTraits


class Part(NamedTuple):
    """``n_tokens`` of one row from position ``pos0`` on."""

    row: RowId
    pos0: int
    n_tokens: int


def ubatches(parts: Sequence[Part], traits: MemoryTraits) -> list[list[Part]]:
    """The pieces of a batch that libllama computes one after the other (llama-batch.cpp: split_simple, split_equal).

    One stream: ``n_ubatch`` tokens after another in batch order. A stream for each row: the first run of consecutive
    ascending row ids, the same number of tokens of each; the rest of longer rows comes later, alone.
    """
    cut = _cut_in_order if traits.n_streams == 1 else _cut_equal
    left = list(parts)
    pieces: list[list[Part]] = []
    while left:
        piece = cut(left, traits.n_ubatch)
        taken = {part.row: part.n_tokens for part in piece}
        pieces.append(piece)
        left = [
            Part(p.row, p.pos0 + taken.get(p.row, 0), p.n_tokens - taken.get(p.row, 0))
            for p in left
            if p.n_tokens > taken.get(p.row, 0)
        ]
    return pieces


def _cut_in_order(left: list[Part], n_ubatch: int) -> list[Part]:
    piece: list[Part] = []
    room = n_ubatch
    for part in left:
        if room == 0:
            break
        piece.append(part._replace(n_tokens=min(part.n_tokens, room)))
        room -= piece[-1].n_tokens
    return piece


def _cut_equal(left: list[Part], n_ubatch: int) -> list[Part]:
    run: list[Part] = []
    for part in left:
        if run and part.row != run[-1].row + 1:
            continue
        run.append(part)
        if len(run) > n_ubatch:  # libllama notices only after one row too many
            break
    each = min(min(part.n_tokens for part in run), max(1, n_ubatch // len(run)))
    return [part._replace(n_tokens=each) for part in run]


class Features(NamedTuple):
    """What the time of a step is a weighted sum of.

    ``seen`` and ``seen_tiled`` count pairs of a query and a cell of its own row; tiled where the kernel gets at least
    ``N_TILED`` queries at once. ``masked`` counts pairs with cells of other rows, which are scanned for nothing.
    """

    n_ubatches: float
    n_tokens: float
    seen: float
    seen_tiled: float
    masked: float


NO_FEATURES = Features(0, 0, 0, 0, 0)

N_TILED = 64
"""From this many queries on the CPU's flash attention works in tiles: 3 times faster for each pair."""


def features(parts: Sequence[Part], traits: MemoryTraits, n_used: int) -> Features:
    """``n_used``: cells in use before the step, of which each query scans all if there is one stream."""
    n_tokens, seen, tiled, masked = 0, 0.0, 0.0, 0.0
    pieces = _pieces(parts, traits)
    for piece in pieces:
        n_piece = sum(part.n_tokens for part in piece)
        n_kernel = n_piece if traits.n_streams == 1 else piece[0].n_tokens
        pairs = sum(part.n_tokens * (part.pos0 + (part.n_tokens + 1) / 2) for part in piece)
        n_tokens += n_piece
        if n_kernel >= N_TILED:
            tiled += pairs
        else:
            seen += pairs
        if traits.n_streams == 1:
            masked += max(0.0, n_piece * (n_used + n_tokens) - pairs)
    return Features(len(pieces), n_tokens, seen, tiled, masked)


def _pieces(parts: Sequence[Part], traits: MemoryTraits) -> list[list[Part]]:
    """As ``ubatches``, without the work where it is plain: one token of each row in a row."""
    if traits.n_streams == 1 and sum(part.n_tokens for part in parts) <= traits.n_ubatch:
        return [list(parts)]
    return ubatches(parts, traits)


PRIOR = Features(n_ubatches=5.7, n_tokens=1.25, seen=0.0035, seen_tiled=0.001, masked=0.00037)
"""ms of each feature for a 135M model in Q4_0 on two cores. Only the proportions matter: the first step scales all."""

DOUBT = 0.5
"""Variance of a weight's relative error before anything was measured, and the most it returns to."""

DRIFT = 2e-4
"""How much of that comes back with each step: machines and their neighbours change."""

NOISE = 0.01
"""Variance of a step's time relative to what it should be: 10 % of deviation."""


class CostModel:
    """Weights of ``Features`` in ms, fitted step by step by a Kalman filter over their relative errors.

    Steps of few tokens tell the price of a ubatch, long chunks that of a token: the covariance keeps apart who may be
    wrong, so that one prompt corrects what a thousand decoding steps could not tell. No weight turns negative.
    """

    def __init__(self, traits: MemoryTraits) -> None:
        self.traits = traits
        self.weights = PRIOR
        self.state_bytes_per_ms = 5e6
        self.n_learned = 0
        self._doubt = [[DOUBT if i == j else 0.0 for j in range(len(PRIOR))] for i in range(len(PRIOR))]

    def predict(self, f: Features) -> float:
        """Milliseconds."""
        w = self.weights
        return (
            w.n_ubatches * f.n_ubatches
            + w.n_tokens * f.n_tokens
            + w.seen * f.seen
            + w.seen_tiled * f.seen_tiled
            + w.masked * f.masked
        )

    def learn(self, f: Features, ms: float) -> None:
        """A step with these features took ``ms``."""
        predicted = self.predict(f)
        if predicted <= 0 or ms <= 0:
            return
        self.n_learned += 1
        if self.n_learned == 1:
            self.weights = Features(*(w * ms / predicted for w in self.weights))
            return
        error = max(-0.5, min(0.5, (ms - predicted) / predicted))  # one slow step (a page fault, a neighbour) is noise
        shares = [w * x / predicted for w, x in zip(self.weights, f, strict=True)]
        blame = [sum(map(mul, row, shares)) for row in self._doubt]
        gain = 1 / (sum(map(mul, blame, shares)) + NOISE)
        self.weights = Features(*(w * max(0.5, 1 + gain * b * error) for w, b in zip(self.weights, blame, strict=True)))
        for i, row in enumerate(self._doubt):
            self._doubt[i] = [p - gain * blame[i] * b for p, b in zip(row, blame, strict=True)]
            self._doubt[i][i] = min(DOUBT, self._doubt[i][i] + DRIFT)

    def learn_state(self, n_bytes: int, ms: float) -> None:
        """Saving or loading a row of ``n_bytes`` took ``ms``."""
        if n_bytes > 65536 and ms > 0:
            self.state_bytes_per_ms += 0.2 * (n_bytes / ms - self.state_bytes_per_ms)

    def state_ms(self, n_tokens: int) -> float:
        """One way between a row and bytes."""
        return 0.05 + (n_tokens * self.traits.bytes_per_token + self.traits.bytes_per_row) / self.state_bytes_per_ms

    def prefill_ms(self, n_tokens: int) -> float:
        """Computing ``n_tokens`` from position 0 in one go, about."""
        return self.weights.n_ubatches + self.weights.n_tokens * n_tokens + self.weights.seen_tiled * n_tokens**2 / 2

    def rent_ms(self, n_cells: int, n_queries: int) -> float:
        """What ``n_cells`` of nobody in the batch cost in a step of ``n_queries`` tokens."""
        return self.weights.masked * n_cells * n_queries if self.traits.n_streams == 1 else 0.0
