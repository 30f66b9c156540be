"""Owns a set of tokens as bits: what a constraint allows is mostly asked about a few tokens only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corral.ids import Token
    from corral.ports import Mask, TokenSet

    Bits = NDArray[np.uint32]
    Ints = NDArray[np.intp]


class TokenBits:
    """Implements ``ports.TokenSet``. ``bits`` are shared: 32 tokens a word, the lowest bit first."""

    __slots__ = ("_bits", "_flags", "_n_vocab")

    def __init__(self, bits: Bits, n_vocab: int) -> None:
        self._bits = bits
        self._n_vocab = n_vocab
        self._flags: Mask | None = None

    @classmethod
    def none(cls, n_vocab: int) -> TokenBits:
        return cls(np.zeros(n_words(n_vocab), np.uint32), n_vocab)

    @classmethod
    def all_but(cls, tokens: Iterable[Token], n_vocab: int) -> TokenBits:
        made = cls(np.full(n_words(n_vocab), 0xFFFFFFFF, np.uint32), n_vocab)
        if rest := n_vocab % 32:
            made._bits[-1] = (1 << rest) - 1
        for token in tokens:
            made.discard(token)
        return made

    def __contains__(self, token: Token) -> bool:
        return bool(int(self._bits[token >> 5]) >> (token & 31) & 1)

    def among(self, tokens: Ints) -> Mask:
        found: Mask = (self._bits[tokens >> 5] >> (tokens & 31).astype(np.uint32) & 1).astype(np.bool_)
        return found

    @property
    def flags(self) -> Mask:
        if self._flags is None:
            unpacked = np.unpackbits(self._bits.view(np.uint8), count=self._n_vocab, bitorder="little")
            self._flags = unpacked.view(np.bool_)
        return self._flags

    @property
    def is_empty(self) -> bool:
        return not np.count_nonzero(self._bits)

    def add(self, token: Token) -> None:
        self._bits[token >> 5] |= np.uint32(1 << (token & 31))
        self._flags = None

    def discard(self, token: Token) -> None:
        self._bits[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))
        self._flags = None

    def keep(self, other: TokenSet) -> None:
        if isinstance(other, TokenBits):
            self._bits &= other._bits
        else:
            self._bits &= np.packbits(other.flags, bitorder="little").view(np.uint32)
        self._flags = None


def n_words(n_vocab: int) -> int:
    return (n_vocab + 31) // 32
