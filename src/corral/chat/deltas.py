"""What a reply consists of, in the order in which it comes: thoughts, text, calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

import orjson

from corral.chat.unicode import well_formed


@dataclass(frozen=True, slots=True)
class Content:
    """More text for the user. Never empty.

    It lies from ``start`` to ``end`` in what the model wrote, in characters; white space at its head may come from
    before a mark.
    """

    text: str
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's thoughts. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number ``index`` begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments; joined they are JSON text, unless the model failed to write any."""

    index: int
    text: str


Delta = Content | Reasoning | CallStart | CallArguments

NewId = Callable[[int, str], str]
"""The id of a call from its index and name."""


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


def whole_reply(deltas: Iterable[Delta]) -> Reply:
    content, reasoning = [], []
    heads: list[CallStart] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        match delta:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallStart():
                heads.append(delta)
                arguments.append([])
            case CallArguments(index, text):
                arguments[index].append(text)
    calls = tuple(Call(head.id, head.name, "".join(rest)) for head, rest in zip(heads, arguments, strict=True))
    return Reply("".join(content), "".join(reasoning), calls)


class Sink:
    """Collects deltas. White space between parts belongs to none of them.

    It is dropped before and after thoughts, and before and after calls; what ends the text is kept. ``place`` is where
    text that is given ends in what the model wrote.
    """

    def __init__(self, new_id: NewId, place: Callable[[], int]) -> None:
        self._new_id = new_id
        self._place = place
        self._deltas: list[Delta] = []
        self._space = ""
        self._gap = ""
        self._is_text = True
        self._skips_space = False
        self._arguments: list[str] = []
        self.n_calls = 0
        self.has_content = False

    def take(self) -> list[Delta]:
        """What was collected since the last time, neighbours of one kind joined."""
        deltas, self._deltas = self._deltas, []
        return deltas if len(deltas) < 2 else [_joined(row) for _, row in groupby(deltas, _kind)]

    def content(self, text: str) -> None:
        """White space at the end waits for what comes next; that before a mark is told only if text goes on later."""
        if kept := self._split(text, is_text=True):
            self.has_content = True
            end = self._place() - len(self._space)
            self._deltas.append(Content(self._gap + kept, end - len(kept), end))
            self._gap = ""

    def reasoning(self, text: str) -> None:
        if kept := self._split(text, is_text=False):
            self._deltas.append(Reasoning(kept))

    def _split(self, text: str, *, is_text: bool) -> str:
        """What can be told now."""
        if self._skips_space:
            rest = text.lstrip()
            if is_text and self.has_content:
                self._gap += text[: len(text) - len(rest)]
            text = rest
        if not text:
            return ""
        self._skips_space = False
        self._is_text = is_text
        kept = text.rstrip()
        told = self._space + kept if kept else ""
        self._space = text[len(kept) :] if kept else self._space + text
        return told

    def border(self) -> None:
        """A mark of the format was read: the white space around it is not text."""
        if self._is_text and self.has_content:
            self._gap += self._space
        self._space = ""
        self._skips_space = True

    def call(self, name: str, call_id: str = "") -> None:
        self.border()
        name, call_id = well_formed(name), well_formed(call_id)
        self._deltas.append(CallStart(self.n_calls, call_id or self._new_id(self.n_calls, name), name))
        self.n_calls += 1
        self._arguments = []

    @property
    def is_call_cut(self) -> bool:
        """Whether the arguments of the last call are no JSON; not if there is none."""
        try:
            orjson.loads("".join(self._arguments) or "{}")
        except orjson.JSONDecodeError:
            return True
        return False

    def arguments(self, text: str) -> None:
        if text := well_formed(text):
            self._arguments.append(text)
            self._deltas.append(CallArguments(self.n_calls - 1, text))

    def end(self) -> None:
        """No more comes: white space that was held back is text after all."""
        if self._space and self._is_text and (self.has_content or not self.n_calls):
            end = self._place()
            self._deltas.append(Content(self._gap + self._space, end - len(self._space), end))
        self._space = self._gap = ""


def _kind(delta: Delta) -> tuple[type, int]:
    """The same for neighbours that are one."""
    return type(delta), delta.index if isinstance(delta, CallStart | CallArguments) else 0


def _joined(row: Iterable[Delta]) -> Delta:
    """Neighbours of one kind as one."""
    deltas = list(row)
    first, last = deltas[0], deltas[-1]
    text = "".join(delta.text for delta in deltas if not isinstance(delta, CallStart))
    if isinstance(first, Content) and isinstance(last, Content):
        return Content(text, first.start, last.end)
    return first if isinstance(first, CallStart) else replace(first, text=text)
