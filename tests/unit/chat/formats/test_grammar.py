"""Grammars of calls take what models write and nothing that is no call of a tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.api.canned import EOS, INFO, ByteTokenizer
from tests.unit.chat.formats.samples import GPT_OSS, HERMES, MUSE, SAMPLES, TOOLS, Sample

from corral.chat.deltas import whole_reply
from corral.chat.formats.base import Expect, Format, Reader
from corral.chat.formats.families import (
    COHERE_MOE,
    FUNCTIONARY_3_2,
    GEMMA_4,
    GIGACHAT,
    KIMI_K3,
    LFM2,
    MINIMAX_M3,
    QWEN_CODER,
)
from corral.chat.formats.grammar import Wanted, answer_constraint, call_constraint
from corral.chat.tools import ToolChoice, Tools, read_tools
from corral.engine.triggers import new_watch
from corral.errors import InvalidRequest
from corral.guidance.guide import Guide
from corral.guidance.matcher import GuidedMatcher
from corral.tasks import Constraint, ConstraintKind

GUIDE = Guide(ByteTokenizer(), INFO)
ODD = ('"now"}', "call▁begin｜>now", '"type": "function"', '\n{"arguments"', "|>]}", "<tags>")
"""Readers forgive more than what is asked for: arguments left out or in front of the name, wrappers, sloppy types."""
HELD = [
    sample
    for sample in SAMPLES
    if sample.calls
    and sample.format.name != "glm-or-generic"
    and all(call[1].endswith("}") for call in sample.calls)
    and not any(odd in sample.text for odd in ODD)
]
ENDS = ("<|role_end|>", "<|close|>message", "<|call|>", "<|eom|><|start|>assistant to=user", "</s>")
"""What comes behind calls: generation ends before."""


def constraint(format: Format, tools: Tools, choice: ToolChoice, **wanted: Any) -> Constraint:
    found = call_constraint(format, tools, Wanted(choice, **wanted), json.dumps)
    assert found is not None
    return found


def matcher(format: Format, choice: ToolChoice, **wanted: Any) -> GuidedMatcher:
    return GUIDE.matcher(constraint(format, TOOLS, choice, **wanted))


def ids(sample: Sample) -> str:
    return sample.format.name


@pytest.mark.parametrize("sample", HELD, ids=ids)
def test_what_models_write_behind_a_trigger_is_taken(sample: Sample) -> None:
    held = constraint(sample.format, TOOLS, ToolChoice("auto"), is_thinking=sample.is_thinking)
    text = sample.text
    if held.after and (not held.opener or text.startswith(held.opener)):
        text = text.partition(held.after)[2] or text
    data, watch = text.encode(), new_watch(held.triggers, held.with_trigger)
    for n in range(len(data)):
        watch = watch.advanced(data[n : n + 1])
        if watch.rest is not None:
            break
    assert watch.rest is not None, "nothing triggers"
    rest = (watch.rest + data[n + 1 :]).decode()
    for end in ENDS:
        rest = rest.partition(end)[0]
    matcher = GUIDE.matcher(held)
    assert matcher.would_accept(rest.encode()), (held.text, rest)
    matcher.accept_text(rest.encode())
    is_whole = matcher.is_complete or EOS in matcher.allowed()
    assert is_whole or (sample.format is GIGACHAT and matcher.would_accept(b"<|message_sep|>"))


@pytest.mark.parametrize("format", {s.format.name: s.format for s in SAMPLES}.values(), ids=lambda one: one.name)
def test_a_forced_call_is_nothing_else(format: Format) -> None:
    held = matcher(format, ToolChoice("required"))
    assert not held.would_accept(b"Sorry, I cannot")
    assert not held.would_accept(b"\n\n\n\n\n\n\n")


def test_a_named_function_is_the_only_one() -> None:
    held = constraint(HERMES, TOOLS, ToolChoice("required", "now"))
    named = GUIDE.matcher(held)
    assert named.would_accept(b'<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    assert not named.would_accept(b'<tool_call>\n{"name": "weather"')
    assert (held.after, held.opener) == ("</think>", "<think>")
    assert constraint(HERMES, TOOLS, ToolChoice("required"), has_thought=True).after == ""


def test_arguments_fit_their_schema() -> None:
    held = matcher(HERMES, ToolChoice("auto"))
    assert held.would_accept(b'{"name": "weather", "arguments": {"city": "x", "days": 2')
    assert not held.would_accept(b'{"name": "weather", "arguments": {"city": 5')


SCHEMA: Any = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {"enum": ["x", "y"]},
        "c": {"type": "integer", "maximum": 9},
        "d": {"type": "object", "properties": {"e": {"type": "boolean"}}, "required": ["e"]},
    },
    "required": ["a", "c"],
}
ONE = read_tools([{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}])
N = "]<]minimax[>["


def elements(**arguments: str) -> str:
    inner = "".join(f"{N}<{key}>{value}{N}</{key}>" for key, value in arguments.items())
    return f'{N}<invoke name="f">{inner}{N}</invoke>{N}</tool_call>'


def parameters(**arguments: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<function=f>\n{inner}</function>\n</tool_call>"


def gemma(**arguments: str) -> str:
    return "call:f{" + ",".join(f"{key}:{value}" for key, value in arguments.items()) + "}<tool_call|>"


def python(**arguments: str) -> str:
    return "[f(" + ", ".join(f"{key}={value}" for key, value in arguments.items()) + ")]<|tool_call_end|>"


NOT_JSON: list[tuple[Format, Any, dict[str, str]]] = [
    (MINIMAX_M3, elements, {"text": "any <b>", "x": "x", "nested": f"{N}<e>true{N}</e>", "empty": ""}),
    (QWEN_CODER, parameters, {"text": "any <b>", "x": "x", "nested": '{"e": true}', "empty": "{}"}),
    (GEMMA_4, gemma, {"text": '<|"|>any <b><|"|>', "x": '<|"|>x<|"|>', "nested": "{e:true}", "empty": "{}"}),
    (LFM2, python, {"text": '"any <b>"', "x": '"x"', "nested": '{"e": true}', "empty": "{}"}),
]


@pytest.mark.parametrize(("format", "write", "v"), NOT_JSON, ids=[one[0].name for one in NOT_JSON])
def test_arguments_that_are_not_json_fit_their_schema_too(format: Format, write: Any, v: dict[str, str]) -> None:
    held = GUIDE.matcher(constraint(format, ONE, ToolChoice("auto")))
    for good in (
        write(a=v["text"], c="3"),
        write(c="3", a=v["text"], b=v["x"]),
        write(d=v["nested"], b=v["x"], c="9", a=v["text"]),
    ):
        assert held.would_accept(good.encode()), good
    for bad in (
        write(a=v["text"]),
        write(),
        write(a=v["text"], c="10"),
        write(a=v["text"], c=v["text"]),
        write(a=v["text"], a2="1", c="3"),
        write(a=v["text"], c="3", b=v["text"]),
        write(a=v["text"], c="3", d=v["empty"]),
        write(a=v["text"], c="3").replace("c", "a"),
    ):
        assert not held.would_accept(bad.encode()), bad


@pytest.mark.parametrize(("format", "write", "v"), NOT_JSON, ids=[one[0].name for one in NOT_JSON])
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "^[a-c/]+$"}, ["a", "ab/c"], ["", "d", "ax", "a\nb"]),
        ({"pattern": "b.a|^x"}, ["zbaaz", "x", "xyz"], ["", "b", "ax"]),
        ({"minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
        ({"maxLength": 100_000, "pattern": "[|$]"}, ["a|", "$"], ["a"]),
        ({"allOf": [{"minLength": 2}, {"pattern": "^a"}]}, ["ab"], ["a", "bb"]),
    ],
)
def test_text_between_marks_fits_patterns_and_lengths(
    format: Format, write: Any, v: dict[str, str], schema: Any, good: list[str], bad: list[str]
) -> None:
    parameters = {"type": "object", "properties": {"t": {"type": "string", **schema}}, "required": ["t"]}
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    held = GUIDE.matcher(constraint(format, tools, ToolChoice("auto")))
    around = v["x"].split("x")
    for text in good:
        assert held.would_accept(write(t=text.join(around)).encode()), text
    for text in bad:
        assert not held.would_accept(write(t=text.join(around)).encode()), text


def test_python_may_write_its_own_words() -> None:
    held = matcher(LFM2, ToolChoice("auto"))
    assert held.would_accept(b"[weather(city='Rome', any=True), now()]<|tool_call_end|>")
    assert held.would_accept(b'[weather(any=None, city="Rome")]<|tool_call_end|>')
    assert not held.would_accept(b"[weather(city=True")


def test_a_tool_whose_arguments_are_not_named_takes_any() -> None:
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    for format, text in [
        (QWEN_CODER, parameters(x="1", y="any <b>")),
        (GEMMA_4, gemma(x="1", y='{z:[1,<|"|>a<|"|>]}')),
        (LFM2, python(x="1", y="None")),
        (MINIMAX_M3, elements(x="1", y="text")),
    ]:
        assert GUIDE.matcher(constraint(format, tools, ToolChoice("auto"))).would_accept(text.encode()), format.name


def test_arguments_of_references_and_alternatives_are_known() -> None:
    schema = {
        "$defs": {"base": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"b": {"type": "integer"}},
    }
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    held = GUIDE.matcher(constraint(QWEN_CODER, tools, ToolChoice("auto")))
    assert held.would_accept(parameters(b="1", a="x").encode())
    assert not held.would_accept(parameters(b="1").encode())


def test_elements_of_a_ring_of_references_nest() -> None:
    node = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
    schema = {"$defs": {"node": node}, "type": "object", "properties": {"list": {"$ref": "#/$defs/node"}}}
    tools = read_tools([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    held = GUIDE.matcher(constraint(MINIMAX_M3, tools, ToolChoice("auto")))
    inner = f"{N}<v>1{N}</v>"
    for _ in range(5):
        inner = f"{N}<next>{inner}{N}</next>"
        assert held.would_accept(elements(list=inner).encode())
    assert not held.would_accept(elements(list=inner.replace("1", "x")).encode())


def test_without_parallel_calls_there_is_one() -> None:
    held = matcher(HERMES, ToolChoice("auto"), parallel=False)
    call = b'{"name": "now", "arguments": {}}</tool_call>'
    assert held.would_accept(call) and not held.would_accept(call + b"<tool_call>")


def test_calls_each_in_a_section_of_their_own() -> None:
    section = b"<function=now>\n</function>\n</tool_call>"
    many, one = (matcher(QWEN_CODER, ToolChoice("auto"), parallel=parallel) for parallel in (True, False))
    assert many.would_accept(section + b"\n<tool_call>\n" + section)
    assert one.would_accept(section) and not one.would_accept(section + b"\n<tool_call>\n" + section)


def test_an_answer_of_a_schema_in_place_of_calls() -> None:
    reply = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    held = constraint(HERMES, TOOLS, ToolChoice("auto"), reply=reply)
    assert not held.triggers and (held.after, held.opener) == ("</think>", "<think>")
    either = GUIDE.matcher(held)
    assert either.would_accept(b'{"ok": true}') and either.would_accept(b'<tool_call>{"name": "now", "arguments": {}}')
    assert not either.would_accept(b"Sure") and not either.would_accept(b'{"ok": 1')
    forced = matcher(HERMES, ToolChoice("required"), reply=reply)
    assert not forced.would_accept(b'{"ok": true}')


OPENED = {
    "gpt-oss": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        ("<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"),
    ),
    "muse-glimmer": (" to=self<|message|>Hm.<|eom|><|start|>assistant", (" to=user<|message|>",)),
    "kimi-k3": ("", ("<|open|>response<|sep|>",)),
    "cohere2-moe": ("", ("<|START_TEXT|>",)),
    "command-r7b": ("", ("<|START_RESPONSE|>",)),
    "functionary-v3.2": ("", ("all\n",)),
}


OWN = (
    (Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "object"}'), '{"ok": 1', "Sure"),
    (Constraint(ConstraintKind.REGEX, 'a/b[}"]+'), 'a/b}"', "a}"),
    (Constraint(ConstraintKind.LARK, 'start: "}" start | "x"'), "}}x", "}}y"),
    (Constraint(ConstraintKind.GBNF, 'root ::= "yes" | "n" "o"'), "no", "not"),
)


@pytest.mark.parametrize("own", OWN, ids=lambda one: one[0].kind.value)
@pytest.mark.parametrize("format", {s.format.name: s.format for s in SAMPLES}.values(), ids=lambda one: one.name)
def test_an_answer_behind_its_mark(format: Format, own: tuple[Constraint, str, str]) -> None:
    """Where a mark stands before texts it is held, too: a reply without it would be held to nothing."""
    asked, good, bad = own
    held = answer_constraint(asked, format, Wanted(ToolChoice("none")), json.dumps)
    assert bool(held.head) == bool(format.opener) == (format.name in OPENED)
    assert (held.kind, held.text) == (asked.kind, asked.text)
    if not held.head:
        assert held.after == (format.thinking.ends[0] if format.thinking else "")
        return
    thoughts, heads = OPENED[format.name]
    answer = GUIDE.matcher(held)
    for head in heads:
        assert answer.would_accept(f"{thoughts}{head}{good}".encode())
        assert not answer.would_accept(f"{thoughts}{head}{bad}".encode())
    assert not answer.would_accept(f"{heads[0][:-1]}?".encode()) and not answer.would_accept(bad.encode())
    is_thought_over = format.thinking is not None and format.opener in format.thinking.ends
    assert answer.would_accept(good.encode()) == is_thought_over
    assert bool(held.after) == (format.name in ("kimi-k3", "cohere2-moe", "command-r7b"))


def test_a_text_that_goes_on_is_held_from_its_first_token() -> None:
    for asked, *_ in OWN:
        assert answer_constraint(asked, GPT_OSS, Wanted(ToolChoice("none"), is_text=True), json.dumps) == asked


def test_what_is_wrong_with_an_answer_is_told_as_without_a_mark() -> None:
    for asked in (
        Constraint(ConstraintKind.JSON_SCHEMA, '{"properties": {"a": {"not": {}}}}'),
        Constraint(ConstraintKind.REGEX, "("),
        Constraint(ConstraintKind.LARK, "start: nobody"),
        Constraint(ConstraintKind.GBNF, "root ::= nobody"),
    ):
        with pytest.raises(InvalidRequest) as plain:
            GUIDE.matcher(asked)
        with pytest.raises(InvalidRequest) as marked:
            GUIDE.matcher(answer_constraint(asked, GPT_OSS, Wanted(ToolChoice("none")), json.dumps))
        assert str(plain.value) == str(marked.value)


@pytest.mark.parametrize("format", [KIMI_K3, COHERE_MOE], ids=lambda one: one.name)
def test_thoughts_that_end_with_the_mark_of_texts_are_over(format: Format) -> None:
    """Some models go from thoughts to a text without closing them."""
    answer = constraint(format, TOOLS, ToolChoice("auto"), is_thinking=True, reply={"type": "object"})
    assert GUIDE.matcher(answer).would_accept(b'{"ok": 1')
    for held in (answer, constraint(format, TOOLS, ToolChoice("required"), is_thinking=True)):
        assert format.opener in held.or_after


def test_messages_of_thoughts_come_before_what_is_forced() -> None:
    thought = " to=self<|message|>Hm.<|eom|><|start|>assistant"
    call = ' to=now<|message|><atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
    held = matcher(MUSE, ToolChoice("required"))
    assert held.would_accept((thought * 2 + call).encode()) and held.would_accept(call.encode())
    assert not held.would_accept(b" to=user<|message|>")
    opened = matcher(MUSE, ToolChoice("required"), is_thinking=True)
    assert opened.would_accept(("Hm.<|eom|><|start|>assistant" + call).encode())
    harmony = matcher(GPT_OSS, ToolChoice("required"))
    analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert harmony.would_accept(f"{analysis}<|channel|>commentary to=functions.now <|constrain|>json".encode())
    assert not harmony.would_accept(f"{analysis}<|channel|>final".encode())


def test_a_text_that_goes_on_ends_before_the_call_that_is_forced() -> None:
    """Where a message is open the call would be a part of its text."""
    heads = {GPT_OSS: "<|end|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{}"}
    heads[FUNCTIONARY_3_2] = ">>>now\n{}"
    call = '<atem:function_calls><atem:invoke name="now"></atem:invoke></atem:function_calls>'
    heads[MUSE] = f"<|eom|><|start|>assistant to=now<|message|>{call}"
    for format, text in heads.items():
        held = matcher(format, ToolChoice("required"), is_text=True)
        assert held.would_accept(text.encode())
        reader = Reader(format, Expect(TOOLS, is_text=True))
        whole = whole_reply([*reader.feed(f" sure.{text}"), *reader.finish()])
        assert whole.content == " sure." and [call.name for call in whole.calls] == ["now"]


def test_a_harmony_call_of_a_name_with_other_letters() -> None:
    reader = Reader(GPT_OSS, Expect(read_tools([{"type": "function", "function": {"name": "météo"}}])))
    text = "<|channel|>commentary to=functions.météo<|message|>{}"
    assert [call.name for call in whole_reply([*reader.feed(text), *reader.finish()]).calls] == ["météo"]


def test_names_that_python_does_not_have() -> None:
    """Tools of MCP servers are called so; their arguments must come all the same."""
    schema = {"type": "object", "properties": {"my-key": {"type": "integer"}, "é x": {"type": "boolean"}}}
    parameters = {**schema, "required": ["my-key", "é x"]}
    tools = read_tools([{"type": "function", "function": {"name": "ns:a/b", "parameters": parameters}}])
    text = "<|tool_call_start|>[ns:a/b(my-key=1, é x=true)]<|tool_call_end|>"
    held = GUIDE.matcher(constraint(LFM2, tools, ToolChoice("required")))
    assert held.would_accept(text.encode()) and not held.would_accept(b"<|tool_call_start|>[ns:a/b()")
    reader = Reader(LFM2, Expect(tools))
    (call,) = whole_reply([*reader.feed(text), *reader.finish()]).calls
    assert (call.name, json.loads(call.arguments)) == ("ns:a/b", {"my-key": 1, "é x": True})


def test_no_choice_no_constraint() -> None:
    for format in (GPT_OSS, HERMES):
        assert call_constraint(format, TOOLS, Wanted(ToolChoice("none")), json.dumps) is None
