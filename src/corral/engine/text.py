"""Tokens to text that is final: whole characters, and nothing that could still become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from corral.events import TokenProbs
from corral.ids import Token
from corral.tasks import Limits


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is final, never empty, with the tokens it is made of and their probabilities where given.

    Only at a stop does it hold less than the whole text of its last token.
    """

    text: str
    tokens: tuple[Token, ...]
    probs: tuple[TokenProbs, ...]


class TextStream:
    """The text of one task, grown token by token.

    However the text is cut into tokens, the joined pieces are the same: all of it before the stop string that begins
    first (of those that begin together, the shortest), or before the first line that is indented less than
    ``limits.n_indent`` (after its indentation; an empty line is indented by nothing). A character that never became
    whole is U+FFFD. After ``stopped`` or ``indent_stop`` nothing may be pushed.
    """

    __slots__ = ("_decoder", "_finder", "_held", "_indent", "_parts", "_waiting", "has_new_line", "stopped")

    def __init__(self, limits: Limits) -> None:
        self.stopped: str | None = None
        self.has_new_line = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._finder = StopFinder(limits.stop)
        self._indent = IndentRule(limits.n_indent)
        self._held = ""
        self._waiting: list[_Waiting] = []
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """All final text so far: the joined pieces."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def indent_stop(self) -> bool:
        """A line was indented less than asked for."""
        return self._indent.broken

    def push(
        self, token: Token, piece: bytes, probs: TokenProbs | None = None, *, is_thought: bool = False
    ) -> Piece | None:
        """Add a generated token, ``piece`` being its bytes (maybe none, maybe part of a character).

        Stop strings are not looked for in thoughts.
        """
        if not self._waiting and piece and self._indent.n_indent <= 0:
            try:
                text = piece.decode()
            except UnicodeDecodeError:
                return self._push(token, piece, probs, is_thought)
            if is_thought or self._finder.skip(text):
                return self._emit(text, (token,), (probs,) if probs is not None else ())
        return self._push(token, piece, probs, is_thought)

    def finish(self) -> Piece | None:
        """Generation ended: what was held back is final now. May still set ``stopped``. Harmless after a stop."""
        if self.stopped is not None or self.indent_stop:
            return None
        text = self._decoder.decode(b"", final=True)
        self._held += text
        self._finder.feed(text)
        if self._finder.word is not None:
            return self._stop()
        return self._release(len(self._held), len(self._waiting))

    def _push(self, token: Token, piece: bytes, probs: TokenProbs | None, is_thought: bool) -> Piece | None:
        assert self.stopped is None and not self.indent_stop, "a token after the stop"
        text = self._decoder.decode(piece)
        self._held += text
        n_partial = 1 if self._decoder.getstate()[0] else 0
        self._waiting.append(_Waiting(token, probs, len(self._held) + n_partial))
        if is_thought:
            self._finder.pass_over(text)
        else:
            self._finder.feed(text)
        if self._finder.decided:
            return self._stop()
        return self._settle(len(self._held) - self._finder.n_open)

    def _settle(self, n_chars: int) -> Piece | None:
        """Release the tokens that lie wholly in the first ``n_chars`` held characters."""
        n_tokens = 0
        for waiting in self._waiting:
            if waiting.end > n_chars:
                break
            n_tokens += 1
        return self._release(self._waiting[n_tokens - 1].end, n_tokens) if n_tokens else None

    def _stop(self) -> Piece | None:
        """A stop string is certain: release what lies before it and drop the rest."""
        n_chars = len(self._held) - self._finder.n_after
        piece = self._release(n_chars, self._n_begun(n_chars))
        if not self.indent_stop:
            self.stopped = self._finder.word
        self._held = ""
        self._waiting.clear()
        return piece

    def _n_begun(self, n_chars: int) -> int:
        """How many waiting tokens begin in the first ``n_chars`` held characters."""
        begin = 0
        for i, waiting in enumerate(self._waiting):
            if begin >= n_chars:
                return i
            begin = waiting.end
        return len(self._waiting)

    def _release(self, n_chars: int, n_tokens: int) -> Piece | None:
        """Make held text final and let tokens ride on it; without text they go on waiting."""
        text = self._held[:n_chars]
        n_allowed = self._indent.feed(text)
        if n_allowed < n_chars:
            n_chars, n_tokens = n_allowed, self._n_begun(n_allowed)
            text = text[:n_chars]
        if not text:
            return None
        gone, rest = self._waiting[:n_tokens], self._waiting[n_tokens:]
        self._held = self._held[n_chars:]
        self._waiting = [_Waiting(w.token, w.probs, w.end - n_chars) for w in rest]
        return self._emit(text, tuple(w.token for w in gone), tuple(w.probs for w in gone if w.probs is not None))

    def _emit(self, text: str, tokens: tuple[Token, ...], probs: tuple[TokenProbs, ...]) -> Piece:
        self._parts.append(text)
        if not self.has_new_line and "\n" in text:
            self.has_new_line = True
        return Piece(text, tokens, probs)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A token whose text is not out yet; ``end`` is where it ends in the held text."""

    token: Token
    probs: TokenProbs | None
    end: int


class StopFinder:
    """Finds the stop string that begins first in a text that comes in parts.

    ``word`` is the best match so far; ``decided`` when nothing that began earlier can still match. ``n_open`` is how
    many of the last characters fed could be the beginning of a stop string, ``n_after`` how many follow the begin of
    ``word``.
    """

    __slots__ = ("_begin", "_firsts", "_n_fed", "_open", "_stops", "decided", "n_open", "word")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in dict.fromkeys(stops) if stop]
        self._firsts = frozenset(stop[0] for stop, _ in self._stops)
        self._open = [0] * len(self._stops)
        self._n_fed = 0
        self._begin = 0
        self.n_open = 0
        self.word: str | None = None
        self.decided = False

    @property
    def n_after(self) -> int:
        return self._n_fed - self._begin

    def skip(self, text: str) -> bool:
        """Read on if no stop string begins in ``text`` and none is open; else do nothing."""
        if self.n_open or self.word is not None or not self._firsts.isdisjoint(text):
            return False
        self._n_fed += len(text)
        return True

    def feed(self, text: str) -> None:
        """Read on. Nothing more is read for the decision once ``decided``."""
        if self.skip(text):
            return
        for i, char in enumerate(text):
            if not self.n_open and self.word is None and char not in self._firsts:
                self._n_fed += 1
                continue
            self._read(char)
            if self.decided:
                self._n_fed += len(text) - i - 1
                return

    def pass_over(self, text: str) -> None:
        """Text in which nothing counts; no stop string goes on across it."""
        self._open = [0] * len(self._stops)
        self._n_fed += len(text)
        self.n_open = 0
        self.decided = self.word is not None

    def _read(self, char: str) -> None:
        """Advance every stop string by one character (Knuth, Morris and Pratt)."""
        self._n_fed += 1
        for i, (stop, borders) in enumerate(self._stops):
            n = self._open[i]
            while n and stop[n] != char:
                n = borders[n - 1]
            if stop[n] == char:
                n += 1
            if n == len(stop):
                self._match(stop)
                n = borders[n - 1]
            self._open[i] = n
        self.n_open = max(self._open, default=0)
        self.decided = self.word is not None and self._n_fed - self.n_open >= self._begin

    def _match(self, stop: str) -> None:
        begin = self._n_fed - len(stop)
        if self.word is None or begin < self._begin:
            self.word, self._begin = stop, begin


def _borders(stop: str) -> list[int]:
    """For each prefix of ``stop`` the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    n = 0
    for i in range(1, len(stop)):
        while n and stop[i] != stop[n]:
            n = borders[n - 1]
        if stop[i] == stop[n]:
            n += 1
        borders[i] = n
    return borders


class IndentRule:
    """Watches that each line after the first is indented by at least ``n_indent`` blanks or tabs; 0 or less: never."""

    __slots__ = ("_n", "broken", "n_indent")

    def __init__(self, n_indent: int) -> None:
        self.n_indent = n_indent
        self._n: int | None = None
        self.broken = False

    def feed(self, text: str) -> int:
        """How many characters of ``text`` are allowed; fewer than all when the rule is broken."""
        if self.n_indent <= 0:
            return len(text)
        for i, char in enumerate(text):
            if self._n is not None and char in " \t":
                self._n += 1
            elif self._n is not None and self._n < self.n_indent:
                self.broken = True
                return i
            else:
                self._n = 0 if char == "\n" else None
        return len(text)
