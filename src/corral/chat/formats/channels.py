"""Replies in messages with a head that says to whom they go: gpt-oss (Harmony), Muse Glimmer.

<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello
<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>
 to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hello<|eot|>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import NewId, Sink
from corral.chat.formats.base import Expect, Thinking, random_id
from corral.chat.formats.tagged import Tagged

MESSAGE = "<|message|>"
_MAX_HEAD = 400


@dataclass(frozen=True, slots=True)
class Head:
    """What a message is: thoughts, a call of ``name``, else text."""

    is_thought: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class ChannelFormat:
    """``begins``: what a head begins with. ``ends``: what ends a message. ``read_head`` tells the kind of a message.

    ``calls``: how calls are written inside messages, where the head does not name the function.
    """

    name: str
    thinking: Thinking
    begins: tuple[str, ...]
    ends: tuple[str, ...]
    read_head: Callable[[str], Head]
    opener: str
    calls: Tagged | None = None
    new_id: NewId = random_id
    other_openers: tuple[str, ...] = ()

    reopener = "<|start|>assistant"

    def is_plain(self, expect: Expect) -> bool:
        return False

    @property
    def marks(self) -> tuple[str, ...]:
        return (
            MESSAGE,
            "<|start|>",
            "<|channel|>",
            "<|constrain|>",
            *self.ends,
            *(self.calls.marks if self.calls else ()),
        )

    def program(self, cursor: Cursor, sink: Sink, expect: Expect) -> Steps[None]:
        if expect.is_thinking:
            yield from self._body("", Head(is_thought=True), cursor, sink, expect)
        elif expect.is_text:
            yield from self._body("", Head(), cursor, sink, expect)
        while (yield from cursor.peek()):
            head = yield from self._head(cursor)
            if head is None:  # not the format: text, up to what may be a head again
                sink.content((yield from cursor.take()))
                yield from self._body("", Head(), cursor, sink, expect)
            else:
                yield from self._body(head, self.read_head(head), cursor, sink, expect)

    def _head(self, cursor: Cursor) -> Steps[str | None]:
        """A head with its mark, stepped over; None if none comes here."""
        for begin in self.begins:
            if (yield from cursor.starts(begin)):
                break
        else:
            return None
        cursor.begin()
        word = yield from cursor.word((MESSAGE,), _MAX_HEAD)
        if word is None or not (word.isascii() or "to=functions." in word):
            cursor.undo()
            return None
        yield from cursor.accept(MESSAGE)
        cursor.commit()
        return word + MESSAGE

    def _body(self, text: str, head: Head, cursor: Cursor, sink: Sink, expect: Expect) -> Steps[None]:
        if head.is_thought and not expect.keeps_thoughts:
            sink.border()
            end = yield from cursor.until(self.ends, sink.reasoning)
            yield from cursor.accept(end)
            sink.border()
        elif head.is_thought:
            sink.content(text)
            end = yield from cursor.until(self.ends, sink.content)
            sink.content((yield from cursor.accept(end)))
        elif head.name and expect.reads_calls:
            yield from self._call(head.name, cursor, sink)
        elif head.name:
            sink.content(text)
            yield from self._text(cursor, sink, expect)
        else:
            yield from self._text(cursor, sink, expect)

    def _call(self, name: str, cursor: Cursor, sink: Sink) -> Steps[None]:
        sink.call(name)
        yield from cursor.space()
        if (yield from cursor.starts("{")):
            yield from cursor.json_value(sink.arguments)
            yield from cursor.space()
        end = yield from cursor.until(self.ends, sink.arguments)
        yield from cursor.accept(end)
        sink.border()

    def _text(self, cursor: Cursor, sink: Sink, expect: Expect) -> Steps[None]:
        opens = self.calls.opens if self.calls and expect.reads_calls else ()
        while mark := (yield from cursor.until((*self.ends, *opens), sink.content)):
            if mark in self.ends:
                yield from cursor.accept(mark)
                sink.border()
                return
            assert self.calls
            cursor.begin()
            if (yield from self.calls.read(cursor, sink, expect.tools)):
                cursor.commit()
                sink.border()
            else:
                cursor.undo()
                sink.content((yield from cursor.accept(mark)))


def harmony_head(head: str) -> Head:
    match = re.search(r"to=functions\.([^\s<]+)", head)
    if match:
        return Head(name=match[1])
    return Head(is_thought="<|channel|>analysis" in head or bool(re.search(r"to=(?!assistant|user)\S", head)))


def muse_head(head: str) -> Head:
    return Head(is_thought="to=self" in head)
