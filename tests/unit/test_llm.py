"""LLM over the simulated model: order, limits, streams, and the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from corral import LLM, SamplingParams
from corral.config import ContextConfig, EngineConfig
from corral.errors import ExceedContext, InvalidRequest, Unavailable
from corral.runtime import Runtime
from corral.tasks import Limits, Sampling


def test_importing_corral_loads_neither_libllama_nor_the_server() -> None:
    code = "import corral, sys; print([m for m in ('llama_cpp', 'fastapi', 'numpy') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"


def test_an_unknown_option_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(TypeError, match="n_slotz"):
        LLM("nowhere.gguf", n_slotz=3)


def test_parameters_default_to_the_server_sampling() -> None:
    assert SamplingParams().sampling() == Sampling()


def test_parameters_are_translated() -> None:
    params = SamplingParams(
        max_tokens=None, temperature=0, top_k=-1, stop="END", repetition_penalty=1.2, logprobs=3, logit_bias={7: -1.0}
    )
    sampling = params.sampling()
    assert (sampling.temperature, sampling.top_k, sampling.repeat_penalty) == (0, 0, 1.2)
    assert (sampling.n_probs, sampling.logit_bias) == (3, ((7, -1.0),))
    assert params.limits() == Limits(n_predict=-1, stop=("END",))
    assert SamplingParams(max_tokens=0, stop=["a", ""]).limits() == Limits(n_predict=0, stop=("a",))


@pytest.fixture
def llm() -> Iterator[LLM]:
    context = ContextConfig(n_ctx=1024, n_slots=3, n_rows=5, n_batch=64, n_ubatch=64)
    with LLM.over(Runtime.simulated(context, EngineConfig(n_slots=3, max_queue=8, audit=True))) as made:
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


def test_choices_of_a_prompt_stand_together(llm: LLM) -> None:
    completions = llm.generate([[5, 6], [6, 7]], SamplingParams(n=2, max_tokens=3, seed=1, ignore_eos=True))
    assert [(done.prompt_index, done.index) for done in completions] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(InvalidRequest, match="n must be between 1 and the number of slots"):
        llm.generate([5], SamplingParams(n=4))


def test_one_prompt_as_text_or_tokens_is_not_a_list_of_prompts(llm: LLM) -> None:
    assert len(llm.generate("ab", GREEDY)) == 1
    assert len(llm.generate([97, 98], GREEDY)) == 1
    assert llm.generate([], GREEDY) == []


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
