"""What all formats share: the protocol, the state of one reply, and the loop over thoughts, text and calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Delta, NewId, Sink
from corral.chat.tools import Tools
from corral.events import StopReason

_LETTERS = string.ascii_letters + string.digits


def random_id(_index: int, _name: str) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(32))


def short_id(_index: int, _name: str) -> str:
    """Nine letters and digits, as Mistral's templates demand."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def function_id(index: int, name: str) -> str:
    """``functions.NAME:N``, as Kimi writes them."""
    return f"functions.{name}:{index}"


def is_name(text: str) -> bool:
    """Whether a text can be the name of a function: not if it holds what belongs to the format around it."""
    return bool(text) and not set(text) & set('{}"<>')


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around thoughts. After an ``end`` text follows; ``ends_at_calls``: a call may end thoughts, too.

    ``anywhere``: thoughts may come again after text, not only before it.
    """

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    ends_at_calls: bool = False
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class Expect:
    """What a reader should look for. The prompt ends within thoughts (``is_thinking``) or text (``is_text``).

    ``keeps_thoughts``: thoughts stay in the text, marks and all. Without ``reads_calls`` calls do, too. Where thoughts
    may have been ended by force (``is_limited``) a model may go on with them and write an end of its own. With
    ``must_call`` there is no text but that of calls.
    """

    tools: Tools
    reads_calls: bool = True
    keeps_thoughts: bool = False
    is_thinking: bool = False
    is_text: bool = False
    is_limited: bool = False
    must_call: bool = False


class CallFormat(Protocol):
    """How calls are written between or instead of text."""

    @property
    def opens(self) -> tuple[str, ...]:
        """Marks that may begin calls."""
        ...

    @property
    def bare(self) -> str:
        """Characters that may begin a call without any mark, at the head of the text only; "" for none."""
        ...

    def read(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        """Read calls at a mark. False: it was none; the cursor stands anywhere, and nothing was told.

        The place is kept on entry; ``cursor.commit`` comes before the first word to ``sink``.
        """
        ...


def read_section(
    cursor: Cursor,
    one: Callable[[], Steps[bool]],
    section: tuple[str, ...],
    section_end: tuple[str, ...],
    *,
    has_one: bool = False,
) -> Steps[bool]:
    """Calls read by ``one``, one after the other (only the first if ``has_one``), between optional marks.

    False: there is none; see ``CallFormat.read``.
    """
    yield from cursor.accept(*section)
    yield from cursor.space()
    if not (yield from one()):
        return False
    while not has_one:
        cursor.begin()
        yield from cursor.space()
        if not (yield from one()):
            cursor.undo()
            break
    yield from cursor.step_over(*section_end)
    return True


class Format(Protocol):
    """How one family writes its replies."""

    @property
    def name(self) -> str: ...

    @property
    def thinking(self) -> Thinking | None: ...

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks: if they are control tokens the engine must print them."""
        ...

    @property
    def new_id(self) -> NewId: ...

    @property
    def opener(self) -> str:
        """What stands before text in a reply."""
        ...

    @property
    def other_openers(self) -> tuple[str, ...]:
        """What may stand there as well."""
        ...

    @property
    def reopener(self) -> str:
        """What stands before that, behind thoughts."""
        ...

    def is_plain(self, expect: Expect) -> bool:
        """Whether a reply is nothing but its text: then no reader is needed."""
        ...

    def program(self, cursor: Cursor, sink: Sink, expect: Expect) -> Steps[None]: ...


class Reader:
    """One reply as it comes. Total: any text in any pieces gives the same deltas, and no text is lost."""

    def __init__(self, format: Format, expect: Expect, new_id: NewId | None = None) -> None:
        self._cursor = Cursor()
        self._sink = Sink(new_id or format.new_id, lambda: self._cursor.place)
        self._steps = format.program(self._cursor, self._sink, expect)
        self._must_call = expect.must_call
        self._is_done = False
        self._advance()

    @property
    def n_calls(self) -> int:
        return self._sink.n_calls

    def feed(self, text: str) -> list[Delta]:
        self._cursor.feed(text)
        self._advance()
        return self._sink.take()

    @property
    def has_cut_call(self) -> bool:
        """Whether the last call has arguments that are no JSON."""
        return self._sink.is_call_cut

    def finish(self, reason: StopReason = StopReason.EOS) -> list[Delta]:
        """No more comes. If the model did not end by itself, what of a mark or a call is there already is no text."""
        if not self._is_cut_off(reason):
            self._cursor.end()
            self._advance()
        elif self._must_call or self._cursor.is_waiting:
            self._sink.border()
        self._sink.end()
        return self._sink.take()

    def _is_cut_off(self, reason: StopReason) -> bool:
        """Whether what waits is left out. A stop string shows that what may have begun a mark before it is text."""
        cursor = self._cursor
        if reason is StopReason.EOS:
            return False
        if self._must_call or self.n_calls or cursor.is_inside:
            return True
        return reason is not StopReason.WORD and not cursor.is_guess

    def _advance(self) -> None:
        if not self._is_done:
            self._is_done = next(self._steps, self) is self


@dataclass(frozen=True, slots=True)
class TagFormat:
    """Thoughts between marks, then text, then calls that begin with a mark: nearly all families.

    ``noise``: marks around text that are not part of it.
    """

    name: str
    thinking: Thinking | None = None
    calls: CallFormat | None = None
    noise: tuple[str, ...] = ()
    extra_marks: tuple[str, ...] = ()
    new_id: NewId = random_id
    opener: str = ""

    other_openers = ()
    reopener = ""

    def is_plain(self, expect: Expect) -> bool:
        has_thoughts = self.thinking is not None and not expect.keeps_thoughts
        return not (has_thoughts or self.noise or (self.calls and expect.reads_calls))

    @property
    def marks(self) -> tuple[str, ...]:
        thinking = (*self.thinking.starts, *self.thinking.ends) if self.thinking else ()
        return (*thinking, *(self.calls.opens if self.calls else ()), *self.noise, *self.extra_marks)

    def program(self, cursor: Cursor, sink: Sink, expect: Expect) -> Steps[None]:
        calls = self.calls if expect.reads_calls else None
        thinking = None if expect.keeps_thoughts else self.thinking
        if thinking and expect.is_thinking:
            yield from self._think(cursor, sink, thinking, calls)
        if calls and calls.bare:
            yield from self._bare_call(cursor, sink, calls, expect)
        yield from self._text(cursor, sink, expect, thinking, calls)

    def _text(
        self, cursor: Cursor, sink: Sink, expect: Expect, thinking: Thinking | None, calls: CallFormat | None
    ) -> Steps[None]:
        starts = thinking.starts if thinking else ()
        ends = thinking.ends if thinking else ()
        opens = calls.opens if calls else ()
        marks = (*starts, *ends, *opens, *self.noise)
        may_end_again = expect.is_limited and expect.is_thinking
        while mark := (yield from cursor.until(marks, sink.content)):
            is_early = not sink.has_content or (thinking is not None and thinking.anywhere)
            if calls and mark in opens and (yield from self._call(cursor, sink, calls, expect)):
                continue
            yield from cursor.accept(mark)
            if mark in self.noise:
                sink.border()
            elif thinking and mark in starts and is_early:
                yield from self._think(cursor, sink, thinking, calls)
                may_end_again = expect.is_limited
                if calls and calls.bare:
                    yield from self._bare_call(cursor, sink, calls, expect)
            elif mark in ends and (is_early or may_end_again):
                may_end_again = may_end_again and is_early
                sink.border()
            else:
                sink.content(mark)

    def _think(self, cursor: Cursor, sink: Sink, thinking: Thinking, calls: CallFormat | None) -> Steps[None]:
        sink.border()
        opens = calls.opens if calls and thinking.ends_at_calls else ()
        while mark := (yield from cursor.until((*thinking.ends, *thinking.starts, *opens), sink.reasoning)):
            if mark not in opens:
                yield from cursor.accept(mark)
            if mark not in thinking.starts:
                break
        sink.border()

    def _call(self, cursor: Cursor, sink: Sink, calls: CallFormat, expect: Expect) -> Steps[bool]:
        cursor.begin()
        if not (yield from calls.read(cursor, sink, expect.tools)):
            cursor.undo()
            return False
        cursor.commit()
        sink.border()
        return True

    def _bare_call(self, cursor: Cursor, sink: Sink, calls: CallFormat, expect: Expect) -> Steps[None]:
        cursor.begin(is_guess=True)
        yield from cursor.space()
        first = yield from cursor.peek()
        if first and first in calls.bare and (yield from calls.read(cursor, sink, expect.tools)):
            cursor.commit()
            sink.border()
        else:
            cursor.undo()
