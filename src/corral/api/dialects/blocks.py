"""A reply as a row of blocks, thoughts, text and calls, each of which opens, grows and closes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import orjson

from corral.chat.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from corral.chat.formats.base import Reader
from corral.chat.jobs import Rendered
from corral.events import Finished, StopReason

Kind = Literal["thoughts", "text", "call"]


@dataclass(slots=True)
class Block:
    """Number ``index`` of the reply. ``id`` and ``name`` are a call's; its text are the arguments.

    ``logprobs`` are those of its tokens where they are asked for; only text has them.
    """

    index: int
    kind: Kind
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, object]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grew:
    """``text`` was added; never empty. ``start`` and ``end``: where it lies in what the model wrote, if it is text."""

    block: Block
    text: str
    start: int = 0
    end: int = 0
    logprobs: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    block: Block


Step = Opened | Grew | Closed


class BlockReader:
    """The blocks of one reply as its text comes. One is open at most, the last of ``blocks``.

    ``rendered`` None: the reply is nothing but text.
    """

    def __init__(self, rendered: Rendered | None) -> None:
        self.blocks: list[Block] = []
        self._n_chars = 0
        self._reader: Reader | None = None
        if rendered is not None and not rendered.is_plain:
            self._reader = rendered.reader(streams=False)
        self._is_open = False

    def feed(self, text: str) -> list[Step]:
        if self._reader is None:
            start, self._n_chars = self._n_chars, self._n_chars + len(text)
            return self._steps([Content(text, start, self._n_chars)])
        return self._steps(self._reader.feed(text))

    def finish(self, reason: StopReason) -> list[Step]:
        """The reply is over: what was held back, and the end of the last block."""
        rest = [] if self._reader is None else self._reader.finish(reason)
        return [*self._steps(rest), *self._close()]

    def _steps(self, deltas: Iterable[Delta]) -> list[Step]:
        return [step for delta in deltas for step in self._step(delta)]

    def _step(self, delta: Delta) -> list[Step]:
        match delta:
            case CallStart(_, call_id, name):
                return self._open("call", call_id, name)
            case CallArguments(_, text):
                return self._grow("call", text)
            case Reasoning(text):
                return self._grow("thoughts", text)
            case Content(text, start, end):
                return self._grow("text", text, start, end)

    def _grow(self, kind: Kind, text: str, start: int = 0, end: int = 0) -> list[Step]:
        is_there = self._is_open and self.blocks[-1].kind == kind
        steps = [] if is_there else self._open(kind)
        block = self.blocks[-1]
        block.pieces.append(text)
        return [*steps, Grew(block, text, start, end)]

    def _open(self, kind: Kind, call_id: str = "", name: str = "") -> list[Step]:
        closed = self._close()
        block = Block(len(self.blocks), kind, call_id, name)
        self.blocks.append(block)
        self._is_open = True
        return [*closed, Opened(block)]

    def _close(self) -> list[Step]:
        if not self._is_open:
            return []
        self._is_open = False
        return [Closed(self.blocks[-1])]


def read_blocks(rendered: Rendered | None, result: Finished) -> list[Block]:
    """The blocks of a whole reply."""
    reader = BlockReader(rendered)
    reader.feed(result.text)
    reader.finish(result.reason)
    return reader.blocks


def call_input(block: Block) -> dict[str, object] | None:
    """The arguments of a call; None if they are no object, as when they were cut."""
    try:
        value = orjson.loads(block.text or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
