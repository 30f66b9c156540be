"""Calls with the name and each argument between marks.

<tool_call>
<function=add>
<parameter=a>
1
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import partial

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Sink
from corral.chat.formats.base import is_name, read_section
from corral.chat.schema import UNKNOWN, Schema
from corral.chat.tools import Tools

CDATA, CDATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True, slots=True)
class Tagged:
    """In order: ``section``; for each call ``open``, name, ``name_end``; for each argument ``key``, its name,
    ``key_end``, its value, ``value_end``; then ``close`` and ``section_end``.

    Missing sections and ends are forgiven. ``tag_end``: names end with a quote, attributes may come before this mark.
    ``value``: a mark before the value. ``trims``: one newline at both ends of a value is not part of it. ``cdata``: a
    value may stand in <![CDATA[ ]]>.
    """

    open: str
    name_end: str
    key: str
    key_end: str
    value_end: str
    close: str
    section: tuple[str, ...] = ()
    section_end: tuple[str, ...] = ()
    tag_end: str = ""
    value: str = ""
    trims: bool = False
    cdata: bool = False

    bare = ""

    @property
    def opens(self) -> tuple[str, ...]:
        return (*self.section, self.open)

    @property
    def marks(self) -> tuple[str, ...]:
        """All of them, and what tags begin with, which may be a control token of its own."""
        tags = (self.open, self.key)
        heads = tuple(tag.partition(" ")[0] for tag in tags)
        return (*self.section, *tags, *heads, self.value_end, self.close, *self.section_end)

    def read(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        return read_section(cursor, partial(self._one, cursor, sink, tools), self.section, self.section_end)

    def _one(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        """One call. False: there is none, and nothing was told."""
        if not (yield from cursor.accept(self.open)):
            return False
        name = ((yield from cursor.word((self.name_end, self.key, self.close))) or "").strip()
        if not is_name(name):
            return False
        yield from cursor.accept(self.name_end)
        if self.tag_end and ((yield from self._attributes(cursor)) is None):
            return False
        cursor.commit()
        sink.call(name)
        sink.arguments("{")
        if (yield from self._arguments(name, cursor, sink, tools)):
            sink.arguments("}")
        yield from cursor.step_over(self.close)
        return True

    def _attributes(self, cursor: Cursor) -> Steps[str | None]:
        """What stands before ``tag_end``, which is stepped over; None if it does not come."""
        attributes = yield from cursor.word((self.tag_end,))
        yield from cursor.accept(self.tag_end)
        return attributes

    def _arguments(self, name: str, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        """All arguments as members of an object. False: the text ended within one."""
        known = tools.schema(name).members.by_name
        comma = ""
        while True:
            cursor.begin()
            yield from cursor.space()
            key = (yield from cursor.word((self.key_end,))) if (yield from cursor.accept(self.key)) else None
            if key is None:
                cursor.undo()
                return True
            yield from cursor.accept(self.key_end)
            attributes = (yield from self._attributes(cursor)) if self.tag_end else ""
            cursor.commit()
            sink.arguments(f"{comma}{json.dumps(key.strip(), ensure_ascii=False)}: ")
            comma = ", "
            schema = known.get(key.strip(), UNKNOWN)
            if not (yield from self._value(schema, attributes or "", cursor, sink)):
                return False

    def _value(self, schema: Schema, attributes: str, cursor: Cursor, sink: Sink) -> Steps[bool]:
        if self.value:
            yield from cursor.step_over(self.value)
        ends: tuple[str, ...] = (self.value_end,)
        if self.cdata and (yield from cursor.accept(CDATA)):
            ends = (CDATA_END + self.value_end, CDATA_END)
        elif self.trims:
            yield from cursor.accept("\n")
            ends = ("\n" + self.value_end, self.value_end)
        if schema.is_a("string") or 'string="true"' in attributes or 'type="string"' in attributes:
            return (yield from string_value(ends, cursor, sink))
        parts: list[str] = []
        end = yield from cursor.until(ends, parts.append)
        sink.arguments(json_or_string("".join(parts), schema))
        yield from cursor.accept(end)
        return bool(end)


def string_value(ends: tuple[str, ...], cursor: Cursor, sink: Sink) -> Steps[bool]:
    """Text up to one of ``ends`` as a JSON string, told as it comes. False: no end came."""
    sink.arguments('"')
    end = yield from cursor.until(ends, lambda text: sink.arguments(json.dumps(text, ensure_ascii=False)[1:-1]))
    if end:
        sink.arguments('"')
    yield from cursor.accept(end)
    return bool(end)


def json_or_string(text: str, schema: Schema | None = None) -> str:
    """``text`` if it is a JSON value that ``schema`` allows; else what Python means by it, unless it may be text; else
    a JSON string of it."""
    stripped = text.strip()
    types = schema.types if schema else frozenset()
    try:
        value = json.loads(stripped, parse_constant=_refuse)
        if schema is None or "string" not in types or schema.allows(value):
            return stripped
    except (ValueError, RecursionError):
        pass
    if schema is None or (types and "string" not in types):
        try:
            return json.dumps(_plain(ast.parse(stripped, mode="eval").body), ensure_ascii=False, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _plain(node: ast.expr) -> object:
    """The value of a Python literal, in which JSON's words may stand, too. Raises ValueError if it is none."""
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.Name(id="true" | "false" | "null" as word):
            return {"true": True, "false": False, "null": None}[word]
        case ast.List(elts) | ast.Tuple(elts):
            return [_plain(one) for one in elts]
        case ast.Dict(keys, values) if None not in keys:
            return {str(_plain(key)): _plain(one) for key, one in zip(keys, values, strict=True) if key}
        case ast.UnaryOp(ast.USub(), ast.Constant(value=int() | float() as number)):
            return -number
    raise ValueError(ast.dump(node))


def _refuse(constant: str) -> None:
    """NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(constant)
