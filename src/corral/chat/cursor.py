"""Reading text that is still coming: programs are generators that pause wherever the next step is not yet certain.

A program asks the cursor for literals, words and JSON values as if the whole text were there. Each question waits until
its answer cannot change any more, so what a program does never depends on how the text was cut into pieces.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A program that gives T in the end; at each ``yield`` it waits for more text."""

Emit = Callable[[str], None]

_OUTSIDE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR = re.compile(r"[^\s,\]}\[{:\"<]*")
_SPACE = re.compile(r"\s*")


class Cursor:
    """A place in a text that grows. One place can be kept to return to (``begin``, ``undo``)."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._n_dropped = 0
        self._kept: int | None = None
        self._is_guess = False
        self._is_ended = False

    @property
    def place(self) -> int:
        """How many characters were stepped over since the beginning."""
        return self._n_dropped + self._at

    def feed(self, text: str) -> None:
        done = self._at if self._kept is None else self._kept
        self._text = self._text[done:] + text
        self._at -= done
        self._n_dropped += done
        if self._kept is not None:
            self._kept = 0

    def end(self) -> None:
        """No more text comes."""
        self._is_ended = True

    @property
    def is_waiting(self) -> bool:
        """Whether text came of which it is not certain yet what it is."""
        return self._kept is not None or self._at < len(self._text)

    @property
    def is_inside(self) -> bool:
        """Whether that text began with a mark."""
        return self._kept is not None and not self._is_guess

    @property
    def is_guess(self) -> bool:
        """Whether that text began without a mark, and is text unless it turns out to be something else."""
        return self._kept is not None and self._is_guess

    def begin(self, *, is_guess: bool = False) -> None:
        """Keep this place. Nothing may be told to anybody before ``commit`` or ``undo``."""
        assert self._kept is None
        self._kept, self._is_guess = self._at, is_guess

    def undo(self) -> None:
        """Back to the kept place."""
        assert self._kept is not None
        self._at, self._kept = self._kept, None

    def commit(self) -> None:
        self._kept = None

    def peek(self) -> Steps[str]:
        """The next character; "" at the end."""
        while self._at == len(self._text) and not self._is_ended:
            yield
        return self._text[self._at : self._at + 1]

    def starts(self, literal: str) -> Steps[bool]:
        """Whether the text goes on with ``literal``."""
        while True:
            have = self._text[self._at : self._at + len(literal)]
            if have == literal:
                return True
            if self._is_ended or not literal.startswith(have):
                return False
            yield

    def accept(self, *literals: str) -> Steps[str]:
        """Step over the first of ``literals`` that comes next; "" if none does."""
        for literal in literals:
            if literal and (yield from self.starts(literal)):
                self._at += len(literal)
                return literal
        return ""

    def take(self) -> Steps[str]:
        """The next character, stepped over; "" at the end."""
        char = yield from self.peek()
        self._at += len(char)
        return char

    def space(self) -> Steps[None]:
        """Step over white space."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match
            self._at = match.end()
            if self._at < len(self._text) or self._is_ended:
                return
            yield

    def until(self, marks: tuple[str, ...], emit: Emit) -> Steps[str]:
        """Emit the text before the first of ``marks``; gives the mark, which is not stepped over, or "" at the end.

        Where several marks begin at one place the longest counts.
        """
        if not marks:
            marks = ("\0never",)
        pattern = _pattern(marks)
        while True:
            match = pattern.search(self._text, self._at)
            end = match.start() if match else len(self._text) - self._partial(marks)
            self._emit_to(end, emit)
            if match and not self._may_grow(match.group(), marks):
                return match.group()
            if self._is_ended:
                if match:
                    return match.group()
                self._emit_to(len(self._text), emit)
                return ""
            yield

    def word(self, ends: tuple[str, ...], max_chars: int = 256) -> Steps[str | None]:
        """A short text of one line before one of ``ends``, which is not stepped over; None if there is no such text."""
        pattern = _pattern(ends)
        while True:
            match = pattern.search(self._text, self._at)
            word = self._text[self._at : match.start() if match else len(self._text) - self._partial(ends)]
            if len(word) > max_chars or "\n" in word or (not match and self._is_ended):
                return None
            if match and not self._may_grow(match.group(), ends):
                self._at = match.start()
                return word
            yield

    def step_over(self, *marks: str) -> Steps[None]:
        """Step over white space and one of ``marks``, if it comes then; else over nothing."""
        if not marks:
            return
        self.begin()
        yield from self.space()
        if (yield from self.accept(*marks)):
            self.commit()
        else:
            self.undo()

    def json_string(self) -> Steps[str | None]:
        """A JSON string, decoded; None if none comes next or it is broken."""
        if not (yield from self.starts('"')):
            return None
        parts: list[str] = []
        if not (yield from self.json_value(parts.append)):
            return None
        try:
            return str(json.loads("".join(parts), strict=False))
        except ValueError:
            return None

    def json_value(self, emit: Emit) -> Steps[bool]:
        """Emit a JSON value as it is written, up to what ends it. False if the text ends before."""
        first = yield from self.peek()
        if first == '"':
            self._emit_to(self._at + 1, emit)
            return (yield from self._rest_of_string(emit))
        if first in ("{", "["):
            return (yield from self._brackets(emit))
        return (yield from self._scalar(emit))

    def _brackets(self, emit: Emit) -> Steps[bool]:
        depth = 0
        while True:
            match = _OUTSIDE.search(self._text, self._at)
            self._emit_to(match.end() if match else len(self._text), emit)
            if not match:
                if self._is_ended:
                    return False
                yield
                continue
            if match.group() == '"':
                if not (yield from self._rest_of_string(emit)):
                    return False
                continue
            depth += 1 if match.group() in "{[" else -1
            if depth == 0:
                return True

    def _rest_of_string(self, emit: Emit) -> Steps[bool]:
        while True:
            match = _IN_STRING.search(self._text, self._at)
            if match and match.group() == '"':
                self._emit_to(match.end(), emit)
                return True
            if match and match.end() < len(self._text):
                self._emit_to(match.end() + 1, emit)
                continue
            self._emit_to(match.start() if match else len(self._text), emit)
            if self._is_ended:
                self._emit_to(len(self._text), emit)
                return False
            yield

    def _scalar(self, emit: Emit) -> Steps[bool]:
        while True:
            match = _SCALAR.match(self._text, self._at)
            assert match
            if match.end() < len(self._text) or self._is_ended:
                is_some = match.end() > self._at
                self._emit_to(match.end(), emit)
                return is_some
            yield

    def _emit_to(self, end: int, emit: Emit) -> None:
        """Step over the text up to ``end``, then emit it."""
        if end > self._at:
            text = self._text[self._at : end]
            self._at = end
            emit(text)

    def _may_grow(self, mark: str, marks: tuple[str, ...]) -> bool:
        """Whether what comes could make the mark here a longer one."""
        begin = self._text.index(mark, self._at)
        if self._is_ended or len(self._text) - begin >= max(map(len, marks)):
            return False
        rest = self._text[begin:]
        return any(len(m) > len(rest) and m.startswith(rest) for m in marks if m != mark)

    def _partial(self, marks: tuple[str, ...]) -> int:
        """How many characters at the end may begin a mark."""
        if self._is_ended:
            return 0
        n_max = min(max(map(len, marks)) - 1, len(self._text) - self._at)
        for n in range(n_max, 0, -1):
            tail = self._text[-n:]
            if any(mark.startswith(tail) for mark in marks):
                return n
        return 0


@functools.lru_cache(maxsize=256)
def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))
