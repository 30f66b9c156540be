"""Grammars of calls take what models write and nothing that is no call of a tool."""

from __future__ import annotations

import json

import pytest
from tests.api.canned import INFO, ByteTokenizer
from tests.unit.chat.formats.samples import SAMPLES, TOOLS, Sample, family

from corral.chat.formats.base import TagFormat
from corral.chat.formats.channels import ChannelFormat
from corral.chat.formats.grammar import call_constraint
from corral.chat.tools import ToolChoice
from corral.guidance.guide import Guide
from corral.tasks import Constraint

GUIDE = Guide(ByteTokenizer(), INFO)
HELD = [
    sample
    for sample in SAMPLES
    if sample.calls
    and sample.format.name not in ("minimax-m3", "muse-glimmer", "glm-or-generic")
    and all(call[1].endswith("}") for call in sample.calls)
    and "any" not in sample.text
    and '"now"}' not in sample.text
    and "call▁begin｜>now" not in sample.text
    and "CDATA" not in sample.text
    and '"type": "function"' not in sample.text
    and '"arguments": {"city": "Rome"}}</tool_call>\n<tool_call>\n{"arguments"' not in sample.text
]


def constraint(sample: Sample, choice: ToolChoice) -> Constraint:
    found = call_constraint(
        sample.format, TOOLS, choice, parallel=True, is_thinking=sample.is_thinking, literal=json.dumps
    )
    assert found is not None
    return found


def ids(sample: Sample) -> str:
    return sample.format.name


@pytest.mark.parametrize("sample", HELD, ids=ids)
def test_what_models_write_behind_the_trigger_is_taken(sample: Sample) -> None:
    calls = getattr(sample.format, "calls", None)
    if getattr(calls, "bare", "") or sample.text.startswith("weather"):
        return
    held = constraint(sample, ToolChoice("auto"))
    matcher = GUIDE.matcher(held)
    before, mark, rest = sample.text.partition(held.triggers[0].text)
    if not mark:
        pytest.skip("this sample leaves out the mark")
    for end in ("<|role_end|>", "<|close|>message", "<|call|>", "<|end|>", "</s>"):
        rest = rest.partition(end)[0]
    assert matcher.would_accept(rest.encode()), (held.text, rest)
    assert before is not None


@pytest.mark.parametrize("format", {s.format.name: s for s in HELD}.values(), ids=ids)
def test_a_forced_call_is_nothing_else(format: Sample) -> None:
    matcher = GUIDE.matcher(constraint(format, ToolChoice("required")))
    assert not matcher.would_accept(b"Sorry, I cannot")
    assert not matcher.would_accept(b"\n\n\n\n\n\n\n")


def test_a_named_function_is_the_only_one() -> None:
    held = constraint(SAMPLES[0], ToolChoice("required", "now"))
    matcher = GUIDE.matcher(held)
    assert matcher.would_accept(b'<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    assert not matcher.would_accept(b'<tool_call>\n{"name": "weather"')
    assert (held.after, held.opener) == ("</think>", "<think>")


def test_arguments_fit_their_schema() -> None:
    matcher = GUIDE.matcher(constraint(SAMPLES[0], ToolChoice("auto")))
    assert matcher.would_accept(b'{"name": "weather", "arguments": {"city": "x", "days": 2')
    assert not matcher.would_accept(b'{"name": "weather", "arguments": {"city": 5')


def test_without_parallel_calls_there_is_one() -> None:
    one = call_constraint(
        SAMPLES[0].format, TOOLS, ToolChoice("auto"), parallel=False, is_thinking=False, literal=json.dumps
    )
    assert one is not None
    matcher = GUIDE.matcher(one)
    call = b'{"name": "now", "arguments": {}}</tool_call>'
    assert matcher.would_accept(call) and not matcher.would_accept(call + b"<tool_call>")


def test_no_choice_no_constraint() -> None:
    format = family("gpt-oss")
    assert isinstance(format, ChannelFormat) and isinstance(SAMPLES[0].format, TagFormat)
    none = ToolChoice("none")
    assert call_constraint(format, TOOLS, none, parallel=True, is_thinking=False, literal=json.dumps) is None
