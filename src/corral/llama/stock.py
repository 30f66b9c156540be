"""Owns samplers that take long to make: grammars, and DRY, which looks for its breakers in the whole vocabulary.

Who reads a request has them made on a thread of its own; the engine's thread, where all tasks would wait, finds them.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import llama_cpp.llama_cpp as lib

from corral.errors import InvalidRequest
from corral.llama import library
from corral.llama.grammar import check_grammar

MAX_READY_CHARS = 4_000_000
"""Characters of all grammars that are ready and that nobody has taken yet. One takes about 60 bytes."""
MAX_DRY = 8
"""DRY settings that are remembered: with unusual breakers each may take 16 MB."""


@dataclass(frozen=True, slots=True)
class Dry:
    """The settings of a DRY sampler, in libllama's terms."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int
    breakers: tuple[str, ...]


class Stock:
    """Samplers over one vocabulary, which must outlive it. Safe to use from several threads."""

    def __init__(self, vocab: Any) -> None:
        self._vocab = vocab
        self._lock = Lock()
        self._grammars: deque[tuple[str, Any]] = deque()
        self._dry: OrderedDict[Dry, Any] = OrderedDict()

    def prepare_grammar(self, text: str, n: int) -> None:
        """Have ``n`` samplers of a grammar ready. Raises InvalidRequest."""
        for _ in range(n):
            made = _new_grammar(self._vocab, text)
            with self._lock:
                self._grammars.append((text, made))
                while sum(len(text) for text, _ in self._grammars) > MAX_READY_CHARS:
                    lib.llama_sampler_free(self._grammars.popleft()[1])

    def grammar(self, text: str) -> Any:
        """A sampler of a grammar, made now if none is ready. Raises InvalidRequest."""
        with self._lock:
            ready = next((entry for entry in self._grammars if entry[0] == text), None)
            if ready is not None:
                self._grammars.remove(ready)
                return ready[1]
        return _new_grammar(self._vocab, text)

    def prepare_dry(self, settings: Dry) -> None:
        """Know these settings."""
        self._with_dry(settings, lambda sampler: None)

    def dry(self, settings: Dry) -> Any:
        """A copy of what was made for these settings, made now if it was not yet."""
        return self._with_dry(settings, lib.llama_sampler_clone)

    def _with_dry(self, settings: Dry, use: Callable[[Any], Any]) -> Any:
        """``use`` while it cannot be freed."""
        with self._lock:
            if settings in self._dry:
                self._dry.move_to_end(settings)
                return use(self._dry[settings])
        made = _new_dry(self._vocab, settings)
        with self._lock:
            if settings in self._dry:  # somebody was faster
                lib.llama_sampler_free(made)
            else:
                self._dry[settings] = made
            while len(self._dry) > MAX_DRY:
                lib.llama_sampler_free(self._dry.popitem(last=False)[1])
            return use(self._dry[settings])

    def close(self) -> None:
        """Free all. May be called twice."""
        with self._lock:
            for sampler in (*(made for _, made in self._grammars), *self._dry.values()):
                lib.llama_sampler_free(sampler)
            self._grammars.clear()
            self._dry.clear()


def _new_grammar(vocab: Any, text: str) -> Any:
    for name in sorted(check_grammar(text)):
        _check_token(vocab, name)
    with library.start().collect() as lines:
        grammar = lib.llama_sampler_init_grammar(vocab, text.encode("utf-8", "replace"), b"root")
    if not grammar:
        raise refused("; ".join(lines) or "failed to parse grammar")
    return grammar


def _check_token(vocab: Any, name: str) -> None:
    raw = name.encode("utf-8", "replace")
    tokens = (lib.llama_token * 2)()
    if lib.llama_tokenize(vocab, raw, len(raw), tokens, len(tokens), False, True) != 1:
        raise refused(f"failed to parse grammar: {name[:40]} is not one token of this model")


def refused(reason: str) -> InvalidRequest:
    """As llama-server says it."""
    return InvalidRequest(f"Failed to initialize samplers: {reason}")


def _new_dry(vocab: Any, settings: Dry) -> Any:
    breakers = [text.encode("utf-8", "replace") for text in settings.breakers]
    array = (ctypes.c_char_p * len(breakers))(*breakers)
    return lib.llama_sampler_init_dry(
        vocab,
        settings.multiplier,
        settings.base,
        settings.allowed_length,
        settings.last_n,
        array,
        len(breakers),
    )
