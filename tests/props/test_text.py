"""Any text, cut anyhow into tokens, with any stop strings, streams as if it had been searched whole."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from corral.engine.text import Piece, TextStream
from corral.tasks import Limits

ALPHABET = "ab\n é歪😀"
texts = st.text(ALPHABET, max_size=30)
stop_lists = st.lists(st.text(ALPHABET, max_size=4), max_size=4)
raw_bytes = st.one_of(
    texts.map(str.encode),
    st.lists(st.sampled_from([b"a", b"b", b"\xf0", b"\x9f", b"\x98\x80", b"\xe6\xad", b"\xff", "é".encode()])).map(
        b"".join
    ),
)
cuts = st.lists(st.integers(0, 120), max_size=30)


def tokens_of(data: bytes, at: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(i for i in at if i < len(data))})
    return [data[a:b] for a, b in pairwise(bounds)]


def run(pieces: list[bytes], limits: Limits) -> tuple[TextStream, list[Piece]]:
    stream = TextStream(limits)
    out = []
    for token, piece in enumerate(pieces):
        out.append(stream.push(token, piece))
        if stream.stopped is not None or stream.indent_stop:
            break
    out.append(stream.finish())
    return stream, [piece for piece in out if piece is not None]


def first_stop(text: str, stops: list[str]) -> tuple[int, str | None]:
    """Oracle: the stop that begins first in the whole text, the shortest of those; where it begins."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop and stop in text]
    return (min(found)[0], min(found)[2]) if found else (len(text), None)


@given(raw_bytes, cuts, stop_lists)
def test_pieces_join_to_the_text_before_the_stop(data: bytes, at: list[int], stops: list[str]) -> None:
    whole = data.decode(errors="replace")
    end, word = first_stop(whole, stops)
    stream, pieces = run(tokens_of(data, at), Limits(stop=tuple(stops)))
    assert "".join(piece.text for piece in pieces) == whole[:end] == stream.text
    assert stream.stopped == word
    assert stream.has_new_line == ("\n" in whole[:end])
    assert all(piece.text and piece.tokens for piece in pieces)


@given(texts, cuts, stop_lists)
def test_tokens_ride_once_in_order_and_carry_their_text(text: str, at: list[int], stops: list[str]) -> None:
    tokens = tokens_of(text.encode(), at)
    stream, pieces = run(tokens, Limits(stop=tuple(stops)))
    ridden = [token for piece in pieces for token in piece.tokens]
    assert ridden == list(range(len(ridden)))
    if stream.stopped is None:
        assert b"".join(tokens) == b"".join(piece.text.encode() for piece in pieces)
        assert not text or len(ridden) == len(tokens)


@given(texts, st.lists(st.integers(0, 120), max_size=30), st.integers(1, 3), stop_lists)
def test_indentation_is_judged_on_the_text_not_on_tokens(
    text: str, at: list[int], n_indent: int, stops: list[str]
) -> None:
    limits = Limits(n_indent=n_indent, stop=tuple(stops))
    whole, _ = run([text.encode()] if text else [], limits)
    cut, pieces = run(tokens_of(text.encode(), at), limits)
    assert (cut.text, cut.indent_stop, cut.stopped) == (whole.text, whole.indent_stop, whole.stopped)
    assert "".join(piece.text for piece in pieces) == cut.text
    lines = cut.text.split("\n")
    for line in lines[1:-1]:
        assert len(line) - len(line.lstrip(" ")) >= n_indent
