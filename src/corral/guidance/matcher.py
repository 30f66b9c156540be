"""Owns the place of one text in a compiled constraint."""

from __future__ import annotations

import numpy as np
from llguidance import LLMatcher

from corral.errors import InvalidRequest
from corral.guidance.token_set import TokenBits, n_words
from corral.guidance.trial import plain
from corral.guidance.vocabulary import Vocabulary
from corral.ids import Token
from corral.tasks import ConstraintKind


class GuidedMatcher:
    """Implements ``ports.Matcher``."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, kind: ConstraintKind) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._kind = kind
        self._bits = np.zeros(n_words(vocabulary.n_vocab), np.uint32)
        self._address = self._bits.ctypes.data

    def allowed(self) -> TokenBits:
        self._matcher.unsafe_compute_mask_ptr(self._address, self._bits.nbytes)
        if self._matcher.is_error():
            raise self._given_up()
        return TokenBits(self._bits, self._vocabulary.n_vocab)

    def accept(self, token: Token) -> None:
        if not self._matcher.consume_token(token):
            raise self._given_up()

    def accept_text(self, data: bytes) -> None:
        if not self._matcher.consume_tokens(self._vocabulary.cover(data)):
            raise self._given_up()

    def would_accept(self, data: bytes) -> bool:
        tokens = self._vocabulary.cover(data)
        return int(self._matcher.validate_tokens(tokens)) == len(tokens)

    def forced(self) -> list[Token]:
        return list(self._matcher.compute_ff_tokens())

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_stopped())

    def _given_up(self) -> InvalidRequest:
        reason = plain(self._matcher.get_error())
        return InvalidRequest(f"{self._kind}: the text cannot be held to it any further: {reason}")
