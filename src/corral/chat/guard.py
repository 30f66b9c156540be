"""Keeps texts of users from becoming control tokens.

Before rendering, a mark that no text holds is put inside everything that could be read as a control token. After
rendering, stretches with such a mark are tokenized as text; what the template wrote keeps its control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from corral.chat.adapt import Message
from corral.ids import Token
from corral.ports import ModelInfo, Tokenizer
from corral.words import words_pattern

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Characters that Unicode keeps for inner use of programs."""

_FREE_TEXT = frozenset({"content", "text", "reasoning_content", "thinking", "description"})
_CHOSEN_WORDS = frozenset({"role", "type"})


@dataclass(frozen=True, slots=True)
class Guarded:
    """Values with ``mark`` in what looks like control tokens; "" where nothing did."""

    messages: list[Message]
    tools: list[object]
    mark: str = ""

    def clean(self, text: str) -> str:
        return text.replace(self.mark, "") if self.mark else text


class Guard:
    """``controls`` are the texts of all control tokens. ``thoughts``: those of them that assistants may well repeat."""

    def __init__(self, controls: Iterable[str], thoughts: Iterable[str] = ()) -> None:
        self._all = _Words(controls)
        self._said = _Words(set(self._all.words) - set(thoughts))

    def protect(self, messages: Sequence[Message], tools: Sequence[object]) -> Guarded:
        """Nothing is copied where nothing looks like a control token."""
        if not any(self._is_suspect(value) for value in (*messages, *tools)):
            return Guarded(list(messages), list(tools))
        everything = "".join(text for value in (*messages, *tools) for text, _ in _texts(value))
        mark = next((mark for mark in _MARKS if mark not in everything), _MARKS[0])
        marked = [self._marked(message, mark, self._words(message)) for message in messages]
        return Guarded(marked, [self._marked(tool, mark, self._all) for tool in tools], mark)  # type: ignore[arg-type]

    def tokens(self, text: str, mark: str, info: ModelInfo, tokenizer: Tokenizer) -> tuple[Token, ...]:
        """The tokens of a rendered prompt; a beginning-of-text token that the template printed is not doubled."""
        if info.add_bos and info.bos_token is not None:
            text = text.removeprefix(tokenizer.piece(info.bos_token, special=True).decode("utf-8", "replace"))
        if not mark:
            return tuple(tokenizer.tokenize(text, add_special=True, parse_special=True))
        tokens: list[Token] = []
        for i, (part, is_template) in enumerate(self._stretches(text, mark)):
            tokens += tokenizer.tokenize(part, add_special=i == 0, parse_special=is_template)
        return tuple(tokens)

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """A text in parts, each with whether it is a control token."""
        parts: list[tuple[str, bool]] = []
        at = 0
        for start, end in (*self._all.between(text), (len(text), len(text))):
            if at < start:
                parts += [(word, True) for word in self._all.found(text[at:start])]
            if start < end:
                parts.append((text[start:end], False))
            at = end
        return parts

    def _stretches(self, text: str, mark: str) -> list[tuple[str, bool]]:
        """The text in parts, without marks, each with whether control tokens in it are the template's."""
        parts: list[tuple[str, bool]] = []
        at = 0
        for start, end in self._all.between(text):
            if mark in text[start:end]:
                if at < start:
                    parts.append((text[at:start], True))
                parts.append((text[start:end].replace(mark, ""), False))
                at = end
        if at < len(text) or not parts:
            parts.append((text[at:], True))
        return parts

    def _words(self, message: object) -> _Words:
        return self._said if isinstance(message, dict) and message.get("role") == "assistant" else self._all

    def _is_suspect(self, value: object) -> bool:
        words = self._words(value)
        return any(words.mark(text, "\0", is_free) is not text for text, is_free in _texts(value))

    def _marked(self, value: object, mark: str, words: _Words, key: str = "") -> object:
        if isinstance(value, str):
            return value if key in _CHOSEN_WORDS else words.mark(value, mark, key in _FREE_TEXT)
        if isinstance(value, Mapping):
            return {words.mark(k, mark, False): self._marked(v, mark, words, k) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(item, mark, words, key) for item in value]
        return value


def control_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of all control tokens: those that print nothing unless asked to."""
    tokens = [token for token in range(tokenizer.n_vocab) if not tokenizer.piece(token, special=False)]
    pieces = [tokenizer.piece(token, special=True).decode("utf-8", "replace") for token in tokens]
    return [piece for piece in pieces if piece]


def _texts(value: object, key: str = "") -> Iterable[tuple[str, bool]]:
    """All texts in a JSON value, keys included, each with whether it is free text."""
    if isinstance(value, str):
        if key not in _CHOSEN_WORDS:
            yield value, key in _FREE_TEXT
    elif isinstance(value, Mapping):
        for k, v in value.items():
            yield k, False
            yield from _texts(v, k)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, key)


class _Words:
    """Texts of control tokens, to be found in other texts."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = sorted({word for word in words if len(word) > 1 and word.strip()})
        self._pattern = re.compile(words_pattern(self.words)) if self.words else None
        self._heads = {word[:n] for word in self.words for n in range(1, len(word))}
        self._tails = {word[n:] for word in self.words for n in range(1, len(word))}
        self._n_max = max(map(len, self.words), default=0)

    def mark(self, text: str, mark: str, is_free: bool) -> str:
        """The text with ``mark`` in every control token, and, in free text, in what is part of one at its ends: two
        texts may meet. The same object where there is none."""
        if self._pattern is None:
            return text
        if is_free:
            text = self._mark_ends(text, mark)
        while self._pattern.search(text):  # tokens may overlap: again until none is left
            text = self._pattern.sub(lambda match: f"{match[0][0]}{mark}{match[0][1:]}", text)
        return text

    def _mark_ends(self, text: str, mark: str) -> str:
        """Templates may strip white space: the ends are those of the text without it."""
        core = text.strip()
        before, after = text[: text.index(core)], text[text.index(core) + len(core) :]
        n_most = min(self._n_max - 1, len(core))
        heads = [n for n in range(n_most, 0, -1) if core[-n:] in self._heads]
        tails = [n for n in range(n_most, 0, -1) if core[:n] in self._tails]
        if not heads and not tails:
            return text
        for n in heads:
            at = len(core) - n + 1
            core = core[:at] + mark + core[at:]
        for n in tails:
            at = 1 if n > 1 else 0
            core = core[:at] + mark + core[at:]
        return before + core + after

    def found(self, text: str) -> list[str]:
        """The control tokens in a text."""
        return self._pattern.findall(text) if self._pattern else []

    def between(self, text: str) -> Iterable[tuple[int, int]]:
        """The spans between control tokens."""
        at = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if at < match.start():
                yield at, match.start()
            at = match.end()
        if at < len(text):
            yield at, len(text)
