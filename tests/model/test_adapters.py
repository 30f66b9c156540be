"""Adapters on libllama: what each request gets in the company of others is what it gets alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.model.tiny import write_tiny_lora

from corral.errors import InvalidRequest
from corral.llm import LLM, SamplingParams

INVOCATION = "@@!"
PROMPT = "a long text before the question, "


@pytest.fixture(scope="module")
def llm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """Two ordinary adapters, of which the second starts with scale 0, and an aLoRA with scale 0."""
    path = tmp_path_factory.mktemp("adapters")
    invocation = tuple(259 + ord(char) - 32 for char in INVOCATION)
    first = write_tiny_lora(path / "first.gguf")
    second = write_tiny_lora(path / "second.gguf", seed=2)
    alora = write_tiny_lora(path / "alora.gguf", seed=3, invocation=invocation)
    options = {"n_threads": 1, "audit": True, "type_k": "f32", "type_v": "f32", "flash_attn": False}
    with LLM(tiny_model, n_slots=6, n_ctx=2048, lora=[first, (second, 0.0), (alora, 0.0)], **options) as loaded:
        yield loaded


def greedy(lora: dict[int, float] | None) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, lora=lora)


def test_s11_s18_requests_with_different_adapters_get_together_what_they_get_alone(llm: LLM) -> None:
    sets: list[dict[int, float] | None] = [None, {}, {0: 1.0}, {0: 0.5}, {1: 1.0}, {0: 1.0, 1: -1.0}, {2: 1.0}]
    prompts = [PROMPT + INVOCATION + "x", PROMPT + "without it"]
    asked = [(prompt, greedy(lora)) for prompt in prompts for lora in sets]
    alone = [llm.generate(prompt, params)[0].tokens for prompt, params in asked]
    together = [c.tokens for c in llm.generate([p for p, _ in asked], [params for _, params in asked])]
    assert together == alone
    for_first = dict(zip(map(str, sets), alone[: len(sets)], strict=True))
    assert for_first["None"] == for_first["{0: 1.0}"]  # as the adapters were given
    assert len(set(alone[: len(sets)])) == len(sets) - 1
    for_second = alone[len(sets) :]
    assert for_second[-1] == for_second[1]  # an aLoRA that is not activated


def test_s11_an_alora_begins_at_its_activation_on_the_cache_of_the_base(llm: LLM) -> None:
    prompt = "another long text before the question " * 2
    n_base = llm.generate(prompt, greedy({}))[0].timings.n_prompt
    (end,) = llm.generate(prompt + INVOCATION, greedy({2: 1.0}))
    assert end.timings.n_cached == n_base
    (again,) = llm.generate(prompt + INVOCATION + " more", greedy({2: 1.0}))
    assert again.timings.n_cached > n_base


def test_adapters_that_cannot_be_used_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="no adapter with id 3; ids are 0 to 2"):
        llm.generate("x", greedy({3: 1.0}))
