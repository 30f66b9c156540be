"""Prompt forms."""

from __future__ import annotations

import pytest
from tests.api.canned import BOS, EOS, N_VOCAB, ByteTokenizer

from corral.api.schemas.fields import Fields
from corral.api.schemas.prompt import read_prompts
from corral.errors import InvalidRequest


def read(prompt: object) -> list[tuple[int, ...]]:
    return read_prompts(Fields({"prompt": prompt}), ByteTokenizer(), 1024)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab<eos>", [(BOS, 97, 98, EOS)]),
        ("", [(BOS,)]),
        ([1, 2, 3], [(1, 2, 3)]),
        (["a", 5, "b"], [(BOS, 97, 5, 98)]),
        ([5, "a"], [(5, 97)]),
        (["a", "b"], [(BOS, 97), (BOS, 98)]),
        ([[1, 2], "b", ["c", 3]], [(1, 2), (BOS, 98), (BOS, 99, 3)]),
        ({"prompt_string": "a"}, [(BOS, 97)]),
        ([{"prompt_string": "a"}, "b"], [(BOS, 97), (BOS, 98)]),
    ],
)
def test_forms(prompt: object, prompts: list[tuple[int, ...]]) -> None:
    assert read(prompt) == prompts


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], '"prompt" must not be empty'),
        ([[]], '"prompt" must not be empty'),
        (None, "key 'prompt' not found"),
        (5, "elements must be"),
        (True, "elements must be"),
        ([1, True], "elements must be"),
        ([1.5], "elements must be"),
        ([1, [2]], "elements must be"),
        ([["a", "b"]], "elements must be"),
        ({}, "elements must be"),
        ([-1], "Prompt contains invalid tokens"),
        ([N_VOCAB], "Prompt contains invalid tokens"),
        ({"prompt_string": "a", "multimodal_data": ["aGk="]}, "does not support multimodal"),
    ],
)
def test_refusals(prompt: object, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read(prompt)
