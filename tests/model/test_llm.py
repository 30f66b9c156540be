"""LLM over the demo model: real text, and everything given back at the end."""

from __future__ import annotations

import threading

from corral import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def test_the_demo_answers_prompts_and_conversations_and_frees_everything() -> None:
    before = threading.active_count()
    with LLM(n_slots=2, n_ctx=512, n_threads=2, n_threads_batch=2) as llm:
        first, second = llm.generate(["The capital of France is", "2, 4, 6, 8,"], GREEDY)
        assert "Paris" in first.text
        assert "10" in second.text
        (answer,) = llm.chat([{"role": "user", "content": "Say hello."}], GREEDY)
        assert answer.text.strip()
        assert answer.timings.n_prompt + answer.timings.n_cached > 10
    assert threading.active_count() == before
