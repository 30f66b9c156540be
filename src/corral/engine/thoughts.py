"""Owns how long a task may think: counts the tokens of its thoughts and says which must come when they are too many."""

from __future__ import annotations

import sys
from codecs import getincrementaldecoder
from collections.abc import Sequence
from enum import Enum, auto

from corral.ids import Token
from corral.ports import Tokenizer
from corral.tasks import ThoughtBudget

N_MORE = 3
"""So many tokens of a character can follow the one that begins it."""


class Stage(Enum):
    """Thoughts may begin; they are under way; they are being ended; none can come any more."""

    WATCHING = auto()
    THINKING = auto()
    FORCING = auto()
    OVER = auto()


class Thoughts:
    """Where one task's generation stands. Depends on nothing but its tokens and ``end``.

    ``has_last``: the last token was of thoughts, or ended or began them.
    """

    def __init__(self, budget: ThoughtBudget, tokenizer: Tokenizer) -> None:
        self.can_end = budget.can_end
        self.has_last = False
        self.stage = Stage.WATCHING
        self._tokenizer = tokenizer
        self._starts = [text.encode() for text in budget.starts if text]
        self._ends = [text.encode() for text in budget.ends if text]
        self._n_kept = max(map(len, (*self._starts, *self._ends)))
        self._forced = budget.forced
        self._anywhere = budget.anywhere
        self._n_max = sys.maxsize if budget.n_tokens < 0 else budget.n_tokens
        self._n_limit = self._n_max
        self._n = 0
        self._n_told = 0
        self._tail = b""
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._has_begun = False
        if budget.n_open >= 0:
            self._begin(budget.n_open, b"")

    @property
    def forced(self) -> Token | None:
        """The token that has to come next; None: any may."""
        return self._forced[self._n_told] if self.stage is Stage.FORCING else None

    def accept(self, token: Token) -> None:
        """The token was generated."""
        was_inside = self.is_inside
        self._accept(token)
        self.has_last = was_inside or self.is_inside

    @property
    def is_inside(self) -> bool:
        return self.stage in (Stage.THINKING, Stage.FORCING)

    def _accept(self, token: Token) -> None:
        match self.stage:
            case Stage.FORCING:
                self._n_told += 1
                if self._n_told == len(self._forced):
                    self._close(b"")
            case Stage.THINKING:
                self._n += 1
                self._think(self._piece(token))
            case Stage.WATCHING:
                self._watch(self._piece(token))

    def end(self) -> None:
        """Thoughts that are under way end now, the first ones as soon as they begin. Nothing happens behind them."""
        if self.stage is Stage.THINKING:
            self._n_limit = min(self._n_limit, self._n)
            self._end_if_due()
        elif not self._has_begun:
            self._n_limit = 0

    def give_up(self) -> None:
        """What has to come cannot."""
        self.stage = Stage.OVER

    def _piece(self, token: Token) -> bytes:
        return self._tokenizer.piece(token, special=True)

    def _begin(self, n: int, data: bytes) -> None:
        self.stage, self._has_begun = Stage.THINKING, True
        self._n, self._tail = n, b""
        self._decoder.reset()
        self._think(data)

    def _think(self, data: bytes) -> None:
        self._tail += data
        end = _end_of_first(self._ends, self._tail)
        if end >= 0:
            self._close(self._tail[end:])
            return
        self._tail = self._tail[-self._n_kept :]
        self._decoder.decode(data)
        self._end_if_due()

    def _end_if_due(self) -> None:
        """No character is cut in two, unless it never ends."""
        is_whole = not self._decoder.getstate()[0]
        if self._n >= self._n_limit and (is_whole or self._n >= self._n_limit + N_MORE):
            self.stage, self._n_told = Stage.FORCING, 0

    def _close(self, rest: bytes) -> None:
        self.stage, self._tail, self._n_limit = Stage.WATCHING, b"", self._n_max
        self._watch(rest)

    def _watch(self, data: bytes) -> None:
        self._tail += data
        end = _end_of_first(self._starts, self._tail)
        if end >= 0:
            self._begin(0, self._tail[end:])
        elif self._anywhere:
            self._tail = self._tail[-self._n_kept :]
        else:
            text = self._tail.lstrip()
            if text and not any(start.startswith(text) for start in self._starts):
                self.stage = Stage.OVER


def _end_of_first(marks: Sequence[bytes], text: bytes) -> int:
    """Where the mark ends that is complete first; -1 if there is none."""
    return min((at + len(mark) for mark in marks if (at := text.find(mark)) >= 0), default=-1)
