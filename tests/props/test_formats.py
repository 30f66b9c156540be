"""Readers of replies are total: however a text is cut, they say the same, never fail and lose no word."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.chat.formats.samples import SAMPLES, TOOLS, Sample, new_id

from corral.chat.deltas import CallArguments, CallStart, Content, Delta, Reasoning, Reply, whole_reply
from corral.chat.formats.base import Expect, Format, Reader

FORMATS = list({sample.format.name: sample.format for sample in SAMPLES}.values())
MARKS = sorted(
    {mark for format in FORMATS for mark in format.marks}
    | set(re.findall(r"<[^<>]*>|\[[A-Z_/]+\]", " ".join(sample.text for sample in SAMPLES)))
)
BITS = st.one_of(
    st.sampled_from(MARKS),
    st.sampled_from(
        ['{"name": "now", "arguments": {}}', '{"name": "weather", "arguments": {"city": "x"}}', "now", "{}"]
    ),
    st.sampled_from(list('{}[]():,"\\ \n=<>')),
    st.text(alphabet="aé日 \n", max_size=4),
)


def _spoilt(sample: Sample, edits: list[tuple[int, int, str]]) -> tuple[Format, str]:
    """A sample with stretches replaced."""
    text = sample.text
    for place, n, bit in edits:
        at = place % (len(text) + 1)
        text = text[:at] + bit + text[at + n :]
    return sample.format, text


TEXTS = st.one_of(
    st.tuples(st.sampled_from(FORMATS), st.lists(BITS, max_size=25).map("".join)),
    st.builds(
        _spoilt,
        st.sampled_from(SAMPLES),
        st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12), BITS), max_size=4),
    ),
)


def deltas_of(format: Format, pieces: list[str], expect: Expect) -> list[Delta]:
    reader = Reader(format, expect, new_id)
    deltas = [delta for piece in pieces for delta in reader.feed(piece)]
    return [*deltas, *reader.finish()]


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


def test_every_cut_of_every_sample_reads_the_same() -> None:
    for sample in SAMPLES:
        expect = Expect(TOOLS, is_thinking=sample.is_thinking)
        for n in range(len(sample.text) + 1):
            pieces = [sample.text[:n], sample.text[n:]]
            assert whole_reply(deltas_of(sample.format, pieces, expect)) == sample.reply, pieces


@given(st.sampled_from(SAMPLES), st.lists(st.integers(0, 10**6), max_size=30))
def test_any_cuts_of_a_sample_read_the_same(sample: Sample, places: list[int]) -> None:
    expect = Expect(TOOLS, is_thinking=sample.is_thinking)
    assert whole_reply(deltas_of(sample.format, cut(sample.text, places), expect)) == sample.reply


@given(
    TEXTS,
    st.lists(st.integers(0, 10**6), max_size=12),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_any_text_in_any_pieces(
    written: tuple[Format, str], places: list[int], switches: tuple[bool, bool, bool, bool]
) -> None:
    format, text = written
    expect = Expect(TOOLS, *switches)
    whole = deltas_of(format, [text], expect)
    assert whole_reply(deltas_of(format, cut(text, places), expect)) == whole_reply(whole)
    assert_well_formed(whole)


@given(TEXTS, st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()))
def test_text_says_where_it_was_written(written: tuple[Format, str], switches: tuple[bool, bool, bool, bool]) -> None:
    """Log-probabilities of tokens are found by it."""
    format, text = written
    at = 0
    for delta in deltas_of(format, list(text), Expect(TOOLS, *switches)):
        if isinstance(delta, Content):
            assert at <= delta.start < delta.end
            assert delta.text.lstrip() == text[delta.start : delta.end].lstrip()
            at = delta.end


@given(TEXTS, st.booleans())
def test_no_word_is_lost(written: tuple[Format, str], is_thinking: bool) -> None:
    format, text = written
    reply = whole_reply(deltas_of(format, [text], Expect(TOOLS, is_thinking=is_thinking)))
    if reply.calls:  # members of a call that nobody knows are syntax
        return
    assert letters(everything(reply)) == letters(text)


def everything(reply: Reply) -> str:
    return reply.content + reply.reasoning


def letters(text: str) -> tuple[int, ...]:
    return tuple(text.count(letter) for letter in "é日")


@given(TEXTS, st.integers(0, 10**6))
def test_what_was_told_is_never_taken_back(written: tuple[Format, str], place: int) -> None:
    format, text = written
    reader = Reader(format, Expect(TOOLS), new_id)
    early = whole_reply(reader.feed(text[: place % (len(text) + 1)]))
    whole = whole_reply(deltas_of(format, [text], Expect(TOOLS)))
    assert whole.content.startswith(early.content) and whole.reasoning.startswith(early.reasoning)
    assert len(whole.calls) >= len(early.calls)


def assert_well_formed(deltas: list[Delta]) -> None:
    n_calls = 0
    for delta in deltas:
        match delta:
            case CallStart(index, call_id, name):
                assert index == n_calls and call_id and name
                n_calls += 1
            case CallArguments(index, text):
                assert index == n_calls - 1 and text
            case Content(text) | Reasoning(text):
                assert text
