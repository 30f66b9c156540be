"""Owns the search for what ends free text, as llama.cpp looks for it: tokens, words, patterns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from corral.guidance.pattern import compile_pattern
from corral.guidance.search import WHOLE, Search
from corral.ids import Token
from corral.tasks import Trigger, TriggerKind


@dataclass(frozen=True, slots=True)
class _Sought:
    """A trigger: the token, the word, or the searches for the pattern, of which the first that found it counts."""

    token: Token = -1
    word: bytes = b""
    searches: tuple[Search, ...] = ()

    def advanced(self, data: bytes) -> _Sought:
        return _Sought(searches=tuple(one.advanced(data) for one in self.searches)) if self.searches else self


@dataclass(frozen=True, slots=True)
class Watch:
    """Triggers, and the free text since it began, or as much of it as they need. A value: ``advanced`` gives another.

    ``rest`` is what the text ends with, from where a trigger says; None while there was none.
    """

    triggers: tuple[_Sought, ...]
    with_trigger: bool
    n_kept: int
    text: bytes = b""
    rest: bytes | None = None

    def advanced(self, data: bytes, token: Token = -1) -> Watch:
        """With more text: that of a token, or what other text ends with."""
        if token >= 0 and any(one.token == token for one in self.triggers):
            return replace(self, rest=data if self.with_trigger else b"")
        text = self.text + data
        triggers = tuple(one.advanced(data) for one in self.triggers)
        start = next((at for one in triggers if (at := self._start(one, text)) >= 0), -1)
        if start >= 0:
            return Watch(triggers, self.with_trigger, self.n_kept, text, text[start:])
        return Watch(triggers, self.with_trigger, self.n_kept, text[-self.n_kept :] if self.n_kept else text)

    def _start(self, one: _Sought, text: bytes) -> int:
        """Where what a trigger begins is in the text; -1: it is not there."""
        if one.word:
            at = text.find(one.word)
            return at if at < 0 or self.with_trigger else at + len(one.word)
        return next((search.start for search in one.searches if search.start >= 0), -1)


def new_watch(triggers: Sequence[Trigger], with_trigger: bool) -> Watch:
    """Raises InvalidRequest for a pattern that is none."""
    sought = tuple(map(_sought, triggers))
    has_patterns = any(one.searches for one in sought)  # they want to see all of the text
    return Watch(sought, with_trigger, 0 if has_patterns else max((len(one.word) for one in sought), default=0) or 1)


def _sought(trigger: Trigger) -> _Sought:
    if trigger.kind is TriggerKind.TOKEN:
        return _Sought(token=trigger.token)
    if trigger.kind is TriggerKind.WORD:
        return _Sought(word=trigger.text.encode())
    return _Sought(searches=tuple(_searches(trigger)))


def _searches(trigger: Trigger) -> Iterator[Search]:
    pattern = trigger.text
    if trigger.kind is TriggerKind.PATTERN_FULL:
        pattern = f"{'' if pattern[:1] == '^' else '^'}{pattern}{'' if pattern[-1:] == '$' else '$'}"
    program = compile_pattern(pattern)
    if pattern[:1] == "^" and pattern[-1:] == "$":
        yield Search(program, WHOLE)
    yield Search(program)
