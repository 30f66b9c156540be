"""Whatever a grammar of calls allows, the reader of its format reads as whole calls that fit their tools."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from tests.unit.chat.formats.samples import SAMPLES, new_id
from tests.unit.chat.formats.walks import MarkTokenizer, Walker, exits_of

from corral.chat.deltas import Reply, whole_reply
from corral.chat.formats.base import Expect, Format, Reader
from corral.chat.formats.families import FAMILIES
from corral.chat.formats.grammar import Wanted, call_constraint
from corral.chat.formats.minimax import MARK
from corral.chat.tools import ToolChoice, Tools, read_tools
from corral.engine.triggers import new_watch
from corral.tasks import Constraint, TriggerKind

FORMATS: list[Format] = list(
    {one.name: one for one in [s.format for s in SAMPLES] + [f.format for f in FAMILIES]}.values()
)

NUMBER = {"type": "number", "minimum": -99, "maximum": 99}
SCHEMAS: dict[str, Any] = {
    "search": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 50},
            "order": {"type": "string", "enum": ["up", "down"]},
            "exact": {"type": "boolean"},
            "code": {"type": "string", "pattern": "^[a-c]{1,3}$|x", "maxLength": 5},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        },
        "required": ["query", "limit"],
        "additionalProperties": False,
    },
    "move": {
        "$defs": {
            "Point": {
                "type": "object",
                "properties": {"x": NUMBER, "y": NUMBER},
                "required": ["x"],
            }
        },
        "type": "object",
        "properties": {
            "to": {"$ref": "#/$defs/Point"},
            "via": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "minItems": 1, "maxItems": 2},
            "speed": {"anyOf": [NUMBER, {"type": "null"}]},
            "note": {"type": ["string", "null"]},
            "mode": {"enum": ["fast", 2, None]},
        },
        "required": ["to", "mode"],
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS: Tools = read_tools(
    [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
)
REPLY: Any = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}

FITS = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
IS_REPLY = jsonschema.Draft202012Validator(REPLY)
N_WALKS = 6
ONE_BY_ONE = ("llama-3", "gpt-oss", "llm-jp-harmony")
"""Formats without a mark between calls."""


CASES = [
    pytest.param(format, control, id=f"{format.name}-{'tokens' if control else 'text'}")
    for format in FORMATS
    for control in (True, False)
]


def walker_of(format: Format, control: bool) -> Walker:
    marks = [
        mark for mark in dict.fromkeys((*format.marks, MARK)) if mark.strip() and " " not in mark and "\n" not in mark
    ]
    return Walker(MarkTokenizer(marks if control else []), exits_of(format))


def held(walker: Walker, format: Format, wanted: Wanted) -> Constraint:
    found = call_constraint(format, TOOLS, wanted, walker.tokenizer.literal)
    assert found is not None
    return found


def read(format: Format, text: str) -> Reply:
    reader = Reader(format, Expect(TOOLS), new_id)
    return whole_reply([*reader.feed(text), *reader.finish()])


def check_calls(reply: Reply, text: str) -> None:
    assert reply.calls, text
    for call in reply.calls:
        assert call.name in SCHEMAS, text
        try:
            FITS[call.name].validate(json.loads(call.arguments))
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"{text!r} was read as {call.arguments}: {error}") from None


@pytest.mark.parametrize(("format", "control"), CASES)
def test_a_forced_reply_is_calls_and_nothing_else(format: Format, control: bool) -> None:
    walker = walker_of(format, control)
    for parallel in (True, False):
        constraint = held(walker, format, Wanted(ToolChoice("required"), parallel))
        for seed in range(N_WALKS):
            text = walker.walk(constraint, seed)
            reply = read(format, text)
            check_calls(reply, text)
            assert not reply.content.strip(), text
            assert parallel or len(reply.calls) == 1, text


@pytest.mark.parametrize("left_out", [{}, {"parameters": None}], ids=["omitted", "null"])
@pytest.mark.parametrize(("format", "control"), CASES)
def test_a_function_without_parameters_gets_no_arguments(format: Format, control: bool, left_out: Any) -> None:
    walker = walker_of(format, control)
    tools = read_tools([{"type": "function", "function": {"name": "now", **left_out}}])
    constraint = call_constraint(format, tools, Wanted(ToolChoice("required"), False), walker.tokenizer.literal)
    assert constraint is not None
    for seed in range(N_WALKS):
        text = walker.walk(constraint, seed)
        reader = Reader(format, Expect(tools), new_id)
        (call,) = whole_reply([*reader.feed(text), *reader.finish()]).calls
        assert (call.name, json.loads(call.arguments)) == ("now", {}), text


@pytest.mark.parametrize("format", [one for one in FORMATS if one.name not in ONE_BY_ONE], ids=lambda one: one.name)
def test_several_calls_are_made_where_they_may_be(format: Format) -> None:
    walker = walker_of(format, control=True)
    constraint = held(walker, format, Wanted(ToolChoice("required")))
    assert any(len(read(format, walker.walk(constraint, seed)).calls) > 1 for seed in range(30))


@pytest.mark.parametrize(("format", "control"), CASES)
def test_a_call_in_text_is_held_from_what_begins_it(format: Format, control: bool) -> None:
    walker = walker_of(format, control)
    constraint = held(walker, format, Wanted(ToolChoice("auto")))
    words = [trigger.text for trigger in constraint.triggers if trigger.kind is TriggerKind.WORD]
    for seed in range(N_WALKS):
        behind = walker.walk(constraint, seed)
        found = first_found(constraint, behind)
        is_first = found >= 0 and not behind[:found].strip()
        assert is_first or words, behind
        text = behind if is_first else words[0] + behind
        check_calls(read(format, text), text)


def first_found(constraint: Constraint, text: str) -> int:
    """Where what a pattern begins is in a text that comes byte by byte; -1: nowhere."""
    patterns = [trigger for trigger in constraint.triggers if trigger.kind is not TriggerKind.WORD]
    watch, seen = new_watch(patterns, with_trigger=False), b""
    for byte in text.encode():
        seen += bytes([byte])
        watch = watch.advanced(bytes([byte]))
        if watch.rest is not None:
            return len(seen) - len(watch.rest)
    return -1


@pytest.mark.parametrize(("format", "control"), CASES)
def test_a_named_function_is_called_once(format: Format, control: bool) -> None:
    walker = walker_of(format, control)
    for name in SCHEMAS:
        constraint = held(walker, format, Wanted(ToolChoice("required", name)))
        for seed in range(4):
            reply = read(format, text := walker.walk(constraint, seed))
            check_calls(reply, text)
            assert [call.name for call in reply.calls] == [name], text


@pytest.mark.parametrize(("format", "control"), CASES)
def test_an_answer_of_a_schema_or_calls(format: Format, control: bool) -> None:
    walker = walker_of(format, control)
    constraint = held(walker, format, Wanted(ToolChoice("auto"), reply=REPLY))
    kinds = set()
    for seed in range(3 * N_WALKS):
        reply = read(format, text := walker.walk(constraint, seed))
        if reply.calls:
            check_calls(reply, text)
            assert not reply.content.strip(), text
        else:
            IS_REPLY.validate(json.loads(reply.content))
        kinds.add(bool(reply.calls))
    assert kinds == {True, False}
