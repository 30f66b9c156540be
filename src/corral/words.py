"""Owns a pattern that finds many words at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile


def words_pattern(words: Iterable[str]) -> str:
    """A regular expression that matches the longest of these words, of which there is one at least; none is "".

    It tries no letter twice, however many words there are.
    """
    return _pattern(sorted(set(words)))


def _pattern(words: Sequence[str]) -> str:
    branches = []
    for _, group in groupby(filter(None, words), key=lambda word: word[0]):
        alike = list(group)
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(alike[0], alike[-1], strict=False))
        head = "".join(letter for letter, _ in pairs)
        rest = [word[len(head) :] for word in alike]
        branches.append(re.escape(head) + (_pattern(rest) if len(rest) > 1 else ""))
    return f"(?:{'|'.join(branches)}){'' if words[0] else '?'}"
