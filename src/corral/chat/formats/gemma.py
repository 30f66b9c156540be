"""Gemma 4's calls: an object without quotes around keys, strings between marks of their own.

<|tool_call>call:add{a:1,s:<|"|>x<|"|>,l:[1,2]}<tool_call|>
"""

from __future__ import annotations

import json

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Sink
from corral.chat.formats.tagged import json_or_string, string_value
from corral.chat.tools import MAX_DEPTH, Tools

QUOTE = '<|"|>'
OPEN, CLOSE = "<|tool_call>", "<tool_call|>"


class GemmaCalls:
    """Arguments become JSON as they come."""

    opens = (OPEN,)
    bare = ""

    def read(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        yield from cursor.accept(OPEN)
        yield from cursor.space()
        if not (yield from cursor.accept("call:")):
            return False
        name = ((yield from cursor.word(("{",))) or "").strip()
        if not name:
            return False
        cursor.commit()
        sink.call(name)
        yield from _value(cursor, sink, MAX_DEPTH)
        yield from cursor.step_over(CLOSE)
        return True


def _value(cursor: Cursor, sink: Sink, depth_left: int) -> Steps[bool]:
    """One value. False: it is broken or the text ended in it."""
    yield from cursor.space()
    if (yield from cursor.accept(QUOTE)):
        return (yield from string_value((QUOTE,), cursor, sink))
    if depth_left and (yield from cursor.accept("{")):
        return (yield from _members("}", cursor, sink, depth_left))
    if depth_left and (yield from cursor.accept("[")):
        return (yield from _members("]", cursor, sink, depth_left))
    parts: list[str] = []
    end = yield from cursor.until((",", "}", "]", CLOSE), parts.append)
    sink.arguments(json_or_string("".join(parts)))
    return bool(end)


def _members(close: str, cursor: Cursor, sink: Sink, depth_left: int) -> Steps[bool]:
    sink.arguments("{" if close == "}" else "[")
    comma = ""
    while True:
        yield from cursor.space()
        yield from cursor.accept(",")
        yield from cursor.space()
        if (yield from cursor.accept(close)):
            sink.arguments(close)
            return True
        at_end = not (yield from cursor.peek())
        if at_end or (yield from cursor.starts(CLOSE)):
            return False
        sink.arguments(comma)
        comma = ", "
        if close == "}" and not (yield from _key(cursor, sink)):
            return False
        if not (yield from _value(cursor, sink, depth_left - 1)):
            return False


def _key(cursor: Cursor, sink: Sink) -> Steps[bool]:
    quote = yield from cursor.accept(QUOTE, '"')
    word = yield from cursor.word((":",))
    if word is None:
        return False
    yield from cursor.accept(":")
    sink.arguments(f"{json.dumps(word.strip().removesuffix(quote), ensure_ascii=False)}: ")
    return True
