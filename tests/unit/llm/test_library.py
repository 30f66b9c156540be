"""LLM over the simulated model: order, limits, streams, and the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.api.live import until
from tests.unit.llm.simulated import WatchedLLM, simulated_llm

from corral import LLM, SamplingParams
from corral.engine.state import SlotState
from corral.errors import Closed, ExceedContext, InvalidRequest, LoadError, Unavailable


def test_importing_corral_loads_neither_libllama_nor_the_server() -> None:
    code = "import corral, sys; print([m for m in ('llama_cpp', 'fastapi', 'numpy') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"


def test_an_unknown_option_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(TypeError, match="n_slotz"):
        LLM("nowhere.gguf", n_slotz=3)


@pytest.mark.parametrize(("name", "value"), [("n_slots", "4"), ("n_ctx", 4096.5), ("context_shift", 1)])
def test_an_option_of_a_wrong_type_is_named_before_anything_is_loaded(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name}: must be .* but is {value!r}"):
        LLM("nowhere.gguf", **{name: value})  # type: ignore[arg-type]


def test_one_adapter_needs_no_list(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    with pytest.raises(LoadError, match=r"cannot load nowhere\.gguf"):
        LLM(model, lora="nowhere.gguf")


@pytest.fixture
def llm() -> Iterator[WatchedLLM]:
    with simulated_llm() as made:
        yield made


GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def test_results_are_in_input_order_however_many_there_are(llm: LLM) -> None:
    prompts = [[7 + i, 8, 9] for i in range(40)]
    completions = llm.generate(prompts, GREEDY)
    assert [completion.prompt_index for completion in completions] == list(range(40))
    assert [len(completion.tokens) for completion in completions] == [6] * 40
    assert {completion.finish_reason for completion in completions} == {"length"}
    alone = [llm.generate(prompt, GREEDY)[0].tokens for prompt in (prompts[0], prompts[17], prompts[39])]
    assert alone == [completions[i].tokens for i in (0, 17, 39)]


def test_each_prompt_can_have_its_own_parameters(llm: LLM) -> None:
    each = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 5, 2)]
    assert [len(done.tokens) for done in llm.generate([[5], [6], [7]], each)] == [1, 5, 2]
    with pytest.raises(InvalidRequest, match="3 prompts, but 1 sampling parameters"):
        llm.generate([[5], [6], [7]], each[:1])


def test_parameters_that_are_none_are_the_defaults_and_others_are_refused(llm: LLM) -> None:
    assert len(llm.generate([5], None)) == 1
    assert all(done.finish_reason for done in llm.generate([[5], [6]], [GREEDY, None]))
    for bad in ({"max_tokens": 4}, 5, [GREEDY, {}]):
        with pytest.raises(InvalidRequest, match=r"^params: must be SamplingParams or a list of them, but is"):
            llm.generate([[5], [6]], bad)  # type: ignore[arg-type]

    async def streamed() -> None:
        async for _ in llm.stream([5], {"max_tokens": 4}):  # type: ignore[arg-type]
            pass

    with pytest.raises(InvalidRequest, match=r"^params: must be SamplingParams"):
        asyncio.run(streamed())


def test_choices_of_a_prompt_stand_together(llm: LLM) -> None:
    completions = llm.generate([[5, 6], [6, 7]], SamplingParams(n=2, max_tokens=3, seed=1, ignore_eos=True))
    assert [(done.prompt_index, done.index) for done in completions] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(InvalidRequest, match="n must be between 1 and the number of slots"):
        llm.generate([5], SamplingParams(n=4))


def test_one_prompt_as_text_or_tokens_is_not_a_list_of_prompts(llm: LLM) -> None:
    assert len(llm.generate("ab", GREEDY)) == 1
    assert len(llm.generate([97, 98], GREEDY)) == 1
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize("prompts", [[[]], [[5], []], [[5.5]], [None], 5, [[True]], [["a"]]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^prompts?: must be text or a list of token ids"):
        llm.generate(prompts, GREEDY)


def test_a_prompt_that_cannot_fit_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(ExceedContext):
        llm.generate([[5], [6] * 5000], GREEDY)
    with pytest.raises(InvalidRequest, match="invalid tokens"):
        llm.generate([[5], [-1]], GREEDY)
    assert len(llm.generate([5], GREEDY)) == 1


def test_generating_works_while_a_loop_runs(llm: LLM) -> None:
    async def inside() -> int:
        return len(llm.generate([[5], [6]], GREEDY))

    assert asyncio.run(inside()) == 2


def test_a_stream_gives_the_same_text(llm: LLM) -> None:
    async def streamed() -> str:
        return "".join([chunk.text async for chunk in llm.stream([5, 6, 7], GREEDY)])

    assert asyncio.run(streamed()) == llm.generate([5, 6, 7], GREEDY)[0].text


def test_leaving_a_stream_frees_its_slot(llm: LLM) -> None:
    async def leave() -> None:
        endless = SamplingParams(max_tokens=None, ignore_eos=True)
        chunks = llm.stream([5, 6, 7], endless)
        await anext(chunks)
        await chunks.aclose()

    asyncio.run(leave())
    assert len(llm.generate([[i] for i in range(5, 12)], GREEDY)) == 7


def test_closing_twice_is_harmless_and_ends_the_thread(llm: LLM) -> None:
    llm.generate([5], GREEDY)
    llm.close()
    llm.close()
    with pytest.raises(Unavailable):
        llm.generate([5], GREEDY)


def test_a_closed_llm_says_so(llm: LLM) -> None:
    llm.close()

    async def stream() -> None:
        async for _ in llm.stream("ab", GREEDY):
            pass

    asked: list[Callable[[], object]] = [
        lambda: llm.generate(["a"], GREEDY),
        lambda: llm.generate([], GREEDY),
        lambda: llm.chat([{"role": "user", "content": "hi"}], GREEDY),
        lambda: asyncio.run(stream()),
        llm.__enter__,
    ]
    for ask in asked:
        with pytest.raises(Closed, match="this LLM is closed"):
            ask()


def test_an_urgent_prompt_takes_the_slot_of_one_that_runs() -> None:
    with simulated_llm(n_slots=1, n_ctx=16384) as llm, ThreadPoolExecutor(1) as pool:
        long = pool.submit(llm.generate, [7, 8], SamplingParams(max_tokens=4000, ignore_eos=True))
        until(lambda: llm.state.slots[0].state is SlotState.GENERATING, "the long one runs")
        (urgent,) = llm.generate([5], replace(GREEDY, priority=1))
        assert len(urgent.tokens) == 6 and not long.done()
        (done,) = long.result(60)
    assert len(done.tokens) == 4000 and done.timings.n_parked == 1


def test_urgent_prompts_of_a_batch_go_first() -> None:
    with simulated_llm(n_slots=1) as llm:
        each = [replace(GREEDY, priority=i % 3) for i in range(9)]
        completions = llm.generate([[7 + i] for i in range(9)], each)
        assert [completion.prompt_index for completion in completions] == list(range(9))
        assert llm.submitted == [2, 2, 2, 1, 1, 1, 0, 0, 0]
        with pytest.raises(InvalidRequest, match="priority: must be a whole number from -100 to 100, but is 101"):
            SamplingParams(priority=101)


def test_prefixes_are_shared_with_the_same_salt_only(llm: LLM) -> None:
    prompt = [3 + i % 200 for i in range(90)]

    def n_cached(params: SamplingParams) -> int:
        return llm.generate(prompt, params)[0].timings.n_cached

    one, other = replace(GREEDY, cache_salt="one"), replace(GREEDY, cache_salt="other")
    assert [n_cached(one), n_cached(other), n_cached(GREEDY)] == [0, 0, 0]
    assert [n_cached(params) > 0 for params in (one, other, GREEDY, replace(one, cache_prompt=False))] == [
        True,
        True,
        True,
        False,
    ]


def test_log_probabilities_of_prompts(llm: LLM) -> None:
    prompt = [3 + i % 200 for i in range(40)]
    first, second = llm.generate(prompt, replace(GREEDY, prompt_logprobs=2, n=2))
    assert [entry.token for entry in first.prompt_logprobs] == prompt[1:]
    assert all(len(entry.top) == 2 and entry.p <= entry.top[0][1] for entry in first.prompt_logprobs)
    assert second.prompt_logprobs == first.prompt_logprobs
    assert llm.generate(prompt, GREEDY)[0].prompt_logprobs == ()


def test_text_is_one_of_the_choices(llm: LLM) -> None:
    texts = ["yes", "no", 'the "third"\n']
    done = llm.generate([[i] for i in range(5, 15)], SamplingParams(choice=texts, temperature=30.0, top_k=0))
    assert {completion.text for completion in done} <= set(texts) and len({one.text for one in done}) > 1
    assert {completion.finish_reason for completion in done} == {"stop"}
