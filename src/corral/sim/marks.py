"""Owns what a moved cell remembers: a mark in the upper bits of its token, so that it hashes unlike a cold one.

A real cell keeps what it saw when it was computed. Here a cell that was moved, or computed while a moved one was in
sight, carries a mark, 1..32766; all others carry 0 and hash as ever.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]

_BITS = 16
_N_MARKS = 32766


def tokens_of(words: Words) -> Words:
    return words & np.int32((1 << _BITS) - 1)


def marks_of(words: Words) -> Words:
    return words >> np.int32(_BITS)


def moved(words: Words, n: int) -> Words:
    """The same cells after a move by ``n`` positions."""
    marks = 1 + (marks_of(words) * 31 + n) % _N_MARKS
    return (tokens_of(words) | (marks << _BITS)).astype(np.int32)


def seen_by(tokens: Words, pos0: int, visible: Words) -> Words:
    """Words of ``tokens`` computed from position ``pos0`` on, with the cells ``visible`` before them."""
    total = int(marks_of(visible).sum())
    if not total:
        return tokens
    words = tokens.copy()
    for i in range(len(tokens)):
        mark = 1 + (total * 17 + pos0 + i) % _N_MARKS
        words[i] |= mark << _BITS
        total += mark
    return words
