"""The disk tier under a real model: the next process goes on where the last one ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.model.test_pressure import EXACT

from corral.config import ContextConfig, ModelConfig
from corral.llama.fingerprint import fingerprint
from corral.llama.model import LlamaModel
from corral.llm import LLM, SamplingParams
from corral.runtime import state_identity

pytestmark = pytest.mark.timeout(600)
TOPICS = ("a llama on a hill", "a ship without a sail")
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


def prompts(n_words: int) -> list[str]:
    return [f"Write about {topic}. " + " ".join(f"Idea {i} of {topic}." for i in range(n_words)) for topic in TOPICS]


def serving(path: Path, folder: Path, **options: object) -> LLM:
    return LLM(path, n_slots=2, n_ctx=1024, n_threads=1, cache_disk=folder, **EXACT, **options)


def test_after_a_restart_conversations_go_on_from_disk(smollm2_f32: Path, tmp_path: Path) -> None:
    with serving(smollm2_f32, tmp_path, cache_ram_bytes=0) as llm:
        first = llm.generate(prompts(6), GREEDY)
    files = os.listdir(tmp_path)
    assert len(files) == len(TOPICS)
    longer = [prompt + done.text + " And then" for prompt, done in zip(prompts(6), first, strict=True)]
    with serving(smollm2_f32, tmp_path) as llm:
        second = llm.generate(longer, GREEDY)
        assert llm._runtime.engine.snapshot.counters.n_fetched == len(TOPICS)
    with serving(smollm2_f32, tmp_path / "empty") as llm:
        cold = llm.generate(longer, GREEDY)
    for done, alone in zip(second, cold, strict=True):
        assert done.timings.n_cached > 60
        assert done.timings.n_prompt <= 63 + 10  # what is new, and what fills a tile of the kernel
        assert done.text == alone.text


def test_the_identity_changes_with_everything_that_the_bytes_depend_on(tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    raw = bytearray(tiny_model.read_bytes())
    raw[-1] ^= 1
    other.write_bytes(raw)
    assert fingerprint(other) != fingerprint(tiny_model)
    (tmp_path / "copy.gguf").write_bytes(tiny_model.read_bytes())
    assert fingerprint(tmp_path / "copy.gguf") == fingerprint(tiny_model)
    shapes = [
        ContextConfig(n_ctx=512, n_slots=2, n_rows=2, kv_unified=unified, type_k=kind, flash_attn=flash, n_threads=1)
        for unified, kind, flash in (
            (True, "f16", None),
            (False, "f16", None),
            (True, "f32", None),
            (True, "f16", False),
        )
    ]
    shapes.append(ContextConfig(n_ctx=512, n_slots=3, n_rows=3, kv_unified=False, n_threads=1))
    model = LlamaModel.load(ModelConfig(tiny_model))
    found = set()
    for shape in shapes:
        context = model.new_context(shape)
        found.add(state_identity(model.info, shape, context.traits))
        context.close()
    model.close()
    assert len(found) == len(shapes)
