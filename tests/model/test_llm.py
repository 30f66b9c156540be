"""LLM over the demo model: real text, and everything given back at the end."""

from __future__ import annotations

import threading

import pytest

from corral import LLM, SamplingParams
from corral.errors import Closed

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def test_the_demo_answers_prompts_and_conversations_and_frees_everything() -> None:
    before = threading.active_count()
    with LLM(n_slots=2, n_ctx=512, n_threads=2, n_threads_batch=2) as llm:
        (count,) = llm.generate("1, 2, 3, 4, 5, 6,", GREEDY)
        assert count.text.startswith(" 7, 8, 9")
        paris, again = llm.chat([[{"role": "user", "content": "What is the capital of France?"}]] * 2, GREEDY)
        assert "Paris" in paris.text
        assert again.text == paris.text
        assert paris.timings.n_prompt + paris.timings.n_cached > 10
    assert threading.active_count() == before
    for ask in (lambda: llm.generate(["a"], GREEDY), lambda: llm.chat([{"role": "user", "content": "hi"}], GREEDY)):
        with pytest.raises(Closed, match="this LLM is closed"):
            ask()
