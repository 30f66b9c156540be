"""MiniMax-M3's calls: elements named like the arguments, nested for objects and lists, each tag behind a mark.

]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="add">]<]minimax[>[<a>1]<]minimax[>[</a>]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>
"""

from __future__ import annotations

import json
from functools import partial

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Sink
from corral.chat.formats.base import read_section
from corral.chat.formats.tagged import json_or_string, string_value
from corral.chat.schema import UNKNOWN, Schema
from corral.chat.tools import MAX_DEPTH, Tools

MARK = "]<]minimax[>["
OPEN, CLOSE = f"{MARK}<tool_call>", f"{MARK}</tool_call>"
INVOKE, INVOKE_END = f'{MARK}<invoke name="', f"{MARK}</invoke>"
TAG, TAG_END = f"{MARK}<", f"{MARK}</"
ITEM = "item"


class MinimaxCalls:
    """Arguments become JSON as they come; their schema says which are text."""

    opens = (OPEN,)
    bare = ""

    def read(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        return read_section(cursor, partial(self._one, cursor, sink, tools), (OPEN,), (CLOSE,))

    def _one(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        if not (yield from cursor.accept(INVOKE)):
            return False
        name = ((yield from cursor.word(('">',))) or "").strip()
        if not name:
            return False
        yield from cursor.accept('">')
        cursor.commit()
        sink.call(name)
        yield from _elements(INVOKE_END, tools.schema(name), cursor, sink, MAX_DEPTH, is_list=False)
        return True


def _elements(close: str, schema: Schema, cursor: Cursor, sink: Sink, depth_left: int, *, is_list: bool) -> Steps[bool]:
    """The elements before ``close`` as an object or a list. False: the text is broken or ended."""
    sink.arguments("[" if is_list else "{")
    known = {} if is_list else schema.members.by_name
    comma = ""
    while True:
        yield from cursor.space()
        if (yield from cursor.accept(close)):
            sink.arguments("]" if is_list else "}")
            return True
        if (yield from cursor.starts(TAG_END)) or not (yield from cursor.accept(TAG)):
            return False
        tag = yield from cursor.word((">",))
        if not tag:
            return False
        yield from cursor.accept(">")
        sink.arguments(comma if is_list else f"{comma}{json.dumps(tag, ensure_ascii=False)}: ")
        comma = ", "
        child = schema.items if is_list else known.get(tag, UNKNOWN)
        if not (yield from _value(f"{TAG_END}{tag}>", child, cursor, sink, depth_left - 1)):
            return False


def _value(close: str, schema: Schema, cursor: Cursor, sink: Sink, depth_left: int) -> Steps[bool]:
    if schema.is_a("string") or not depth_left:
        return (yield from string_value((close,), cursor, sink))
    cursor.begin()
    yield from cursor.space()
    is_closing = yield from cursor.starts(TAG_END)
    is_nested = not is_closing and (yield from cursor.starts(TAG))
    is_list = schema.types == {"array"} or (yield from cursor.starts(f"{TAG}{ITEM}>"))
    if is_nested or (is_closing and schema.types <= {"array", "object"} and schema.types):
        cursor.commit()
        return (yield from _elements(close, schema, cursor, sink, depth_left, is_list=is_list))
    cursor.undo()
    parts: list[str] = []
    end = yield from cursor.until((close,), parts.append)
    sink.arguments(json_or_string("".join(parts), schema))
    yield from cursor.accept(end)
    return bool(end)
