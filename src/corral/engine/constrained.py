"""Owns when a task's constraint holds: from the first token, after its reasoning, or from a trigger on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import takewhile

from corral.engine.triggers import Watch, new_watch
from corral.errors import InvalidRequest
from corral.guidance.token_set import TokenBits
from corral.ids import Token
from corral.ports import Matcher, Tokenizer, TokenSet
from corral.tasks import Constraint


class Phase(Enum):
    """OPENING: the first tokens tell whether reasoning begins. REASONING ends with a text, FREE with a trigger."""

    OPENING = auto()
    REASONING = auto()
    FREE = auto()
    HELD = auto()


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A place in free text: the phase, what is kept of thoughts, the search for triggers."""

    phase: Phase
    tail: bytes
    watch: Watch


class Constrained:
    """One task's constraint and where its generation stands in it.

    ``matcher`` is at its beginning; ``banned`` tokens are never allowed.
    """

    def __init__(
        self,
        constraint: Constraint,
        matcher: Matcher,
        tokenizer: Tokenizer,
        eog: Iterable[Token],
        banned: Iterable[Token],
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._bans = frozenset(banned)
        self._kept = TokenBits.all_but(self._bans, tokenizer.n_vocab) if self._bans else None
        self._eog = frozenset(eog)
        self._ends = tuple(end.encode() for end in (constraint.after, *constraint.or_after))
        self._watch = new_watch(constraint.triggers, constraint.with_trigger)
        self._peeked: tuple[Token, _Ahead] | None = None
        self._opener: list[Token] = []
        if constraint.after and constraint.opener:
            self._opener = tokenizer.tokenize(constraint.opener, add_special=False, parse_special=True)
        self._opener_text = constraint.opener.encode()
        self._n_opened = 0
        self._tail = b""
        if self._opener:
            self.phase = Phase.OPENING
        else:
            behind = Phase.FREE if self._has_triggers else Phase.HELD
            self.phase = Phase.REASONING if constraint.after else behind

    @property
    def _has_triggers(self) -> bool:
        return bool(self._watch.triggers)

    @property
    def is_complete(self) -> bool:
        """The text is whole and nothing more can come."""
        return self.phase is Phase.HELD and self._matcher.is_complete

    def allowed(self) -> TokenSet | None:
        """The tokens that can come next; None: all. Raises InvalidRequest if there is none."""
        wanted = self._wanted()
        if wanted is None:
            return None
        if wanted.is_empty:
            raise _nothing_left(is_banned=False)
        if self._kept is not None:
            wanted.keep(self._kept)
            if wanted.is_empty:
                raise _nothing_left(is_banned=True)
        return wanted

    def forced(self) -> list[Token]:
        """Tokens that come next in any case, up to one that is banned; maybe none."""
        if self.phase is not Phase.HELD:
            return []
        return list(takewhile(lambda token: token not in self._bans, self._matcher.forced()))

    def _wanted(self) -> TokenSet | None:
        match self.phase:
            case Phase.HELD:
                return self._matcher.allowed()
            case Phase.OPENING if not self._has_triggers:
                n_vocab = self._tokenizer.n_vocab
                opening = TokenBits.none(n_vocab) if self._n_opened else self._matcher.allowed()
                opening.add(self._opener[self._n_opened])
                return opening
            case Phase.REASONING if not self._has_triggers:
                # an end in the reasoning would be one without what was asked for
                return TokenBits.all_but(self._eog, self._tokenizer.n_vocab)
        return None

    def refuses(self, token: Token) -> bool:
        """Whether the token ends what is free and goes on with something that the constraint does not allow."""
        if not self._is_free:
            return False
        rest = self._ahead(token).watch.rest
        return bool(rest) and not self._matcher.would_accept(rest or b"")

    @property
    def _is_free(self) -> bool:
        """The text tells what comes next. Without triggers its opening is held to tokens."""
        return self.phase in (Phase.REASONING, Phase.FREE) or (self.phase is Phase.OPENING and self._has_triggers)

    def accept(self, token: Token) -> None:
        """The token was drawn. Raises InvalidRequest if the constraint cannot go on with it."""
        if token in self._eog:
            return
        if self._is_free:
            self._go(self._ahead(token))
        elif self.phase is Phase.HELD:
            self._matcher.accept(token)
        elif token == self._opener[self._n_opened]:
            self._n_opened += 1
            if self._n_opened == len(self._opener):
                self.phase = Phase.REASONING
        else:
            self.phase = Phase.HELD
            self._matcher.accept(token)

    def _go(self, ahead: _Ahead) -> None:
        """What is free goes on; it may end."""
        self.phase, self._tail, self._watch, self._peeked = ahead.phase, ahead.tail, ahead.watch, None
        if (rest := ahead.watch.rest) is not None:
            self.phase = Phase.HELD
            if rest:
                self._matcher.accept_text(rest)

    def _ahead(self, token: Token) -> _Ahead:
        """What a token would bring about in free text; the last answer is remembered."""
        if self._peeked is None or self._peeked[0] != token:
            data = self._tokenizer.piece(token, special=True)
            look = {Phase.OPENING: self._look_for_opener, Phase.REASONING: self._look_for_end}.get(self.phase)
            watch = self._watch
            ahead = look(self._tail + data, token) if look else _Ahead(Phase.FREE, b"", watch.advanced(data, token))
            self._peeked = token, ahead
        return self._peeked[1]

    def _look_for_opener(self, text: bytes, token: Token) -> _Ahead:
        """Whether ``text``, which ``token`` ends, begins reasoning. White space before the opener does not matter."""
        stripped = text.lstrip()
        if stripped.startswith(self._opener_text):
            return self._look_for_end(stripped[len(self._opener_text) :], token)
        if self._opener_text.startswith(stripped):
            return _Ahead(Phase.OPENING, text, self._watch)
        n_before = len(self._tail)
        return _Ahead(Phase.FREE, b"", self._watch.advanced(text[:n_before]).advanced(text[n_before:], token))

    def _look_for_end(self, text: bytes, _: Token) -> _Ahead:
        """Whether reasoning ends in ``text``."""
        found = min((at + len(end) for end in self._ends if (at := text.find(end)) >= 0), default=-1)
        if found < 0:
            return _Ahead(Phase.REASONING, text[-max(map(len, self._ends)) :], self._watch)
        behind = text[found:].lstrip()
        if self._has_triggers:
            return _Ahead(Phase.FREE, b"", self._watch.advanced(behind))
        return _Ahead(Phase.HELD, b"", replace(self._watch, rest=behind))


def _nothing_left(*, is_banned: bool) -> InvalidRequest:
    if is_banned:
        return InvalidRequest("no token is left: logit_bias and ignore_eos ban all that the constraint allows next")
    return InvalidRequest("no token is left: none of the vocabulary is what the constraint wants next")
