"""Owns grammars of arguments that are not written as JSON: Gemma's objects, MiniMax's elements."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from corral.chat.formats.gemma import QUOTE
from corral.chat.formats.minimax import ITEM, MARK, TAG
from corral.chat.formats.rules import SPACE, Rules
from corral.chat.formats.texts import text_terminals
from corral.chat.schema import Schema

COMMA = '"," " "?'


class Values(ABC):
    """Rules of values by their schemas. A schema that leads to itself does so by a reference, which has one rule."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._made: dict[str, str] = {}

    def value(self, schema: Schema) -> str:
        """The rule of a value."""
        key = json.dumps(schema.node, sort_keys=True)
        if key not in self._made:
            name = self._made[key] = self.rules.reserve("value")
            self.rules.fill(name, self._terms(schema))
        return self._made[key]

    def _terms(self, schema: Schema) -> str:
        if (values := schema.values) is not None:
            return " | ".join(map(self.constant, values))
        types = schema.types
        if types == {"string"}:
            return self.text(schema)
        if types == {"array"}:
            return self.array(schema)
        if types == {"object"} and not schema.members.is_open:
            return self.object(schema)
        return self.other(schema)

    @abstractmethod
    def constant(self, value: object) -> str: ...

    @abstractmethod
    def text(self, schema: Schema) -> str: ...

    def array(self, schema: Schema) -> str:
        return f'"[" {self.rules.items(self.value(schema.items), COMMA, schema.n_items)} "]"'

    @abstractmethod
    def object(self, schema: Schema) -> str:
        """An object of which something is known."""

    @abstractmethod
    def other(self, schema: Schema) -> str:
        """A number and the like, any object, a value of several types or of any."""


class GemmaValues(Values):
    """JSON without quotes around names, and with marks around text."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._text = rules.add("text", self._between_quotes())
        self._any = rules.reserve("anything")
        pair = rules.add("pair", rf'/[^\s:{{}}\[\],"<]{{1,64}}/ ":" {self._any}')
        self._any_object = rules.add("dict", f'"{{" {rules.items(pair, COMMA, (0, -1))} "}}"')
        array = rules.add("list", f'"[" {rules.items(self._any, COMMA, (0, -1))} "]"')
        scalar = rules.json(Schema({"type": ["number", "boolean", "null"]}, {}))
        rules.fill(self._any, f"{self._text} | {self._any_object} | {array} | {scalar}")

    def arguments(self, schema: Schema) -> str:
        return self._any_object if schema.members.is_open else self.object(schema)

    def _between_quotes(self, held: Sequence[str] = ()) -> str:
        return f"{self.rules.literal(QUOTE)} {self.rules.until(QUOTE, held)}"

    def constant(self, value: object) -> str:
        return self.rules.literal(_gemma(value))

    def text(self, schema: Schema) -> str:
        return self._between_quotes(held) if (held := text_terminals(schema)) else self._text

    def object(self, schema: Schema) -> str:
        members = schema.members
        items = {name: f"{self.rules.literal(f'{name}:')} {self.value(one)}" for name, one in members.by_name.items()}
        return f'"{{" {self.rules.members(items, members.required, COMMA)} "}}"'

    def other(self, schema: Schema) -> str:
        types = schema.types
        if not types:
            return self._any
        if len(types) == 1:
            return self._any_object if types == {"object"} else self.rules.json(schema)
        return " | ".join(map(self.value, schema.alternatives or _by_type(schema)))


class PythonValues(Values):
    """Python's literals, and JSON's."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._quoted = rules.add("quoted", r"/'[^'\\\n]*'/")
        self._any = rules.reserve("anything")
        text = f"({self._quoted} | {rules.json(Schema({'type': 'string'}, {}))})"
        pair = rules.add("pair", f'{text} ":" " "? {self._any}')
        array = f'"[" {rules.items(self._any, COMMA, (0, -1))} "]"'
        self._any_object = rules.add("dict", f'"{{" {rules.items(pair, COMMA, (0, -1))} "}}"')
        words = '"True" | "False" | "None"'
        rules.fill(self._any, f"{text} | {self._any_object} | {array} | {words} | {rules.json(Schema({}, {}))}")

    def constant(self, value: object) -> str:
        lit = self.rules.literal
        return f"{lit(json.dumps(value, ensure_ascii=False))} | {lit(repr(value))}"

    def text(self, schema: Schema) -> str:
        return f"{self.rules.json(schema)} | {self._quoted}" if schema.is_any_text else self.rules.json(schema)

    def object(self, schema: Schema) -> str:
        members = schema.members
        items = {name: f'({self.constant(name)}) ":" " "? {self.value(one)}' for name, one in members.by_name.items()}
        return f'"{{" {self.rules.members(items, members.required, COMMA)} "}}"'

    def other(self, schema: Schema) -> str:
        types = schema.types
        if not types or types == {"object"}:
            return self._any if not types else self._any_object
        if len(types) > 1:
            return " | ".join(map(self.value, schema.alternatives or _by_type(schema)))
        words = {"boolean": ' | "True" | "False"', "null": ' | "None"'}
        return self.rules.json(schema) + words.get("".join(types), "")


class ElementValues(Values):
    """MiniMax's elements. A value goes up to the mark of the tag behind it, which is part of it."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._text = rules.add("text", rules.until(MARK))
        self._mark = rules.literal(MARK)

    def arguments(self, schema: Schema) -> str:
        """The elements of an object that must come, and may."""
        members, lit = schema.members, self.rules.literal
        if members.is_open:
            tag = r"/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"
            return f'({SPACE} {self.tag(TAG)} {tag} ">" {self._text} {lit("</")} {tag} ">")*'
        items = {name: self._element(name, one) for name, one in members.by_name.items()}
        return self.rules.members(items, members.required, SPACE, leads=True)

    def tag(self, text: str) -> str:
        """A tag behind its mark. The mark is a term of its own: what comes behind it tells tags apart."""
        return f"{self._mark} {self.rules.literal(text.removeprefix(MARK))}"

    def _element(self, tag: str, schema: Schema) -> str:
        return f"{self.tag(f'{TAG}{tag}>')} {self.value(schema)} {self.rules.literal(f'</{tag}>')}"

    def constant(self, value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return f"{self.rules.literal(text)} {self._mark}"

    def text(self, schema: Schema) -> str:
        return self.rules.until(MARK, held) if (held := text_terminals(schema)) else self._text

    def array(self, schema: Schema) -> str:
        item = self.rules.add("item", self._element(ITEM, schema.items))
        return f"{self.rules.items(item, SPACE, schema.n_items, leads=True)} {SPACE} {self._mark}"

    def object(self, schema: Schema) -> str:
        return f"{self.arguments(schema)} {SPACE} {self._mark}"

    def other(self, schema: Schema) -> str:
        types = schema.types
        if not types or "string" in types:
            return self._text
        return f"{self.rules.json(schema)} {self._mark}"


def _by_type(schema: Schema) -> Iterable[Schema]:
    node = schema.node if isinstance(schema.node, dict) else {}
    return (Schema({**node, "type": kind}, schema.root) for kind in sorted(schema.types))


def _gemma(value: object) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return json.dumps(value)
