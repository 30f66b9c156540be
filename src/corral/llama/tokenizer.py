"""Owns the way between text and tokens."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib

from corral.ids import Token
from corral.llama.cuts import Cutter
from corral.llama.vocab import Vocab

_SPECIAL = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_USER_DEFINED | lib.LLAMA_TOKEN_ATTR_UNKNOWN
_PARSED = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_UNKNOWN
_WITHOUT_LOSS = (lib.LLAMA_VOCAB_TYPE_SPM, lib.LLAMA_VOCAB_TYPE_BPE)
_SPACE = "▁".encode()
_STRIPS = lib.LLAMA_TOKEN_ATTR_LSTRIP | lib.LLAMA_TOKEN_ATTR_RSTRIP

SHORT_BYTES = 4096
"""Texts that are not longer hold too few special tokens to be slow."""


class LlamaTokenizer:
    """libllama's tokenizer over a loaded vocabulary, which it does not own. Safe to use from several threads.

    Raises Closed once the weights are freed, for whatever it would have to ask libllama.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        with vocab.use() as handle:
            self._n_vocab = int(lib.llama_vocab_n_tokens(handle))

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[Token]:
        """Lone surrogates in ``text`` become "?". Takes time in proportion to it. ValueError if libllama cannot."""
        raw = text.encode("utf-8", "replace")
        pieces = [raw] if len(raw) <= SHORT_BYTES else self._cutters[parse_special].pieces(raw)
        if len(pieces) == 1:
            return self._tokenize(raw, add_special, parse_special)
        first, last = self._ends if add_special else ([], [])
        tokens = [token for piece in pieces for token in self._tokenize(piece, False, parse_special)]
        return [*first, *tokens, *last]

    def _tokenize(self, raw: bytes, add_special: bool, parse_special: bool) -> list[Token]:
        n = self._fill(raw, buffer := (lib.llama_token * (len(raw) + 8))(), add_special, parse_special)
        if n < 0:
            n = self._fill(raw, buffer := (lib.llama_token * -n)(), add_special, parse_special)
        if n < 0:
            raise ValueError("the text cannot be tokenized")
        tokens: list[Token] = buffer[:n]
        return tokens

    def _fill(self, raw: bytes, buffer: Any, add_special: bool, parse_special: bool) -> int:
        with self._vocab.use() as vocab:
            return int(lib.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), add_special, parse_special))

    def n_tokens_at_least(self, text: str) -> int:
        longest = self._n_bytes_longest
        return -(-len(text.encode("utf-8", "replace")) // longest) if longest else 0

    @functools.cached_property
    def _n_bytes_longest(self) -> int:
        """The most bytes of a text that one token can stand for; 0 if there is no such bound.

        Other kinds of vocabulary drop white space, or have one token for any unknown word.
        """
        with self._vocab.use() as vocab:
            kind = lib.llama_vocab_type(vocab)
        if kind not in _WITHOUT_LOSS or any(attr & _STRIPS for attr in self._attrs()):
            return 0
        pieces = self._pieces_special
        texts = (self._text(token) for token, piece in enumerate(pieces) if b" " in piece)
        return max(*map(len, pieces), *(len(text) for text in texts if _SPACE in text), 1)

    def _text(self, token: Token) -> bytes:
        """How the vocabulary writes the token: in some with a sign for each space."""
        with self._vocab.use() as vocab:
            return lib.llama_vocab_get_text(vocab, token) or b""

    def _attrs(self) -> list[int]:
        """Of every token."""
        with self._vocab.use() as vocab:
            return [int(lib.llama_vocab_get_attr(vocab, token)) for token in range(self._n_vocab)]

    @functools.cached_property
    def _ends(self) -> tuple[list[Token], list[Token]]:
        """What ``add_special`` puts before a text and behind it."""
        both = self._tokenize(b"", True, False)
        with self._vocab.use() as vocab:
            n_first = 1 if len(both) > 1 or lib.llama_vocab_get_add_bos(vocab) else 0
        return both[:n_first], both[n_first:]

    @functools.cached_property
    def _cutters(self) -> tuple[Cutter, Cutter]:
        """For texts as they are, and for texts whose control tokens are read."""
        specials = {token: attr for token, attr in enumerate(self._attrs()) if attr & _SPECIAL}
        own = {token: attr for token, attr in specials.items() if not attr & _PARSED}
        return self._cutter(own), self._cutter(specials)

    def _cutter(self, attrs: dict[Token, int]) -> Cutter:
        """Where white space is taken away beside some special tokens, others of white space make cuts uncertain: none
        then."""
        texts = {token: self._text(token) for token in attrs}
        if any(attr & _STRIPS for attr in attrs.values()) and any(text != text.strip() for text in texts.values()):
            return Cutter((), ())
        movable = [texts[token] for token, attr in attrs.items() if not attr & lib.LLAMA_TOKEN_ATTR_LSTRIP]
        return Cutter(texts.values(), movable)

    def piece(self, token: Token, *, special: bool) -> bytes:
        """Raises IndexError outside the vocabulary."""
        if token < 0:
            raise IndexError(token)
        return (self._pieces_special if special else self._pieces)[token]

    def detokenize(self, tokens: Sequence[Token], *, special: bool) -> str:
        pieces = self._pieces_special if special else self._pieces
        return b"".join([pieces[token] for token in tokens]).decode("utf-8", "replace")

    @functools.cached_property
    def _pieces(self) -> list[bytes]:
        return self._read_pieces(special=False)

    @functools.cached_property
    def _pieces_special(self) -> list[bytes]:
        return self._read_pieces(special=True)

    def _read_pieces(self, *, special: bool) -> list[bytes]:
        with self._vocab.use() as vocab:
            return self._pieces_of(vocab, special)

    def _pieces_of(self, vocab: Any, special: bool) -> list[bytes]:
        buffer = ctypes.create_string_buffer(256)
        view = memoryview(buffer)
        pieces = []
        for token in range(self._n_vocab):
            n = lib.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                view = memoryview(buffer)
                n = lib.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
            pieces.append(bytes(view[:n]))
        return pieces
