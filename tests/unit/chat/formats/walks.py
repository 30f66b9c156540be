"""Random walks through what a grammar allows, which come to an end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
from tests.api.canned import BOS, EOS, INFO, ByteTokenizer

from corral.chat.formats.base import Format
from corral.chat.formats.gemma import QUOTE
from corral.chat.formats.minimax import MARK
from corral.guidance.guide import Guide
from corral.tasks import Constraint

_LETTERS = frozenset(b"abcxyz0179 -.<\n{]")
FREE = 20
"""A place where more bytes than these may come is one within text."""


class MarkTokenizer(ByteTokenizer):
    """Bytes, and a control token for each mark."""

    def __init__(self, marks: Sequence[str]) -> None:
        self.marks = sorted(marks, key=len, reverse=True)
        self.n_vocab = EOS + 1 + len(self.marks)
        self._pattern = re.compile("(" + "|".join(map(re.escape, self.marks)) + ")") if marks else re.compile("(?!)")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if not parse_special:
            return super().tokenize(text, add_special=add_special, parse_special=False)
        tokens = [BOS] if add_special else []
        for part in filter(None, self._pattern.split(text)):
            tokens += [EOS + 1 + self.marks.index(part)] if part in self.marks else list(part.encode())
        return tokens

    def piece(self, token: int, *, special: bool) -> bytes:
        if token <= EOS:
            return super().piece(token, special=special)
        return self.marks[token - EOS - 1].encode() if special else b""

    def literal(self, text: str) -> str:
        """As ``ChatModel`` writes texts of a grammar."""
        terms = []
        for part in filter(None, self._pattern.split(text)):
            is_mark = part in self.marks
            terms.append(f"<[{EOS + 1 + self.marks.index(part)}]>" if is_mark else json.dumps(part, ensure_ascii=False))
        return " ".join(terms)


class Walker:
    """Walks for one vocabulary. ``exits`` are texts that may end free text."""

    def __init__(self, tokenizer: MarkTokenizer, exits: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.guide = Guide(tokenizer, replace(INFO, n_vocab=tokenizer.n_vocab))
        self.exits = [
            tokenizer.tokenize(text, add_special=False, parse_special=True) for text in ('"', ":", ">", "=", *exits)
        ]

    def walk(self, constraint: Constraint, seed: int) -> str:
        """A whole text that the constraint takes. Fails if it does not come to its end."""
        random, held, taken = Random(seed), self.guide.matcher(constraint), []
        for n in range(3000):
            if held.is_complete:
                break
            allowed = np.flatnonzero(held.allowed().flags).tolist()
            if EOS in allowed and (random.random() < 0.4 or n > 300 or len(allowed) == 1):
                break
            for token in self._step(held, [t for t in allowed if t not in (BOS, EOS)], random, n):
                held.accept(token)
                taken.append(token)
        else:
            raise AssertionError(f"no end: {self.tokenizer.detokenize(taken, special=True)!r}")
        return self.tokenizer.detokenize(taken, special=True)

    def _step(self, held, allowed: list[int], random: Random, n: int) -> list[int]:
        if len(allowed) <= FREE:
            ends = [t for t in allowed if t > EOS or chr(t) in '}])<"/'] if n > 150 else []
            plain = [t for t in allowed if t > EOS or not chr(t).isspace()]
            return [random.choice(ends or (plain if random.random() < 0.8 and plain else allowed))]
        if random.random() < 0.4 or n > 150:
            exits = [one for one in self.exits if self._leaves(held, one)]
            if exits:
                return random.choice(exits)
        letters = [t for t in allowed if t in _LETTERS]
        return [random.choice(letters or allowed)]

    def _leaves(self, held, tokens: list[int]) -> bool:
        text = b"".join(self.tokenizer.piece(token, special=True) for token in tokens)
        matcher = held._matcher
        n = int(matcher.validate_tokens([*tokens, *b"zq"]))
        return len(tokens) <= n < len(tokens) + 2 and bool(text)


def exits_of(format: Format) -> list[str]:
    """Marks that may end text."""
    calls = getattr(format, "calls", None)
    found = {*format.marks, getattr(calls, "value_end", ""), "]]>", QUOTE, MARK, "'"}
    return sorted(found - {""})
