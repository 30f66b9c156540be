"""Owns when a task's constraint holds: from the first token, after its reasoning, or from a trigger on."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np

from corral.errors import InvalidRequest
from corral.ids import Token
from corral.ports import Matcher, Tokenizer
from corral.tasks import Constraint

if TYPE_CHECKING:
    from corral.ports import Mask


class Phase(Enum):
    """OPENING: the first tokens tell whether reasoning begins. REASONING ends with a text, FREE with a trigger."""

    OPENING = auto()
    REASONING = auto()
    FREE = auto()
    HELD = auto()


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
        self._banned = np.fromiter(banned, np.intp)
        self._eog = frozenset(eog)
        self._after = constraint.after.encode()
        self._triggers = [text.encode() for text in constraint.triggers if text]
        self._with_trigger = constraint.with_trigger
        self._opener: list[Token] = []
        if constraint.after and constraint.opener:
            self._opener = tokenizer.tokenize(constraint.opener, add_special=False, parse_special=True)
        self._opener_text = constraint.opener.encode()
        self._n_opened = 0
        self._tail = b""
        if self._opener:
            self.phase = Phase.OPENING
        else:
            self.phase = Phase.REASONING if constraint.after else self._phase_behind

    @property
    def _phase_behind(self) -> Phase:
        """What comes after the reasoning, or without it."""
        return Phase.FREE if self._triggers else Phase.HELD

    @property
    def is_complete(self) -> bool:
        """The text is whole and nothing more can come."""
        return self.phase is Phase.HELD and self._matcher.is_complete

    def allowed(self) -> Mask | None:
        """The tokens that can come next, shape (n_vocab,); None: all. Raises InvalidRequest if there is none."""
        mask = self._wanted()
        if mask is None:
            return None
        n_wanted = np.count_nonzero(mask)
        mask[self._banned] = False
        if not mask.any():
            raise _nothing_left(bool(n_wanted))
        return mask

    def _wanted(self) -> Mask | None:
        match self.phase:
            case Phase.HELD:
                return self._matcher.allowed()
            case Phase.OPENING if not self._triggers:
                mask = self._all_false() if self._n_opened else self._matcher.allowed()
                mask[self._opener[self._n_opened]] = True
                return mask
            case Phase.REASONING if not self._triggers:
                return self._all_but_ends()
        return None

    def _all_false(self) -> Mask:
        return np.zeros(self._tokenizer.n_vocab, np.bool_)

    def _all_but_ends(self) -> Mask:
        """An end in the reasoning would be one without what was asked for."""
        mask = np.ones(self._tokenizer.n_vocab, np.bool_)
        mask[list(self._eog)] = False
        return mask

    def refuses(self, token: Token) -> bool:
        """Whether the token ends what is free and goes on with something that the constraint does not allow."""
        if self.phase not in (Phase.REASONING, Phase.FREE):
            return False
        rest = self._rest_behind(self._tail + self._piece(token), self.phase)
        return bool(rest) and not self._matcher.would_accept(rest or b"")

    def _rest_behind(self, text: bytes, phase: Phase) -> bytes | None:
        """The text from where the constraint holds; None if it does not hold by its end."""
        if phase is Phase.REASONING:
            found = text.find(self._after)
            if found < 0:
                return None
            text = text[found + len(self._after) :].lstrip()
            phase = self._phase_behind
        if phase is Phase.FREE:
            return self._behind_trigger(text)
        return text

    def _behind_trigger(self, text: bytes) -> bytes | None:
        """What comes behind the trigger that is complete first, or from its beginning on."""
        found = [(at + len(trigger), at) for trigger in self._triggers if (at := text.find(trigger)) >= 0]
        if not found:
            return None
        end, start = min(found)
        return text[start if self._with_trigger else end :]

    def accept(self, token: Token) -> None:
        """The token was drawn. Raises InvalidRequest if the constraint cannot go on with it."""
        if token in self._eog:
            return
        match self.phase:
            case Phase.HELD:
                self._matcher.accept(token)
            case Phase.OPENING:
                self._open(token)
            case _:
                self._search(self._piece(token))

    def _open(self, token: Token) -> None:
        """With triggers the text tells whether reasoning begins; else it begins with the opener's own tokens."""
        if self._triggers:
            self._open_text(self._piece(token))
        elif token == self._opener[self._n_opened]:
            self._n_opened += 1
            if self._n_opened == len(self._opener):
                self.phase = Phase.REASONING
        else:
            self.phase = Phase.HELD
            self._matcher.accept(token)

    def _open_text(self, data: bytes) -> None:
        self._tail += data
        text = self._tail.lstrip()
        if not text.startswith(self._opener_text):
            if self._opener_text.startswith(text):
                return
            self.phase = Phase.FREE
            self._search(b"")
        else:
            self.phase, self._tail = Phase.REASONING, b""
            self._search(text[len(self._opener_text) :])

    def _search(self, data: bytes) -> None:
        """What is free goes on; it may end."""
        self._tail += data
        if self.phase is Phase.REASONING and (found := self._tail.find(self._after)) >= 0:
            self._tail = self._tail[found + len(self._after) :].lstrip()
            self.phase = self._phase_behind
        if self.phase is Phase.FREE and (rest := self._behind_trigger(self._tail)) is not None:
            self._tail = rest
            self.phase = Phase.HELD
        if self.phase is Phase.HELD:
            if self._tail:
                self._matcher.accept_text(self._tail)
            self._tail = b""
        else:
            longest = max(map(len, (self._after, *self._triggers)))
            self._tail = self._tail[-longest:]

    def _piece(self, token: Token) -> bytes:
        return self._tokenizer.piece(token, special=True)


def _nothing_left(is_banned: bool) -> InvalidRequest:
    if is_banned:
        return InvalidRequest("no token is left: logit_bias and ignore_eos ban all that the constraint allows next")
    return InvalidRequest("no token is left: none of the vocabulary is what the constraint wants next")
