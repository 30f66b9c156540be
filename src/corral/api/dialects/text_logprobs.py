"""``logprobs`` of text completions: OpenAI's lists, with llama-server's ``content`` beside them."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from dataclasses import replace

from corral.api.dialects.parts import Json, bounded, probs_json
from corral.events import TokenProbs
from corral.ids import Token
from corral.ports import Tokenizer


class TextLogprobs:
    """Those of one choice, told in one piece or in several, whose lists joined are the same.

    ``text_offset`` says where in the choice's text a token begins, in characters. ``n_top``: how many of the likeliest
    tokens are shown in each place. ``echo`` is the prompt's text where the choice repeats it, and ``prompt`` its
    tokens; what these hold besides the text, such as a beginning-of-text token, stands at 0.
    """

    def __init__(self, tokenizer: Tokenizer, n_top: int, prompt: Sequence[Token] = (), echo: str = "") -> None:
        self._tokenizer = tokenizer
        self._n_top = n_top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = len(echo) - len(tokenizer.detokenize(prompt, special=True))

    def of(self, probs: Sequence[TokenProbs], first: Sequence[Token] = ()) -> Json:
        """The next tokens. ``first`` come before them and have no probability: the prompt's first token."""
        entries = [replace(entry, top=entry.top[: self._n_top]) for entry in probs]
        tokens = [*first, *(entry.token for entry in entries)]
        none: list[object] = [None for _ in first]
        return {
            "tokens": [self._text(token) for token in tokens],
            "token_logprobs": [*none, *(_logprob(entry.p, entry) for entry in entries)],
            "top_logprobs": [*none, *(self._top(entry) for entry in entries)],
            "text_offset": [self._offset(token) for token in tokens],
            "content": probs_json(entries, self._tokenizer),
        }

    def _top(self, entry: TokenProbs) -> Json:
        """The token itself is always among them."""
        return {self._text(token): _logprob(p, entry) for token, p in ((entry.token, entry.p), *entry.top)}

    def _text(self, token: Token) -> str:
        """Parts of characters are told apart by their bytes, as OpenAI writes them."""
        piece = self._tokenizer.piece(token, special=True)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def _offset(self, token: Token) -> int:
        begin = self._at
        self._at += len(self._decoder.decode(self._tokenizer.piece(token, special=True)))
        return max(begin, 0)


def _logprob(p: float, entry: TokenProbs) -> float:
    if not entry.post_sampling:
        return bounded(p)
    return math.log(p) if p > 0 else bounded(-math.inf)
