"""LLM.chat: what templates get, what replies are held to, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.api.canned import TEMPLATE, WEATHER
from tests.unit.llm.simulated import WatchedLLM, simulated_llm

from corral import SamplingParams
from corral.errors import ExceedContext, InvalidRequest, LoadError

ASK = [{"role": "user", "content": "hi"}]
FEW = SamplingParams(max_tokens=2)
PICK: Any = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"n": {"enum": [1, 2]}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def llm() -> Iterator[WatchedLLM]:
    with simulated_llm() as made:
        yield made


def prompt(llm: WatchedLLM) -> str:
    return llm._runtime.model.tokenizer.detokenize(llm.tasks[-1].prompt, special=True)


def test_one_conversation_or_several(llm: WatchedLLM) -> None:
    assert len(llm.chat(ASK, FEW)) == 1
    several = llm.chat([ASK, ASK, ASK], [replace(FEW, n=n) for n in (1, 2, 1)])
    assert [(done.prompt_index, done.index) for done in several] == [(0, 0), (1, 0), (1, 1), (2, 0)]
    with pytest.raises(InvalidRequest, match="2 prompts, but 1 sampling parameters"):
        llm.chat([ASK, ASK], [FEW])
    with pytest.raises(ExceedContext):
        llm.chat([ASK, [{"role": "user", "content": "x" * 5000}]], FEW)
    with pytest.raises(InvalidRequest, match="'messages' must not be empty"):
        llm.chat([], FEW)


@pytest.mark.parametrize("messages", ["hi", {"role": "user", "content": "hi"}, None])
def test_what_is_no_conversation_is_refused(llm: WatchedLLM, messages: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^messages: must be a list of messages, or a list of such lists, but is"):
        llm.chat(messages, FEW)


def test_a_template_that_prints_nothing_of_a_conversation_is_refused(llm: WatchedLLM) -> None:
    llm.chat(ASK, FEW, chat_template="llama3")
    with pytest.raises(InvalidRequest, match=r"^chat_template: must be Jinja or a name such as llama3, but is 'lama3'"):
        llm.chat(ASK, FEW, chat_template="lama3")


def test_a_template_and_its_variables(llm: WatchedLLM) -> None:
    llm.chat(ASK, FEW, chat_template=TEMPLATE)
    assert prompt(llm).endswith("<|user|>hi<|assistant|>")
    llm.chat(ASK, FEW, chat_template=TEMPLATE, chat_template_kwargs={"enable_thinking": False})
    assert prompt(llm).endswith("<|user|>hi<|assistant|><think></think>")
    llm.chat(ASK, FEW, chat_template=TEMPLATE, add_generation_prompt=False)
    assert prompt(llm).endswith("<|user|>hi")
    with pytest.raises(LoadError):
        llm.chat(ASK, FEW, chat_template="{% if %}")


def test_the_last_message_goes_on(llm: WatchedLLM) -> None:
    begun = [*ASK, {"role": "assistant", "content": "Well,"}]
    llm.chat(begun, FEW, chat_template=TEMPLATE, add_generation_prompt=False, continue_final_message=True)
    assert prompt(llm).endswith("<|user|>hi<|assistant|>Well,")
    with pytest.raises(InvalidRequest, match="add_generation_prompt"):
        llm.chat(begun, FEW, continue_final_message=True)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_tools_are_called(llm: WatchedLLM, choice: Any) -> None:
    (done,) = llm.chat(ASK, SamplingParams(max_tokens=200), tools=[PICK], tool_choice=choice, parallel_tool_calls=False)
    assert done.reply is not None and done.finish_reason == "tool_calls"
    (call,) = done.reply.calls
    assert call.name == "pick" and json.loads(call.arguments)["n"] in (1, 2) and call.id
    assert '"pick"' in done.text, "the text is all that was written"


def test_tools_stand_in_the_prompt_and_must_be_right(llm: WatchedLLM) -> None:
    (done,) = llm.chat(ASK, FEW, tools=[WEATHER], tool_choice="none", chat_template=TEMPLATE)
    assert '"name": "weather"' in prompt(llm) and done.reply is not None and not done.reply.calls
    with pytest.raises(InvalidRequest, match="no tool is called 'x'"):
        llm.chat(ASK, FEW, tools=[PICK], tool_choice={"type": "function", "function": {"name": "x"}})
    for held in (SamplingParams(regex="a"), SamplingParams(grammar='root ::= "a"')):
        with pytest.raises(InvalidRequest):
            llm.chat(ASK, held, tools=[PICK])


def test_what_text_is_held_to_acts_behind_thoughts(llm: WatchedLLM) -> None:
    """llama.cpp#22537, llama.cpp#28182, llama.cpp#13867: the schema would hold the thoughts."""
    (done,) = llm.chat(ASK, SamplingParams(regex="ab", thinking_token_budget=5), chat_template=TEMPLATE)
    constraint = llm.tasks[-1].sampling.constraint
    assert constraint is not None and (constraint.after, constraint.opener) == ("</think>", "<think>")
    assert done.reply is not None and done.reply.content == "ab"


def test_a_budget_for_thoughts(llm: WatchedLLM) -> None:
    budget = replace(FEW, thinking_token_budget=7)
    llm.chat(ASK, budget, chat_template=TEMPLATE)
    thoughts = llm.tasks[-1].sampling.thoughts
    assert thoughts is not None and thoughts.n_tokens == 7
    llm.chat(ASK, FEW, chat_template=TEMPLATE)
    assert llm.tasks[-1].sampling.thoughts is None
    with pytest.raises(InvalidRequest, match="use chat"):
        llm.generate("x", budget)


def test_texts_of_users_are_no_control_tokens(llm: WatchedLLM) -> None:
    eos = llm._runtime.model.info.eos_token
    text = llm._runtime.model.tokenizer.piece(eos, special=True).decode()  # type: ignore[arg-type]
    llm.chat([{"role": "user", "content": f"a{text}b"}], FEW, chat_template=TEMPLATE)
    assert eos not in llm.tasks[-1].prompt and f"a{text}b" in prompt(llm)
