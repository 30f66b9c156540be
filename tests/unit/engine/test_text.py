"""Text streams, as users of stop strings, emoji and indentation meet them."""

from __future__ import annotations

import pytest

from corral.engine.text import Piece, TextStream
from corral.events import TokenProbs
from corral.tasks import Limits


def feed(stream: TextStream, *pieces: str | bytes) -> list[str | None]:
    """What each token releases, tokens numbered from 0; stops where the stream does."""
    out: list[str | None] = []
    for token, piece in enumerate(pieces):
        got = stream.push(token, piece if isinstance(piece, bytes) else piece.encode())
        out.append(got.text if got else None)
        if stream.stopped is not None or stream.indent_stop:
            break
    return out


def finish(stream: TextStream) -> str | None:
    piece = stream.finish()
    return piece.text if piece else None


def test_without_rules_each_token_is_a_piece() -> None:
    stream = TextStream(Limits())
    assert stream.push(7, b" hello") == Piece(" hello", (7,), ())
    assert finish(stream) is None
    assert stream.text == " hello"


def test_stop_over_several_tokens_is_never_shown() -> None:
    stream = TextStream(Limits(stop=("O P Q",)))
    assert feed(stream, " L M", " N ", "O", " P", " Q", " R") == [" L M", " N ", None, None, None]
    assert stream.stopped == "O P Q"
    assert stream.text == " L M N "
    assert stream.finish() is None


def test_held_tail_is_flushed_when_generation_ends() -> None:
    stream = TextStream(Limits(stop=("TRE\nAAAAAAAA",)))
    assert feed(stream, "UNO", " DUE ", "TRE", "\n") == ["UNO", " DUE ", None, None]
    assert finish(stream) == "TRE\n"
    assert stream.stopped is None
    assert stream.text == "UNO DUE TRE\n"


def test_held_tokens_ride_on_the_piece_that_ends_the_doubt() -> None:
    stream = TextStream(Limits(stop=("END",)))
    probs = [TokenProbs(i, -0.5, (), False) for i in range(3)]
    assert stream.push(0, b"xE", probs[0]) is None
    assert stream.push(1, b"N", probs[1]) is None
    assert stream.push(2, b"!", probs[2]) == Piece("xEN!", (0, 1, 2), tuple(probs))


def test_tokens_inside_a_stop_are_dropped_from_the_text() -> None:
    stream = TextStream(Limits(stop=("END",)))
    assert stream.push(0, b"xE") is None
    assert stream.push(1, b"ND and more") == Piece("x", (0,), ())
    assert stream.stopped == "END"


@pytest.mark.parametrize("pieces", [["ab c"], ["ab", " c"], ["a", "b", " ", "c"]])
def test_the_stop_that_begins_first_wins_however_the_text_is_cut(pieces: list[str]) -> None:
    stream = TextStream(Limits(stop=("b", "ab c")))
    feed(stream, "x", *pieces)
    assert (stream.text, stream.stopped) == ("x", "ab c")


@pytest.mark.parametrize("ending", ["ab d", "ab"])
def test_a_later_stop_wins_once_the_earlier_cannot_match(ending: str) -> None:
    stream = TextStream(Limits(stop=("b", "ab c")))
    feed(stream, "x", *ending)
    stream.finish()
    assert (stream.text, stream.stopped) == ("xa", "b")


def test_the_shortest_of_stops_that_begin_together_wins() -> None:
    stream = TextStream(Limits(stop=("<|im_end|>", "<|im")))
    feed(stream, "hi<|im_end|>")
    assert (stream.text, stream.stopped) == ("hi", "<|im")


def test_empty_stop_strings_mean_nothing() -> None:
    stream = TextStream(Limits(stop=("",)))
    assert feed(stream, "a", "b") == ["a", "b"]


def test_half_a_false_start_does_not_hide_a_stop() -> None:
    stream = TextStream(Limits(stop=("aab",)))
    feed(stream, "a", "a", "a", "b")
    assert (stream.text, stream.stopped) == ("a", "aab")


def test_characters_are_whole() -> None:
    first, second, third = "歪".encode()[:1], "歪".encode()[1:2], "歪".encode()[2:]
    stream = TextStream(Limits())
    assert stream.push(0, b"a" + first) is None
    assert stream.push(1, second) is None
    assert stream.push(2, third) == Piece("a歪", (0, 1, 2), ())
    assert finish(stream) is None


def test_a_character_cut_by_the_limit_is_replaced() -> None:
    stream = TextStream(Limits())
    assert feed(stream, "ok", "😀".encode()[:3]) == ["ok", None]
    assert finish(stream) == "\ufffd"
    assert stream.text == "ok\ufffd"


def test_bytes_that_are_no_character_are_replaced() -> None:
    stream = TextStream(Limits())
    assert feed(stream, b"\xff", b"a\xc3", b"b") == ["\ufffd", None, "a\ufffdb"]


def test_a_stop_cut_inside_its_characters_is_found() -> None:
    word = "终止".encode()
    stream = TextStream(Limits(stop=("终止",)))
    assert feed(stream, "好", word[:2], word[2:4], word[4:]) == ["好", None, None, None]
    assert (stream.text, stream.stopped) == ("好", "终止")


def test_tokens_without_text_wait_for_one_with_text() -> None:
    stream = TextStream(Limits())
    assert stream.push(0, b"") is None
    assert stream.push(1, b"a") == Piece("a", (0, 1), ())
    assert stream.push(2, b"") is None
    assert stream.finish() is None


def test_new_line_is_seen_only_in_final_text() -> None:
    stream = TextStream(Limits(stop=("\nUser:",)))
    feed(stream, "hi", "\n")
    assert not stream.has_new_line
    feed(stream, " there")
    assert stream.has_new_line


def test_a_line_indented_less_ends_the_text_after_its_indentation() -> None:
    stream = TextStream(Limits(n_indent=4))
    feed(stream, "x = 1\n", "    y", " = 2\n", "\t   z\n  ", "print()")
    assert stream.indent_stop
    assert stream.text == "x = 1\n    y = 2\n\t   z\n  "
    assert stream.stopped is None


def test_the_first_line_needs_no_indentation() -> None:
    stream = TextStream(Limits(n_indent=4))
    feed(stream, "x = 1", "\n")
    assert not stream.indent_stop


def test_a_stop_before_the_bad_line_is_a_stop() -> None:
    stream = TextStream(Limits(n_indent=2, stop=("#",)))
    feed(stream, "a # b\nc")
    assert (stream.text, stream.stopped, stream.indent_stop) == ("a ", "#", False)


def test_a_bad_line_before_the_stop_is_no_stop() -> None:
    stream = TextStream(Limits(n_indent=2, stop=("#",)))
    feed(stream, "a\nb # c")
    assert (stream.text, stream.stopped, stream.indent_stop) == ("a\n", None, True)


def test_stop_strings_are_not_looked_for_in_thoughts() -> None:
    """vllm-project/vllm#14399: nor is one put together across their border."""
    stream = TextStream(Limits(stop=("STOP", "T>x")))
    words = [("a ST", False), ("OP b STOP", True), ("ST", True), ("OP ", False), ("ST", False), ("OPPED", False)]
    pieces = []
    for token, (text, is_thought) in enumerate(words):
        pieces.append(stream.push(token, text.encode(), is_thought=is_thought))
    assert "".join(piece.text for piece in pieces if piece) == "a STOP b STOPSTOP " == stream.text
    assert stream.stopped == "STOP"
