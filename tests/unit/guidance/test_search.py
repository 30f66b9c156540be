"""Patterns are found where ``re`` finds them, token by token, in time that no pattern can blow up."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.errors import InvalidRequest
from corral.guidance.pattern import compile_pattern
from corral.guidance.search import WHOLE, Search


def starts(pattern: str, pieces: list[bytes], *, is_whole: bool = False) -> list[int]:
    """Where what counts begins, behind each piece."""
    search, found = Search(compile_pattern(pattern), is_whole), []
    for piece in pieces:
        search = search.advanced(piece)
        found.append(search.start)
        if search.found and not is_whole:
            break
    return found


def expected(pattern: str, pieces: list[bytes], *, is_whole: bool = False) -> list[int]:
    compiled = re.compile(pattern.replace("$", "\\Z").encode(), re.DOTALL)
    text, found = b"", []
    for piece in pieces:
        text += piece
        match = compiled.fullmatch(text) if is_whole else compiled.search(text)
        groups = [i + 1 for i, group in enumerate(match.groups()) if group] if match else []
        found.append(match.start(groups[0] if groups else 0) if match else -1)
        if match and not is_whole:
            break
    return found


PATTERNS = [
    "ab",
    "a|ab",
    "(ab?)(b*)",
    "^ab",
    "ab$",
    "^a|b$",
    "(?:^|x)(ab)",
    "(a+?)(b)",
    "(a*)b",
    "a{2}b{1,2}",
    "(?:ab){2,}",
    "[^a]b",
    "[a-b]x",
    "\\bab\\b",
    "\\Bb",
    "(?:a|b)*x",
    "(x)?(b)",
    "((a)|(b))x",
    "a??b",
    "(a|b|x)+$",
    "\\w\\s\\d",
    "a(?:b|)x",
    "()a",
    "(?:(a)|b)*x",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(deadline=None, max_examples=60)
@given(st.lists(st.text("abx 1", max_size=5).map(str.encode), max_size=6))
def test_what_is_found_is_what_re_finds(pattern: str, pieces: list[bytes]) -> None:
    assert starts(pattern, pieces) == expected(pattern, pieces)
    assert starts(pattern, pieces, is_whole=WHOLE) == expected(pattern, pieces, is_whole=True)


_ATOMS = st.sampled_from(["a", "b", "x", "[ab]", "[^a]", "\\w", "^", "$", "\\b"])


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map("({})".format)
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("(?:{})".format),
        group,
        st.tuples(
            st.sampled_from(["a", "[bx]", "(?:ab)", "(?:a|b)"]), st.sampled_from(["*", "+", "?", "*?", "+?", "{2}"])
        ).map("".join),
    )


@settings(deadline=None, max_examples=300)
@given(st.recursive(_ATOMS, _compound, max_leaves=8), st.lists(st.text("abx", max_size=4).map(str.encode), max_size=5))
def test_any_pattern(pattern: str, pieces: list[bytes]) -> None:
    assert starts(pattern, pieces) == expected(pattern, pieces)


@pytest.mark.parametrize(
    ("pattern", "text", "start"),
    [
        ("<\\|tool\\|>", "so <|tool|>", 3),
        ("[\\s\\S]*?(<call>)[\\s\\S]*", "a\n<call>{", 2),
        ("a.b", "a\nb", -1),
        ("[[:alpha:]]+(\\x7b)", "ab{", 2),
        ("\\u00e9(t)", "été", 2),
        ("[^<]*é", "où é", 0),
        ("a\\/b\\-c", "xa/b-c", 1),
        ("[\\]a]{2}", "]a", 0),
        ("[a-]-", "--", 0),
        ("[^]", "\n", 0),
        ("\\cJ", "a\n", 1),
        ("a]}", "a]}", 0),
        ("", "x", 0),
    ],
)
def test_ecmascript(pattern: str, text: str, start: int) -> None:
    assert starts(pattern, [text.encode()]) == [start]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a(b", "a ')' is missing (at 3)"),
        ("a)", "an unexpected ')' (at 1)"),
        ("*a", "nothing to repeat before '*'"),
        ('{"name"', "nothing to repeat before '{'"),
        ("a{x}", "'{' begins a count"),
        ("a{3,2}", "a count goes backwards"),
        ("[a", "it ends too early"),
        ("[b-a]", "a range in brackets goes backwards"),
        ("[[:odd:]]", "an unknown class"),
        ("\\", "it ends too early"),
        ("\\xg0", "needs 2 hexadecimal digits"),
        ("a(?=b)", "look-ahead"),
        ("(?!b)", "look-ahead"),
        ("(a)\\1", "references back"),
        ("(a{1000}){1000}", "too large"),
        ("((((a{9}){9}){9}){9}){9}", "too large"),
        ("(" * 200 + ")" * 200, "more than 100 groups"),
        ("(" * 60_000, "more than 100 groups"),
    ],
)
def test_what_cannot_be_searched_for_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_pattern(pattern)
    assert reason in str(refused.value)


@pytest.mark.parametrize("pattern", ["(a+)+$b", "(a|a)*b", "(?:a*)*c", "(.*)*x", "(a?){50}a{50}b"])
def test_no_pattern_takes_long(pattern: str) -> None:
    start_s = time.process_time()
    search = Search(compile_pattern(pattern))
    for _ in range(500):
        search = search.advanced(b"aaaa")
    assert not search.found and time.process_time() - start_s < 5.0
