"""Owns how calls are written as grammars, one shape for each format of calls that a reader takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from corral.chat.formats.base import CallFormat
from corral.chat.formats.detect import Either
from corral.chat.formats.gemma import CLOSE, OPEN, GemmaCalls
from corral.chat.formats.json_calls import JsonCalls
from corral.chat.formats.minimax import CLOSE as MINIMAX_CLOSE
from corral.chat.formats.minimax import INVOKE, INVOKE_END, MinimaxCalls
from corral.chat.formats.minimax import OPEN as MINIMAX_OPEN
from corral.chat.formats.python_calls import PythonCalls, can_be_key
from corral.chat.formats.rules import SPACE, Rules, json_of
from corral.chat.formats.tag_json import TagJson
from corral.chat.formats.tagged import CDATA, CDATA_END, Tagged
from corral.chat.formats.texts import not_with, text_terminals
from corral.chat.formats.values import COMMA, ElementValues, GemmaValues, PythonValues
from corral.chat.schema import UNKNOWN, Json, Schema
from corral.chat.tools import Tool
from corral.guidance.references import with_definitions
from corral.tasks import Trigger, TriggerKind

_ANY_NAME = r"/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"
_QUOTE, _LINE_END = '"', "\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """``whole`` are the terms of calls; ``behind`` those of what follows one of ``triggers``, which begin calls."""

    whole: str
    behind: str
    triggers: tuple[Trigger, ...]


@dataclass(frozen=True, slots=True)
class Shapes:
    """Calls of ``tools``, one or, if ``is_many``, several."""

    rules: Rules
    tools: Sequence[Tool]
    is_many: bool

    def of(self, calls: CallFormat) -> Shape:
        """The shape of a format."""
        match calls:
            case JsonCalls():
                return self._json_calls(calls)
            case TagJson():
                return self._tag_json(calls)
            case Tagged():
                return self._section(calls.section, calls.section_end, calls.open, self.choose(self.tagged(calls)))
            case PythonCalls():
                return self._python_calls(calls)
            case GemmaCalls():
                return self._gemma_calls()
            case MinimaxCalls():
                return self._minimax_calls()
            case Either():
                return self.of(calls.second)
        raise TypeError(f"no grammar for {type(calls).__name__}")

    def choose(self, write: Callable[[Tool], str]) -> str:
        """One of the tools, each as ``write`` writes it."""
        return self.rules.one_of("tool", map(write, self.tools))

    def again(self, one: str, between: str) -> str:
        return self.rules.again(one, between, is_many=self.is_many)

    @property
    def names(self) -> str:
        """A pattern of the tools' names."""
        return "|".join(re.escape(tool.name) for tool in self.tools)

    def _closing(self, marks: Iterable[str]) -> str:
        """The first of these marks, if there is one, behind white space."""
        return next((f"{SPACE} {self.rules.literal(mark)}" for mark in marks), "")

    def _section(self, section: Iterable[str], section_end: Iterable[str], open_mark: str, one: str) -> Shape:
        """Calls, each behind ``open_mark``, between marks of a section if there are any."""
        lit, begins = self.rules.literal, next(iter(section), "")
        end = self._closing(section_end)
        if begins:
            inner = self.again(f"{lit(open_mark)} {one}", SPACE)
            return self._marked(begins, self.again(f"{SPACE} {inner} {end}", f"{SPACE} {lit(begins)}"))
        return self._marked(open_mark, f"{self.again(one, f'{SPACE} {lit(open_mark)}')} {end}")

    def _marked(self, mark: str, behind: str) -> Shape:
        return Shape(f"{self.rules.literal(mark)} {behind}", behind, (Trigger(mark),))

    def _json_calls(self, calls: JsonCalls) -> Shape:
        lit = self.rules.literal
        one = self.choose(lambda tool: json_of(_call_schema(calls, tool)))
        before = next(iter(calls.before), "")
        end = self._closing(calls.after)
        comma = f'{SPACE} "," {SPACE}'
        if calls.is_array:
            behind = f'{SPACE} "[" {SPACE} {self.again(one, comma)} {SPACE} "]" {end}'
        elif before and not calls.bare:
            behind = self.again(f"{SPACE} {one} {end}", f"{SPACE} {lit(before)}")
        else:
            behind = f"{SPACE} {one} {end}"
        if not calls.bare:
            return self._marked(before, behind)
        marks = (Trigger(before),) if before else ()
        return Shape(f"{one} {end}", behind, (*marks, Trigger(self._bare_json(calls), TriggerKind.PATTERN)))

    def _bare_json(self, calls: JsonCalls) -> str:
        """What a call without a mark begins with, as a pattern: the name tells it from other JSON.

        Only in the layout that it is then held to: a call in another one stays free.
        """
        key = "" if calls.name_is_key else f"{re.escape(json.dumps(calls.name))}: "
        names = "|".join(re.escape(json.dumps(tool.name, ensure_ascii=False)) for tool in self.tools)
        array = r"\[\s*" if calls.is_array else ""
        return rf"^\s*({array}\{{{key}(?:{names}))"

    def _tag_json(self, calls: TagJson) -> Shape:
        rules, lit = self.rules, self.rules.literal
        kind = lit(calls.before_name[0]) if calls.before_name else ""
        fence = calls.fences[0] if calls.fences else ("", "")
        close = self._closing(calls.close)
        call_id = rules.add("call_id", r"/[A-Za-z0-9_.-]{1,40}/")
        before = f"{call_id} {lit(calls.id_before[0])}" if calls.id_before else ""
        behind = f"{lit(calls.id_mark[0])} {call_id}" if calls.id_mark else ""
        prefix, number = ("functions.", r'":" /[0-9]{1,3}/') if calls.id_pattern else ("", "")
        one = self.choose(
            lambda tool: (
                f"{kind} {before} {lit(prefix + tool.name)} {number} {behind} {lit(calls.name_end[0])} {SPACE} "
                f"{lit(fence[0])} {SPACE} {json_of(tool.parameters)} {SPACE} {lit(fence[1])} {close}"
            )
        )
        shape = self._section(calls.section, calls.section_end, calls.open, one)
        if not calls.begins_open:
            return shape
        begin = f"(?:^|{re.escape(calls.open)})((?:{self.names}){re.escape(calls.name_end[0])})"
        return Shape(shape.behind, shape.behind, (Trigger(begin, TriggerKind.PATTERN),))

    def tagged(self, calls: Tagged) -> Callable[[Tool], str]:
        """Writes a call behind its opening mark."""
        rules, lit = self.rules, self.rules.literal

        def call(tool: Tool) -> str:
            members = Schema(tool.parameters, tool.parameters).members
            tag_end = lit(calls.tag_end)
            if calls.tag_end == "<|sep|>":
                tag_end = '(" index=\\"" /[0-9]{1,3}/ "\\"")? ' + tag_end
            has_any = members.by_name or members.is_open
            name = tool.name + (calls.name_end if has_any or calls.name_end != "\n" else "")
            items = {key: self._argument(calls, key, one) for key, one in members.by_name.items()}
            inside = rules.members(items, members.required, SPACE, leads=True)
            if members.is_open:
                inside = f"({SPACE} {self._argument(calls, '', UNKNOWN)})*"
            return f"{lit(name)} {tag_end} {inside} {SPACE} {lit(calls.close)}"

        return call

    def _argument(self, calls: Tagged, key: str, schema: Schema) -> str:
        """An argument between its marks; one of any name without ``key``."""
        rules, lit = self.rules, self.rules.literal
        name = lit(calls.key + key + calls.key_end) if key else f"{lit(calls.key)} {_ANY_NAME} {lit(calls.key_end)}"
        before = f"{SPACE} {lit(calls.value)}" if calls.value else ""
        edge = '"\\n"' if calls.trims else ""
        types = schema.types
        may_be_text = not types or "string" in types
        texts = self._texts(calls, schema)
        ways = []
        if may_be_text:
            ways.append(f"{self._attributes(calls, is_text=True)} {before} {edge} {self._text(calls, schema, texts)}")
        if types - {"string"} and (calls.tag_end or not may_be_text):
            attributes = self._attributes(calls, is_text=False)
            ways.append(f"{attributes} {before} {edge} {rules.json(schema)} {edge} {lit(calls.value_end)}")
        return f"{name} ({' | '.join(ways)})"

    def _attributes(self, calls: Tagged, *, is_text: bool) -> str:
        """What stands between the quote of a name and the end of its tag, where there may be something."""
        lit = self.rules.literal
        if not calls.tag_end:
            return ""
        if calls.tag_end == "<|sep|>":
            kinds = "/[a-z]{1,10}/" if is_text else "/array|boolean|integer|null|number|object/"
            return f"{lit(' type=' + _QUOTE)} {kinds} {lit(_QUOTE)} {lit(calls.tag_end)}"
        return f"{lit(f' string={_QUOTE}{str(is_text).lower()}{_QUOTE}')} {lit(calls.tag_end)}"

    def _texts(self, calls: Tagged, schema: Schema) -> Sequence[str] | None:
        """The texts that may be; None if they are not listed. Without attributes they may stand for other values."""
        values = schema.values
        if values is None:
            return None
        others = [] if calls.tag_end else [json.dumps(one) for one in values if not isinstance(one, str)]
        return [*(one for one in values if isinstance(one, str)), *others]

    def _text(self, calls: Tagged, schema: Schema, texts: Sequence[str] | None) -> str:
        """Text and the mark that ends it; one of ``texts`` if they are listed."""
        rules, lit = self.rules, self.rules.literal
        end = lit(calls.value_end)
        if texts is not None:
            return f"({' | '.join(map(lit, texts))}) {lit(_LINE_END) if calls.trims else ''} {end}"
        held = text_terminals(schema) if schema.is_a("string") else []
        if not calls.cdata:
            return rules.until((_LINE_END if held and calls.trims else "") + calls.value_end, held)
        plain = rules.until(calls.value_end, [*held, not_with(CDATA)])
        return f"({lit(CDATA)} {rules.until(CDATA_END, held)} {end} | {plain})"

    def _python_calls(self, calls: PythonCalls) -> Shape:
        rules, lit = self.rules, self.rules.literal
        values = PythonValues(rules)

        def call(tool: Tool) -> str:
            members = Schema(tool.parameters, tool.parameters).members
            items = {
                key: f"{lit(key + '=')} {values.value(one)}" for key, one in members.by_name.items() if can_be_key(key)
            }
            inside = rules.members(items, members.required, COMMA)
            if members.is_open:
                argument = f'/[A-Za-z_][A-Za-z0-9_]{{0,63}}/ "=" {values.value(UNKNOWN)}'
                inside = rules.items(rules.add("argument", argument), COMMA, (0, -1))
            return f'{lit(tool.name)} "(" {inside} ")"'

        end = lit(next(iter(calls.after), ""))
        behind = f'{SPACE} "[" {self.again(self.choose(call), COMMA)} "]" {end}'
        before = next(iter(calls.before), "")
        if not calls.bare:
            return self._marked(before, behind)
        begin = Trigger(rf"^\s*(\[(?:{self.names})\()", TriggerKind.PATTERN)
        return Shape(behind, behind, (*((Trigger(before),) if before else ()), begin))

    def _gemma_calls(self) -> Shape:
        rules, lit = self.rules, self.rules.literal
        values = GemmaValues(rules)
        one = self.choose(
            lambda tool: f"{lit('call:' + tool.name)} {values.arguments(Schema(tool.parameters, tool.parameters))}"
        )
        return self._marked(OPEN, self.again(f"{one} {lit(CLOSE)}", lit(OPEN)))

    def _minimax_calls(self) -> Shape:
        values = ElementValues(self.rules)

        def call(tool: Tool) -> str:
            inside = values.arguments(Schema(tool.parameters, tool.parameters))
            return f"{values.tag(f'{INVOKE}{tool.name}{_QUOTE}>')} {inside} {SPACE} {values.tag(INVOKE_END)}"

        behind = f"{SPACE} {self.again(self.choose(call), SPACE)} {SPACE} {values.tag(MINIMAX_CLOSE)}"
        return self._marked(MINIMAX_OPEN, behind)


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
