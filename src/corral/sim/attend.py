"""Owns the fake's arithmetic: what a row sees becomes a 64-bit view, and a view becomes a row of logits."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.ids import AdapterSet, Token

Cells = NDArray[np.int32]
Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_WORD = 1 << 64

_NOISE = 4.0
_MARGIN = 6.0


def scramble(words: Words) -> Words:
    """A bijection of 64-bit words in which every input bit moves every output bit."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _MIX_A
    words = (words ^ (words >> np.uint64(27))) * _MIX_B
    return words ^ (words >> np.uint64(31))


def scramble_one(word: int) -> int:
    """``scramble`` of one word, taken modulo 2^64."""
    return int(scramble(np.array([word % _WORD], np.uint64))[0])


_TOKEN_BITS, _CODE_BITS = 9, 7
"""Together what ``marks`` leaves to a token."""


def code_of(adapters: AdapterSet) -> int:
    """What a token computed under these adapters carries above its ``_TOKEN_BITS``; 0 for none."""
    return (1 + zlib.crc32(repr(adapters).encode()) % ((1 << _CODE_BITS) - 1)) << _TOKEN_BITS if adapters else 0


def without_code(cells: Cells) -> Cells:
    """The tokens alone."""
    return cells & ((1 << _TOKEN_BITS) - 1)


def chain(before: int, token: Token, n_missing: int = 0) -> int:
    """The state after ``token`` in the state ``before``, of which ``n_missing`` parts could not be seen."""
    word = (before * 0x9E3779B97F4A7C15 + token + (n_missing << 32) + 1) % _WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % _WORD
    return word ^ (word >> 31)


def weigh_states(states: Words, positions: Cells) -> int:
    """One word for what states at positions are together, whatever their order."""
    return int(scramble(states ^ scramble(positions.astype(np.uint64))).sum(dtype=np.uint64))


def weigh(tokens: Cells, positions: Cells, seed: int) -> Words:
    """One word for each (token, position). Their sum modulo 2^64 is a view: order does not matter, repeats do."""
    packed = (positions.astype(np.uint64) << np.uint64(32)) | tokens.astype(np.uint32)
    return scramble(packed ^ np.uint64(scramble_one(seed)))


def view(tokens: Cells, positions: Cells, seed: int) -> int:
    """What a query sees, from all cells visible to it, 0 <= view < 2^64."""
    return int(weigh(tokens, positions, seed).sum(dtype=np.uint64))


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Turns views into logits.

    The winner of a view is drawn from ``likely`` (repeat a token to favour it), or is ``eos`` for one view in
    ``eos_every`` (0 never). Its logit is 10, all others lie in [0, 4).
    """

    n_vocab: int
    likely: tuple[Token, ...]
    eos: Token
    eos_every: int

    def winner(self, seen: int) -> Token:
        """The token whose logit is highest."""
        word = scramble_one(seen)
        if self.eos_every and word % self.eos_every == 0:
            return self.eos
        return self.likely[(word >> 32) % len(self.likely)]

    def logits(self, seen: int) -> NDArray[np.float32]:
        """Shape (n_vocab,)."""
        index = np.arange(self.n_vocab, dtype=np.uint64) + np.uint64(scramble_one(~seen))
        row: NDArray[np.float32] = ((scramble(index) >> np.uint64(40)) * (_NOISE / (1 << 24))).astype(np.float32)
        row[self.winner(seen)] = _NOISE + _MARGIN
        return row
