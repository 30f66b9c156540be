"""What models write becomes thoughts, text and calls."""

from __future__ import annotations

import json

import pytest
from tests.unit.chat.formats.samples import SAMPLES, TOOLS, Sample, family, new_id

from corral.chat.deltas import Content, Reply, whole_reply
from corral.chat.formats.base import Expect, Reader
from corral.chat.formats.families import FAMILIES
from corral.chat.tools import read_tools
from corral.events import StopReason


def read(sample: Sample, *, n_chars: int = 10**6, **expect: bool) -> Reply:
    reader = Reader(sample.format, Expect(TOOLS, is_thinking=sample.is_thinking, **expect), new_id)
    deltas = []
    for i in range(0, len(sample.text), n_chars):
        deltas += reader.feed(sample.text[i : i + n_chars])
    return whole_reply([*deltas, *reader.finish()])


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.format.name}: {sample.text[:20]!r}")
def test_samples(sample: Sample) -> None:
    assert read(sample) == sample.reply
    assert read(sample, n_chars=1) == sample.reply


def test_every_family_has_a_sample() -> None:
    sampled = {sample.format.name for sample in SAMPLES}
    twins = {"llm-jp-harmony", "lfm2.5", "deepseek-dsml-tool_calls"}
    assert {family.format.name for family in FAMILIES} - twins <= sampled


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.format.name}: {sample.text[:20]!r}")
def test_text_stays_whole_if_nothing_is_to_be_found_in_it(sample: Sample) -> None:
    if getattr(sample.format, "noise", ()) or not hasattr(sample.format, "calls") or sample.format.name == "gpt-oss":
        return
    if sample.format.name in ("muse-glimmer", "functionary-v3.2"):
        return
    assert read(sample, reads_calls=False, keeps_thoughts=True).content == sample.text


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if sample.calls and "Ro" in sample.text][:40], ids=lambda s: s.format.name
)
def test_arguments_are_json(sample: Sample) -> None:
    for call in read(sample).calls:
        if call.arguments.endswith("}"):
            assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.format.name}: {sample.text[:20]!r}")
def test_a_reply_that_the_limit_cut_has_no_pieces_of_marks_in_it(sample: Sample) -> None:
    whole = sample.reply
    for n in range(len(sample.text)):
        reader = Reader(sample.format, Expect(TOOLS, is_thinking=sample.is_thinking), new_id)
        cut = whole_reply([*reader.feed(sample.text[:n]), *reader.finish(StopReason.LIMIT)])
        if not getattr(getattr(sample.format, "calls", None), "bare", ""):  # JSON without a mark may be an answer
            assert whole.content.startswith(cut.content.rstrip())
        assert whole.reasoning.startswith(cut.reasoning), sample.text[:n]
        for found, call in zip(cut.calls, whole.calls, strict=False):
            assert (found.name, found.id) == (call.name, call.id)
            assert call.arguments.startswith(found.arguments), sample.text[:n]


def test_text_is_told_as_it_comes() -> None:
    reader = Reader(SAMPLES[0].format, Expect(TOOLS), new_id)
    assert reader.feed("Hello <") == [Content("Hello")]
    assert reader.feed("b> x") == [Content(" <b> x")]


def test_arguments_are_told_as_they_come() -> None:
    reader = Reader(SAMPLES[0].format, Expect(TOOLS), new_id)
    told = whole_reply(reader.feed('<tool_call>{"name": "weather", "arguments": {"city": "Ro'))
    assert told.calls[0].arguments == '{"city": "Ro'


def test_types_in_capitals_say_what_is_text() -> None:
    tools = read_tools(
        [
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "parameters": {
                        "properties": {"a": {"type": "STRING"}, "b": {"type": "INTEGER"}, "c": {"type": "any"}}
                    },
                },
            }
        ]
    )
    values = "".join(f"<parameter={key}>\n5\n</parameter>\n" for key in "abc")
    reader = Reader(family("qwen3-coder"), Expect(tools), new_id)
    deltas = reader.feed(f"<tool_call>\n<function=f>\n{values}</function>\n</tool_call>")
    assert whole_reply([*deltas, *reader.finish()]).calls[0].arguments == '{"a": "5", "b": 5, "c": 5}'


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("5", '"5"'),
        ("null", "null"),
        ("Rome", '"Rome"'),
        ("true", '"true"'),
    ],
)
def test_a_value_that_may_be_text_is_another_only_if_that_may_be(written: str, read_as: str) -> None:
    parameters = {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    reader = Reader(family("qwen3-coder"), Expect(tools), new_id)
    deltas = reader.feed(
        f"<tool_call>\n<function=f>\n<parameter=a>\n{written}\n</parameter>\n</function>\n</tool_call>"
    )
    assert whole_reply([*deltas, *reader.finish()]).calls[0].arguments == f'{{"a": {read_as}}}'


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("{'a': true, \"b\": None, 'c': [-1, 2.5]}", '{"a": true, "b": null, "c": [-1, 2.5]}'),
        ("NaN", '"NaN"'),
        ("1e999", "1e999"),
        ("-1e999", "-1e999"),
        ("{'a': 1e999}", "\"{'a': 1e999}\""),
        ("('a', 'b')", '["a", "b"]'),
        ("__import__('os')", "\"__import__('os')\""),
    ],
)
def test_pythons_literals_become_json(written: str, read_as: str) -> None:
    reader = Reader(family("lfm2"), Expect(TOOLS), new_id)
    deltas = reader.feed(f"<|tool_call_start|>[weather(any={written})]<|tool_call_end|>")
    assert whole_reply([*deltas, *reader.finish()]).calls[0].arguments == f'{{"any": {read_as}}}'
