"""A pattern of words finds what a plain search for each of them finds."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from corral.words import words_pattern

WORDS = st.lists(st.text("ab|.(é", min_size=1, max_size=6), min_size=1, max_size=12)


@given(WORDS, st.text("ab|.(é", max_size=30))
def test_the_longest_word_at_each_place_is_found(words: list[str], text: str) -> None:
    pattern = re.compile(words_pattern(words))
    for at in range(len(text)):
        found = pattern.match(text, at)
        longest = max((word for word in words if text.startswith(word, at)), key=len, default=None)
        assert (found and found[0]) == longest


def test_no_letter_is_tried_twice() -> None:
    assert words_pattern(["<a>", "<ab>", "<a", "x"]) == r"(?:<a(?:>|b>)?|x)"
