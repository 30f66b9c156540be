"""The unmodified ``langchain-openai`` works: over chat completions and over Responses."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict
from tests.api.canned import CALL, SERVER, TEMPLATE, CannedEngine, canned_runtime, says
from tests.api.conftest import SimServer
from tests.api.live import client

from corral.config import ApiKey
from corral.events import Event, StopReason
from corral.tasks import Task

pytestmark = [
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]

KEY = "sesame"
TEXT = "Hello é"


def weather(city: str) -> str:
    """The weather"""
    return f"sunny in {city}"


class Animal(BaseModel):
    """An animal."""

    model_config = ConfigDict(extra="forbid")  # the simulated model would add members until its limit
    name: Literal["llama", "alpaca"]
    legs: Literal[2, 4]


@pytest.fixture(scope="module")
def server(engine: CannedEngine) -> Iterator[httpx.Client]:
    with client(canned_runtime(engine), replace(SERVER, chat_template=TEMPLATE, api_keys=(ApiKey(KEY),))) as http:
        yield http
    gc.collect()  # it leaves its connections open


def model(http: httpx.Client, uses_responses: bool, **settings: Any) -> ChatOpenAI:
    base_url = f"{str(http.base_url).rstrip('/')}/v1"
    return ChatOpenAI(
        model="any", base_url=base_url, api_key=KEY, max_retries=0, use_responses_api=uses_responses, **settings
    )


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def uses_responses(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def chat(engine: CannedEngine, server: httpx.Client, uses_responses: bool) -> ChatOpenAI:
    engine.start_again(TEXT)
    return model(server, uses_responses, temperature=0.25, max_tokens=50, stream_usage=True)


def joined(chunks: Iterator[Any]) -> AIMessageChunk:
    total = None
    for chunk in chunks:
        total = chunk if total is None else total + chunk
    assert isinstance(total, AIMessageChunk)
    return total


def test_invoke(chat: ChatOpenAI, engine: CannedEngine) -> None:
    reply = chat.invoke([SystemMessage("Be brief."), HumanMessage("Who?")])
    assert reply.text == TEXT
    usage = reply.usage_metadata
    assert usage is not None and usage["output_tokens"] == len(TEXT.encode())
    assert usage["input_tokens"] == len(engine.tasks[0].prompt)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert reply.response_metadata["model_name"] == "canned"
    assert engine.last_prompt == "<|system|>Be brief.<|user|>Who?<|assistant|>"
    assert (engine.tasks[0].sampling.temperature, engine.tasks[0].limits.n_predict) == (0.25, 50)


def test_stream(chat: ChatOpenAI, engine: CannedEngine) -> None:
    pieces = list(chat.stream("Who?"))
    whole = joined(iter(pieces))
    assert whole.text == TEXT and len([piece for piece in pieces if piece.text]) >= 6
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] == len(TEXT.encode())


def test_many_at_once(engine: CannedEngine, server: httpx.Client, uses_responses: bool) -> None:
    engine.script = says(TEXT)

    async def all_of_them() -> list[Any]:
        async with httpx.AsyncClient() as own:  # the client that is made without one outlives this loop
            many = model(server, uses_responses, http_async_client=own)
            return await asyncio.gather(many.ainvoke("one"), many.ainvoke("two"), _streamed(many))

    first, second, third = asyncio.run(all_of_them())
    assert first.text == second.text == third == TEXT


async def _streamed(chat: ChatOpenAI) -> str:
    return "".join([chunk.text async for chunk in chat.astream("three")])


def test_a_history(chat: ChatOpenAI, engine: CannedEngine) -> None:
    call: Any = {"name": "weather", "args": {"city": "Rome"}, "id": "c1", "type": "tool_call"}
    chat.invoke(
        [
            HumanMessage("How is Rome?"),
            AIMessage("I look.", tool_calls=[call]),
            ToolMessage("sunny", tool_call_id="c1"),
            AIMessage("Go out."),
            HumanMessage([{"type": "text", "text": "Thanks"}]),
        ]
    )
    assert engine.last_prompt == (
        f"<|user|>How is Rome?<|assistant|>I look.{CALL}<|tool|>sunny<|assistant|>Go out.<|user|>Thanks<|assistant|>"
    )


@pytest.mark.parametrize("stream", [False, True])
def test_bind_tools(chat: ChatOpenAI, engine: CannedEngine, stream: bool) -> None:
    engine.script = says(f"<think>Hm.</think>I look.\n{CALL}\n{CALL.replace('Rome', 'Bern')}")
    able = chat.bind_tools([weather])
    reply = joined(able.stream("x")) if stream else able.invoke("x")
    assert reply.text == "I look."
    assert [(call["name"], call["args"]) for call in reply.tool_calls] == [
        ("weather", {"city": "Rome"}),
        ("weather", {"city": "Bern"}),
    ]
    assert len({call["id"] for call in reply.tool_calls}) == 2 and not reply.invalid_tool_calls
    assert '"name": "weather"' in engine.last_prompt


def test_a_loop_with_tools(chat: ChatOpenAI, engine: CannedEngine) -> None:
    """What the model says goes back as the client keeps it: also its thoughts and the ids of its items."""

    def script(task: Task) -> list[Event]:
        is_answered = b"sunny" in bytes(token for token in task.prompt if token < 256)
        return says("Go out." if is_answered else f"<think>Hm.</think>I look.\n{CALL}")(task)

    engine.script = script
    able = chat.bind_tools([weather])
    messages: list[Any] = [HumanMessage("How is Rome?")]
    messages.append(able.invoke(messages))
    messages += [ToolMessage(weather(**c["args"]), tool_call_id=c["id"]) for c in messages[-1].tool_calls]
    assert able.invoke(messages).text == "Go out."
    assert f"I look.{CALL}<|tool|>sunny in Rome<|assistant|>" in engine.last_prompt


def test_a_cut_call_is_no_call(chat: ChatOpenAI, engine: CannedEngine) -> None:
    engine.script = says(CALL[:60], StopReason.LIMIT)
    reply = chat.bind_tools([weather]).invoke("x")
    assert not reply.tool_calls and len(reply.invalid_tool_calls) == 1


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_with_structured_output(serve_sim: SimServer, uses_responses: bool, method: Any) -> None:
    """Held by the server: the simulated model writes anything."""
    asked = model(serve_sim(), uses_responses, max_tokens=400).with_structured_output(Animal, method=method)
    assert isinstance(asked.invoke("An animal"), Animal)


def test_any_object(serve_sim: SimServer, uses_responses: bool) -> None:
    short = model(serve_sim(), uses_responses, max_tokens=50, extra_body={"logit_bias": {"}": 1e6}})
    reply: Any = short.with_structured_output(Animal, method="json_mode", include_raw=True).invoke("An animal")
    assert reply["raw"].text.strip() == "{}"


def test_with_structured_output_streamed(serve_sim: SimServer, uses_responses: bool) -> None:
    http = serve_sim()
    asked = model(http, uses_responses, max_tokens=400).with_structured_output(Animal, method="json_schema")
    assert isinstance(list(asked.stream("An animal"))[-1], Animal)


def test_a_forced_tool(serve_sim: SimServer, uses_responses: bool) -> None:
    http = serve_sim()
    able = model(http, uses_responses, max_tokens=400).bind_tools([Animal], tool_choice="Animal")
    (call,) = able.bind(parallel_tool_calls=False).invoke("x").tool_calls
    Animal.model_validate(call["args"])


def test_logprobs(serve_sim: SimServer) -> None:
    asked = model(serve_sim(), False, max_tokens=4, logprobs=True, top_logprobs=2)
    entries = asked.invoke("x").response_metadata["logprobs"]["content"]
    assert entries and all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_conversations_are_kept_by_the_server(engine: CannedEngine, tmp_path: Any) -> None:
    engine.script = says(TEXT)
    config = replace(SERVER, chat_template=TEMPLATE, responses_store=tmp_path / "responses.db", api_keys=(ApiKey(KEY),))
    with client(canned_runtime(engine), config) as http:
        chat = model(http, True, use_previous_response_id=True)
        first = chat.invoke("one")
        chat.invoke([HumanMessage("one"), first, HumanMessage("two")])
    assert engine.last_prompt == f"<|user|>one<|assistant|>{TEXT}<|user|>two<|assistant|>"


def test_text_completions(server: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says(TEXT)
    base_url = f"{str(server.base_url).rstrip('/')}/v1"
    text = OpenAI(model="any", base_url=base_url, api_key=KEY, max_retries=0)
    assert text.invoke("Once") == TEXT == "".join(text.stream("Once"))
    assert text.batch(["Once", "Twice"]) == [TEXT, TEXT]


def test_errors_are_typed(chat: ChatOpenAI, server: httpx.Client, uses_responses: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        chat.bind(extra_body={"logit_bias": 7}).invoke("x")
    with pytest.raises(openai.AuthenticationError):
        model(server, uses_responses).bind(extra_headers={"Authorization": "Bearer wrong"}).invoke("x")
