"""Calls written as a Python list: LFM2's, Llama 4's.

<|tool_call_start|>[add(a=1, s="x"), now()]<|tool_call_end|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Sink
from corral.chat.formats.tagged import json_or_string
from corral.chat.tools import Tools

_NAME = re.compile(r"[\w.-]+")
_OPENING, _CLOSING = "([{", ")]}"
_AROUND_KEYS = "=(),\n"


def can_be_key(name: str) -> bool:
    """Whether an argument of this name can be written and read: more than Python's identifiers, as tools have them."""
    return bool(name) and name == name.strip() and not set(name) & set(_AROUND_KEYS)


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """``before``/``after``: marks around the list. Arguments are told one by one."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    bare: str = ""

    @property
    def opens(self) -> tuple[str, ...]:
        return self.before

    def read(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        yield from cursor.accept(*self.before)
        yield from cursor.space()
        if not (yield from cursor.accept("[")) or not (yield from self._one(cursor, sink, tools)):
            return False
        while True:
            cursor.begin()
            yield from cursor.space()
            comma = yield from cursor.accept(",")
            if not comma or not (yield from self._one(cursor, sink, tools)):
                break
        cursor.undo()
        yield from cursor.step_over("]")
        yield from cursor.step_over(*self.after)
        return True

    def _one(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        yield from cursor.space()
        name = ((yield from cursor.word(("(",))) or "").strip()
        if name not in tools.by_name and (self.bare or not _NAME.fullmatch(name)):
            return False
        yield from cursor.accept("(")
        cursor.commit()
        sink.call(name)
        sink.arguments("{")
        if (yield from self._arguments(tools.schema(name).members.by_name, cursor, sink)):
            sink.arguments("}")
        yield from cursor.step_over(")")
        return True

    def _arguments(self, known: Collection[str], cursor: Cursor, sink: Sink) -> Steps[bool]:
        comma = ""
        while True:
            cursor.begin()
            yield from cursor.space()
            yield from cursor.accept(",")
            yield from cursor.space()
            name = ((yield from cursor.word(("=", ")"))) or "").strip()
            if not (name.isidentifier() or name in known) or not (yield from cursor.accept("=")):
                cursor.undo()
                return True
            cursor.commit()
            sink.arguments(f"{comma}{json.dumps(name, ensure_ascii=False)}: ")
            comma = ", "
            parts: list[str] = []
            if not (yield from _literal(cursor, parts)):
                sink.arguments("".join(parts))
                return False
            sink.arguments(json_or_string("".join(parts)))


def _literal(cursor: Cursor, parts: list[str]) -> Steps[bool]:
    """A value, up to the comma or bracket behind it. False: the text ended before."""
    depth = 0
    while char := (yield from cursor.peek()):
        if depth == 0 and char in ",)":
            return True
        yield from cursor.take()
        parts.append(char)
        if char in "\"'":
            if not (yield from _string(char, cursor, parts)):
                return False
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
    return False


def _string(quote: str, cursor: Cursor, parts: list[str]) -> Steps[bool]:
    while mark := (yield from cursor.until((quote, "\\"), parts.append)):
        yield from cursor.accept(mark)
        parts.append(mark)
        if mark == quote:
            return True
        parts.append((yield from cursor.take()))
    return False
