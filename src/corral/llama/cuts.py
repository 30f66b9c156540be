"""Owns where a text can be cut in two without a change of its tokens.

libllama first looks for the texts of special tokens (longer ones first) and cuts the text there. What this takes grows
with the square of how many there are: minutes for a long conversation. In pieces with a bounded number of them it is
linear.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import pairwise

from corral.words import words_pattern

N_MOST = 256
"""Special tokens in a piece, about."""


class Cutter:
    """``specials`` are the texts of all special tokens that libllama looks for, ``movable`` those of them that take no
    white space from the text in front of them."""

    def __init__(self, specials: Collection[bytes], movable: Collection[bytes]) -> None:
        texts = {text for text in specials if text}
        # A text of bytes is one of as many characters here.
        words = [text.decode("latin-1") for text in texts]
        self._pattern = re.compile(words_pattern(words).encode("latin-1"), re.DOTALL) if texts else None
        self._movable = texts.intersection(movable)
        self._alone = _alone(texts)

    def pieces(self, raw: bytes) -> list[bytes]:
        """The text in pieces; all but the first begin with a special token."""
        cuts = [0, *self._cuts(raw), len(raw)]
        return [raw[start:end] for start, end in pairwise(cuts)]

    def _cuts(self, raw: bytes) -> Iterator[int]:
        n, at = 0, 0
        while self._pattern and (match := self._pattern.search(raw, at)):
            is_sure, end = self._look(raw, match)
            n += 1
            if is_sure and n > N_MOST and match[0] in self._movable:
                yield match.start()
                n = 1
            at = end

    def _look(self, raw: bytes, match: re.Match[bytes]) -> tuple[bool, int]:
        """Whether libllama takes this token, the longest that begins here, and where what it may take instead ends.

        It does unless a longer one begins inside. Of two of one length nobody knows which it tries first.
        """
        assert self._pattern is not None
        start, end, token = match.start(), match.end(), match[0]
        if token in self._alone:
            return True, end
        inner = (self._pattern.match(raw, at) for at in range(start + 1, end))
        if not any(other and len(other[0]) >= len(token) and other[0] != token for other in inner):
            return True, end
        at = start + 1
        while at < end:
            other = self._pattern.match(raw, at)
            end = max(end, other.end()) if other else end
            at += 1
        return False, end


def _alone(texts: Collection[bytes]) -> frozenset[bytes]:
    """Those inside which no other of at least their length can begin."""
    longest: dict[bytes, int] = {}
    for text in texts:
        for n in range(1, len(text)):
            longest[text[:n]] = max(longest.get(text[:n], 0), len(text))
    return frozenset(text for text in texts if all(longest.get(text[n:], 0) < len(text) for n in range(1, len(text))))
