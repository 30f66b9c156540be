"""Texts that a grammar forces as tokens of the model."""

from __future__ import annotations

import time

import pytest
from tests.api.canned import INFO, ByteTokenizer

from corral.guidance.vocabulary import Vocabulary


class Spaced(ByteTokenizer):
    """Puts a space in front, as some do."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return super().tokenize(f" {text}", add_special=add_special, parse_special=parse_special)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), Spaced()])
@pytest.mark.parametrize("data", [b"", b"plain", "é\n".encode(), b"\xff\xfe not UTF-8"])
def test_the_bytes_are_those_of_the_text(tokenizer: ByteTokenizer, data: bytes) -> None:
    vocabulary = Vocabulary(tokenizer, INFO)
    assert b"".join(vocabulary.tokens[token] for token in vocabulary(data)) == data


def test_long_bytes_that_are_no_text_are_read_in_one_go() -> None:
    vocabulary, data = Vocabulary(ByteTokenizer(), INFO), b"\xff" * 60_000
    start_s = time.thread_time()
    assert vocabulary(data) == list(data)
    assert time.thread_time() - start_s < 10, "the time grows with the square of the length"
