"""Owns the way between text and tokens."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib

from corral.ids import Token


class LlamaTokenizer:
    """libllama's tokenizer over a loaded vocabulary, which it does not own. Safe to use from several threads."""

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self._n_vocab = int(lib.llama_vocab_n_tokens(vocab))

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[Token]:
        """Lone surrogates in ``text`` become "?". Raises ValueError if libllama cannot."""
        raw = text.encode("utf-8", "replace")
        n = self._tokenize(raw, buffer := (lib.llama_token * (len(raw) + 8))(), add_special, parse_special)
        if n < 0:
            n = self._tokenize(raw, buffer := (lib.llama_token * -n)(), add_special, parse_special)
        if n < 0:
            raise ValueError("the text cannot be tokenized")
        return list(buffer[:n])

    def _tokenize(self, raw: bytes, buffer: Any, add_special: bool, parse_special: bool) -> int:
        return int(lib.llama_tokenize(self._vocab, raw, len(raw), buffer, len(buffer), add_special, parse_special))

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
        buffer = ctypes.create_string_buffer(256)
        view = memoryview(buffer)
        pieces = []
        for token in range(self._n_vocab):
            n = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                view = memoryview(buffer)
                n = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
            pieces.append(bytes(view[:n]))
        return pieces
