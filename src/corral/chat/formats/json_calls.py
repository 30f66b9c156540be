"""Calls as JSON objects between marks, one by one or in an array.

<tool_call>
{"name": "add", "arguments": {"a": 1}}
</tool_call>
[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]
"""

from __future__ import annotations

from dataclasses import dataclass, field

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Sink
from corral.chat.tools import Tools

ARGUMENTS = ("arguments", "parameters")


@dataclass(slots=True)
class _Call:
    """An object on its way: what is known of the call, and arguments that wait for the name or id."""

    name: str = ""
    id: str = ""
    held: list[str] = field(default_factory=list)
    depth: int = 1
    has_arguments: bool = False
    is_told: bool = False
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """``before``/``after``: marks of a section; ``name``, ``arguments``, ``id``: keys, "" for none.

    ``is_array``: a model writes all its calls into one array (a reader takes both forms). ``name_is_key``: each object
    has one member, {"add": {"a": 1}}. ``bare``: as in ``CallFormat``; such calls must name a known tool.
    """

    before: tuple[str, ...] = ("<tool_call>",)
    after: tuple[str, ...] = ("</tool_call>",)
    name: str = "name"
    arguments: str = "arguments"
    id: str = ""
    is_array: bool = False
    name_is_key: bool = False
    bare: str = ""

    @property
    def opens(self) -> tuple[str, ...]:
        return self.before

    def read(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        yield from cursor.accept(*self.before)
        yield from cursor.space()
        fence = yield from cursor.accept("```json", "```")
        yield from cursor.space()
        if (yield from cursor.accept("[")):
            done = yield from self._array(cursor, sink, tools)
        else:
            done = yield from self._object(cursor, sink, tools)
        if done:
            yield from cursor.step_over("```" if fence else "")
            yield from cursor.step_over(*self.after)
        return done

    def _array(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        yield from cursor.space()
        if not (yield from self._object(cursor, sink, tools)):
            return False
        while True:
            cursor.begin()
            yield from cursor.space()
            comma = yield from cursor.accept(",")
            yield from cursor.space()
            if comma and (yield from self._object(cursor, sink, tools)):
                continue
            if not comma and (yield from cursor.accept("]")):
                cursor.commit()
            else:
                cursor.undo()
            return True

    def _object(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        if not (yield from cursor.accept("{")):
            return False
        call = _Call()
        while call.depth and not call.is_broken:
            yield from self._member(cursor, sink, tools, call)
        if call.is_told:
            return True
        if call.is_broken or not self._is_known(call, tools):
            return False
        self._tell(cursor, sink, call)
        sink.arguments("".join(call.held) or "{}")
        return True

    def _member(self, cursor: Cursor, sink: Sink, tools: Tools, call: _Call) -> Steps[None]:
        """One member of the object, or its end. What is broken after the call was told is not part of it."""
        if call.is_told:
            cursor.begin()
        yield from cursor.space()
        yield from cursor.accept(",")
        yield from cursor.space()
        if (yield from cursor.accept("}")):
            call.depth -= 1
        else:
            key = yield from cursor.json_string()
            yield from cursor.space()
            call.is_broken = key is None or not (yield from cursor.accept(":"))
            if key is not None and not call.is_broken:
                yield from cursor.space()
                yield from self._value(key, cursor, sink, tools, call)
        if call.is_told and call.is_broken:
            cursor.undo()
        elif call.is_told:
            cursor.commit()

    def _value(self, key: str, cursor: Cursor, sink: Sink, tools: Tools, call: _Call) -> Steps[None]:
        is_name_key = self.name_is_key and not call.name
        if is_name_key:
            call.name = key
        first = yield from cursor.peek()
        if is_name_key or (key in (self.arguments, *ARGUMENTS) and not call.has_arguments):
            yield from self._arguments(first, cursor, sink, tools, call)
        elif key == "function" and first == "{":
            yield from cursor.accept("{")  # OpenAI's wrapper: its members are read as ours
            call.depth += 1
        elif first == '"':
            text = yield from cursor.json_string()
            call.is_broken = text is None
            self._note(key, text or "", call)
        else:
            parts: list[str] = []
            call.is_broken = not (yield from cursor.json_value(parts.append))
            self._note(key, "".join(parts), call)

    def _note(self, key: str, text: str, call: _Call) -> None:
        if key == self.name or (key in ("name", "function") and not call.name):
            call.name = text
        elif key == self.id:
            call.id = text

    def _arguments(self, first: str, cursor: Cursor, sink: Sink, tools: Tools, call: _Call) -> Steps[None]:
        """The arguments: told as they come, or held until name and id are known."""
        call.has_arguments = True
        if first == "{" and self._is_known(call, tools) and (call.id or not self.id):
            self._tell(cursor, sink, call)
            call.is_broken = not (yield from cursor.json_value(sink.arguments))
            cursor.begin()
        elif first == '"':
            text = yield from cursor.json_string()
            call.held.append(text or "")
            call.is_broken = text is None
        else:
            call.is_broken = not (yield from cursor.json_value(call.held.append))
            if "".join(call.held) == "null":
                call.held.clear()

    def _is_known(self, call: _Call, tools: Tools) -> bool:
        return bool(call.name) and (not self.bare or call.name in tools.by_name)

    def _tell(self, cursor: Cursor, sink: Sink, call: _Call) -> None:
        cursor.commit()
        sink.call(call.name, call.id)
        call.is_told = True
