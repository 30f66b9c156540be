"""Owns a vocabulary as llguidance wants it: bytes of every token, which are control tokens, and a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer

from corral.ids import Token
from corral.ports import ModelInfo, Tokenizer


class Vocabulary:
    """What ``llguidance.TokenizerWrapper`` wraps. Its own ``tokenizer`` is set by who makes it.

    Control tokens have no text here: inside a JSON string they would be one that the reader never sees.
    """

    tokenizer: LLTokenizer

    def __init__(self, tokenizer: Tokenizer, info: ModelInfo) -> None:
        self.n_vocab = tokenizer.n_vocab
        self.tokens = [tokenizer.piece(token, special=True) for token in range(self.n_vocab)]
        self.special_token_ids = [
            token for token, piece in enumerate(self.tokens) if piece and not tokenizer.piece(token, special=False)
        ]
        self.eos_token_id = min(info.eog_tokens, default=0) if info.eos_token is None else info.eos_token
        self.bos_token_id = info.bos_token
        self._tokenizer = tokenizer
        special = frozenset(self.special_token_ids)
        self._token_of = {piece: token for token, piece in enumerate(self.tokens) if piece and token not in special}
        self._longest = max(map(len, self._token_of), default=1)

    def __call__(self, data: bytes) -> list[Token]:
        """Tokens whose bytes are exactly ``data``, the usual ones if possible: some tokenizers put a space in front."""
        text = data.decode("utf-8", "replace")
        tokens = self._tokenizer.tokenize(text, add_special=False, parse_special=False)
        if self._bytes(tokens) == data:
            return tokens
        tokens = self._tokenizer.tokenize("\n" + text, add_special=False, parse_special=False)
        n_more = sum(len(self.tokens[token]) for token in tokens) - len(data)
        n_first = 0
        while n_more > 0 and n_first < len(tokens):
            n_more -= len(self.tokens[tokens[n_first]])
            n_first += 1
        tokens = tokens[n_first:]
        return tokens if tokens and self._bytes(tokens) == data else self.cover(data)

    def _bytes(self, tokens: Sequence[Token]) -> bytes:
        return b"".join(self.tokens[token] for token in tokens)

    def cover(self, data: bytes) -> list[Token]:
        """Tokens whose bytes are ``data``, the longest first; bytes that no token has are left out."""
        tokens = []
        at = 0
        while at < len(data):
            for n in range(min(self._longest, len(data) - at), 0, -1):
                if (token := self._token_of.get(data[at : at + n])) is not None:
                    tokens.append(token)
                    break
            else:
                n = 1
            at += n
        return tokens
