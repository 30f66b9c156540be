"""Grammars of calls, in llguidance's lark: what a model may write so that its calls are whole and fit their tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from corral.chat.formats.base import CallFormat, Format, TagFormat, Thinking
from corral.chat.formats.channels import ChannelFormat
from corral.chat.formats.detect import Either
from corral.chat.formats.gemma import CLOSE, OPEN, GemmaCalls
from corral.chat.formats.json_calls import JsonCalls
from corral.chat.formats.python_calls import PythonCalls
from corral.chat.formats.tag_json import TagJson
from corral.chat.formats.tagged import Tagged
from corral.chat.tools import Json, Tool, ToolChoice, Tools
from corral.guidance.references import with_definitions
from corral.guidance.trial import LAYOUT
from corral.tasks import Constraint, ConstraintKind, Trigger

Literal = Callable[[str], str]
"""A text as terms of lark: control tokens in it become tokens."""

_SPACE = "space"


def call_constraint(
    format: Format, tools: Tools, choice: ToolChoice, *, parallel: bool, is_thinking: bool, literal: Literal
) -> Constraint | None:
    """What generation is held to for ``choice``; None if nothing is, or if the format has no grammar.

    A call that must be made holds from the first token behind the thoughts; others from a mark on that begins calls.
    """
    if choice.mode == "none":
        return None
    named = [tools.by_name[choice.name]] if choice.name else list(tools.by_name.values())
    grammar = _Grammar(named, parallel and not choice.name, literal)
    if isinstance(format, ChannelFormat):
        return _channel_constraint(format, grammar, choice, is_thinking) if format.calls is None else None
    if not isinstance(format, TagFormat) or format.calls is None:
        return None
    calls = format.calls.second if isinstance(format.calls, Either) else format.calls
    shape = grammar.shape(calls)
    if shape is None:
        return None
    if choice.mode == "required":
        opener = literal(format.opener) if format.opener and not format.noise else ""
        text = grammar.text(f"{_SPACE} {opener} {shape.trigger} {shape.rest}")
        return Constraint(ConstraintKind.LARK, text, (), *_thoughts(format.thinking, is_thinking))
    if not shape.mark:
        return None
    thoughts = _thoughts(format.thinking, is_thinking)
    return Constraint(ConstraintKind.LARK, grammar.text(shape.rest), (Trigger(shape.mark),), *thoughts)


def _thoughts(thinking: Thinking | None, is_thinking: bool) -> tuple[str, str]:
    """``after`` and ``opener`` of a constraint."""
    if thinking is None:
        return "", ""
    return thinking.ends[0], "" if is_thinking else thinking.starts[0]


def _channel_constraint(format: ChannelFormat, grammar: _Grammar, choice: ToolChoice, is_thinking: bool) -> Constraint:
    """Harmony: the head of a message names the function."""
    lit = grammar.literal
    body = f"{lit('<|message|>')} "
    rest = grammar.choose(lambda tool: f"{lit(tool.name)} head {body}{grammar.arguments(tool)}")
    channel = f"""({lit("<|channel|>")} ("commentary" | "analysis"))?"""
    grammar.rules["head"] = f"""{channel} (" "? {lit("<|constrain|>")}? "json")?"""
    if choice.mode == "auto":
        return Constraint(ConstraintKind.LARK, grammar.text(rest), (Trigger(" to=functions."),))
    grammar.rules["thoughts"] = f"{lit('<|channel|>analysis<|message|>')} any {lit('<|end|><|start|>assistant')}"
    grammar.rules["any"] = r"/(?s:.*)/"
    opening = f"thoughts? {lit('<|channel|>commentary to=functions.')}"
    if is_thinking:
        opening = f"any {lit('<|end|><|start|>assistant')} {lit('<|channel|>commentary to=functions.')}"
    return Constraint(ConstraintKind.LARK, grammar.text(f"{opening} {rest}"))


@dataclass(frozen=True, slots=True)
class _Shape:
    """``mark`` begins calls, as text; ``trigger`` is the same as terms; ``rest`` is what follows."""

    mark: str
    trigger: str
    rest: str


@dataclass(slots=True)
class _Grammar:
    """Rules on their way."""

    tools: Sequence[Tool]
    parallel: bool
    literal: Literal
    rules: dict[str, str] = field(default_factory=dict)

    def text(self, start: str) -> str:
        rules = {"start": start, _SPACE: r"/[ \n]{0,4}/", **self.rules}
        return "\n".join(f"{name}: {body}" for name, body in rules.items())

    def shape(self, calls: CallFormat) -> _Shape | None:
        match calls:
            case JsonCalls():
                return self._json_calls(calls)
            case TagJson():
                return self._tag_json(calls)
            case Tagged():
                return self._tagged(calls)
            case PythonCalls():
                return self._python_calls(calls)
            case GemmaCalls():
                return self._gemma_calls()
        return None

    def choose(self, write: Callable[[Tool], str]) -> str:
        """One of the tools, each as ``write`` writes it."""
        for i, tool in enumerate(self.tools):
            self.rules[f"tool_{i}"] = write(tool)
        return "(" + " | ".join(f"tool_{i}" for i in range(len(self.tools))) + ")"

    def arguments(self, tool: Tool) -> str:
        return _json(tool.parameters)

    def _again(self, one: str, between: str) -> str:
        """Once, or with parallel calls several times."""
        return f"{one} ({between} {one})*" if self.parallel else one

    def _section(self, section: Iterable[str], section_end: Iterable[str], open_mark: str, one: str) -> _Shape:
        """Calls, each behind ``open_mark``, between marks of a section if there are any."""
        begins, ends = next(iter(section), ""), next(iter(section_end), "")
        lit = self.literal
        end = f"{_SPACE} {lit(ends)}" if ends else ""
        if begins:
            calls = self._again(f"{lit(open_mark)} {one}", _SPACE)
            return _Shape(begins, lit(begins), f"{_SPACE} {calls} {end}")
        calls = self._again(one, f"{_SPACE} {lit(open_mark)}")
        return _Shape(open_mark, lit(open_mark), f"{calls} {end}")

    def _json_calls(self, calls: JsonCalls) -> _Shape:
        one = self.choose(lambda tool: _json(_call_schema(calls, tool)))
        before, after = next(iter(calls.before), ""), next(iter(calls.after), "")
        lit = self.literal
        end = f"{_SPACE} {lit(after)}" if after else ""
        if calls.is_array:
            comma = f'{_SPACE} "," {_SPACE}'
            rest = f'{_SPACE} "[" {_SPACE} {self._again(one, comma)} {_SPACE} "]" {end}'
        elif before and after:
            rest = self._again(f"{_SPACE} {one} {end}", f"{_SPACE} {lit(before)}")
        else:
            rest = one
        if calls.bare:
            return _Shape("", "", rest)
        return _Shape(before, lit(before), rest)

    def _tag_json(self, calls: TagJson) -> _Shape:
        lit = self.literal
        kind = lit(calls.before_name[0]) if calls.before_name else ""
        fence = calls.fences[0] if calls.fences else ("", "")
        close = f"{_SPACE} {lit(calls.close[0])}" if calls.close else ""
        self.rules["call_id"] = r"/[A-Za-z0-9_.-]{1,40}/"
        before = f"call_id {lit(calls.id_before[0])}" if calls.id_before else ""
        behind = f"{lit(calls.id_mark[0])} call_id" if calls.id_mark else ""
        prefix, suffix = ("functions.", ":") if calls.id_pattern else ("", "")
        self.rules["number"] = r"/[0-9]{1,3}/"
        number = f"{lit(suffix)} number" if suffix else ""
        one = self.choose(
            lambda tool: (
                f"{kind} {before} {lit(prefix + tool.name)} {number} {behind} {lit(calls.name_end[0])} {_SPACE} "
                f"{lit(fence[0])} {_SPACE} {self.arguments(tool)} {_SPACE} {lit(fence[1])} {close}"
            )
        )
        return self._section(calls.section, calls.section_end, calls.open, one)

    def _tagged(self, calls: Tagged) -> _Shape:
        lit = self.literal

        def call(tool: Tool) -> str:
            members = " | ".join(self._argument(calls, tool, key) for key in _properties(tool)) or '""'
            tag_end = lit(calls.tag_end)
            if calls.tag_end == "<|sep|>":
                tag_end = '(" index=\\"" /[0-9]{1,3}/ "\\"")? ' + tag_end
            name_end = calls.name_end if _properties(tool) or calls.name_end != "\n" else ""
            return f"{lit(tool.name + name_end)} {tag_end} ({_SPACE} ({members}))* {_SPACE} {lit(calls.close)}"

        return self._section(calls.section, calls.section_end, calls.open, self.choose(call))

    def _argument(self, calls: Tagged, tool: Tool, key: str) -> str:
        lit = self.literal
        types = Tools({tool.name: tool}).types(tool.name, key)
        is_text = not types or "string" in types
        edge = '"\\n"' if calls.trims else ""
        attributes = ""
        if calls.tag_end == "<|sep|>":
            attributes = lit(' type="') + ' /[a-z]{1,10}/ "\\""'
        elif calls.tag_end:
            attributes = lit(f' string="{"true" if is_text else "false"}"')
        head = f"{lit(calls.key + key + calls.key_end)} {attributes} {lit(calls.tag_end)}"
        if calls.value:
            head += f" {_SPACE} {lit(calls.value)}"
        if is_text:
            return f"{head} {edge} {self._until(calls.value_end)}"
        schema = with_definitions(_properties(tool)[key], tool.parameters)
        return f"{head} {edge} {_json(schema)} {edge} {lit(calls.value_end)}"

    def _until(self, end: str) -> str:
        """Any text and the mark that ends it."""
        terms = self.literal(end)
        if terms.startswith("<["):
            self.rules["any"] = r"/(?s:.*)/"
            return f"any {terms}"
        self.rules[f"until[suffix={json.dumps(end, ensure_ascii=False)}]"] = r"/(?s:.*)/"
        return "until"

    def _python_calls(self, calls: PythonCalls) -> _Shape:
        lit = self.literal

        def call(tool: Tool) -> str:
            members = [
                f"{lit(key + '=')} {_json(with_definitions(schema, tool.parameters))}"
                for key, schema in _properties(tool).items()
            ]
            inner = f'(({" | ".join(members)}) ("," {_SPACE} ({" | ".join(members)}))*)?' if members else ""
            return f'{lit(tool.name)} "(" {inner} ")"'

        comma = f'"," {_SPACE}'
        rest = f'"[" {self._again(self.choose(call), comma)} "]" {lit(calls.after[0]) if calls.after else ""}'
        return _Shape(next(iter(calls.before), ""), lit(next(iter(calls.before), "")), rest)

    def _gemma_calls(self) -> _Shape:
        lit = self.literal
        quote = lit('<|"|>')
        self.rules |= {
            "value": 'quoted | object | list | /-?[0-9]+(\\.[0-9]+)?/ | "true" | "false" | "null"',
            "quoted": f"{quote} {'any' if quote.startswith('<[') else 'inner'} {quote}",
            "any": r"/(?s:.*)/",
            "inner": r"/[^<]*/",
            "object": '"{" (member ("," member)*)? "}"',
            "member": '/[A-Za-z0-9_]+/ ":" value',
            "list": '"[" (value ("," value)*)? "]"',
        }
        one = f"{self.choose(lambda tool: lit('call:' + tool.name) + ' object')} {lit(CLOSE)}"
        return _Shape(OPEN, lit(OPEN), self._again(one, lit(OPEN)))


def _call_schema(calls: JsonCalls, tool: Tool) -> Json:
    """The schema of a whole call object."""
    if calls.name_is_key:
        members: dict[str, object] = {tool.name: tool.parameters}
    else:
        members = {calls.name: {"const": tool.name}, calls.arguments: tool.parameters}
    if calls.id:
        call_id = {calls.id: {"type": "string", "pattern": "^[A-Za-z0-9]{1,9}$"}}
        members = {**call_id, **members} if calls.id.startswith("tool_call") else {**members, **call_id}
    schema = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    return with_definitions(schema, tool.parameters)


def _properties(tool: Tool) -> dict[str, object]:
    properties = tool.parameters.get("properties")
    return dict(properties) if isinstance(properties, dict) else {}


def _json(schema: Json) -> str:
    """JSON of a schema, as a term."""
    return "%json " + json.dumps({**schema, "x-guidance": LAYOUT}, ensure_ascii=False)
