"""Calls with the name between marks and the arguments as JSON behind it.

[TOOL_CALLS]add[ARGS]{"a": 1}
<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
<function=add>{"a": 1}</function>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Sink
from corral.chat.formats.base import is_name, read_section
from corral.chat.tools import Tools


@dataclass(frozen=True, slots=True)
class TagJson:
    """In order: ``section``, then for each call ``open``, name, ``name_end``, arguments, ``close``; ``section_end``.

    ``section`` may be missing in what a model writes. ``before_name`` and ``fences`` (around the arguments) are stepped
    over if they are there. ``id_mark``: the name ends with it, and an id comes before ``name_end``. ``id_before``: an
    id comes before the name and ends with it. ``id_pattern`` with groups ``name`` and ``id``: how both stand in one
    word. ``only_known``: other names make it plain text. ``begins_open``: prompts end with ``open``.
    """

    open: str
    name_end: tuple[str, ...]
    close: tuple[str, ...] = ()
    section: tuple[str, ...] = ()
    section_end: tuple[str, ...] = ()
    before_name: tuple[str, ...] = ()
    fences: tuple[tuple[str, str], ...] = ()
    id_mark: tuple[str, ...] = ()
    id_before: tuple[str, ...] = ()
    id_pattern: str = ""
    only_known: bool = False
    begins_open: bool = False

    bare = ""

    @property
    def opens(self) -> tuple[str, ...]:
        return (*self.section, self.open)

    def read(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        return read_section(
            cursor, partial(self._one, cursor, sink, tools), self.section, self.section_end, has_one=not self.open
        )

    def _one(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        """One call. False: there is none, and nothing was told."""
        if self.open and not (yield from cursor.accept(self.open)):
            return False
        yield from cursor.accept(*self.before_name)
        first_id = (yield from cursor.word(self.id_before)) if self.id_before else ""
        yield from cursor.accept(*self.id_before)
        word = yield from cursor.word((*self.id_mark, *self.name_end))
        name, call_id = self._split((word or "").strip(), (first_id or "").strip())
        if not is_name(name) or (self.only_known and name not in tools.by_name):
            return False
        if (yield from cursor.accept(*self.id_mark)):
            call_id = ((yield from cursor.word(self.name_end)) or "").strip()
        if not (yield from cursor.accept(*self.name_end)):
            return False
        return (yield from self._arguments(name, call_id, cursor, sink))

    def _split(self, word: str, call_id: str) -> tuple[str, str]:
        match = re.fullmatch(self.id_pattern, word) if self.id_pattern else None
        return (match["name"], match["id"]) if match else (word, call_id)

    def _arguments(self, name: str, call_id: str, cursor: Cursor, sink: Sink) -> Steps[bool]:
        yield from cursor.space()
        fence = yield from cursor.accept(*(start for start, _ in self.fences))
        yield from cursor.space()
        first = yield from cursor.peek()
        has_none = first != "{" and bool((yield from self._is_closed(cursor)))
        if first != "{" and not has_none:
            return False
        cursor.commit()
        sink.call(name, call_id)
        if has_none:
            sink.arguments("{}")
        else:
            yield from cursor.json_value(sink.arguments)
        yield from cursor.step_over(dict(self.fences).get(fence, ""))
        yield from cursor.step_over(*self.close)
        return True

    def _is_closed(self, cursor: Cursor) -> Steps[bool]:
        for close in self.close:
            if (yield from cursor.starts(close)):
                return True
        return False
