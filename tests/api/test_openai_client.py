"""The unmodified ``openai`` client works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.api.conftest import SimServer

from corral.config import ApiKey, ServerConfig


@pytest.fixture(scope="module")
def client(http: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{str(http.base_url).rstrip(chr(47))}/v1", api_key="none", max_retries=0) as made:
        yield made


SAY = {"grammar": 'root ::= "hello there"'}
MESSAGES = [{"role": "user", "content": "hi"}]


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="sim", messages=MESSAGES, extra_body=SAY)  # type: ignore[arg-type]
    assert reply.choices[0].message.content == "hello there"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None and reply.usage.completion_tokens > 1
    assert reply.usage.prompt_tokens_details is not None


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim",
        messages=MESSAGES,  # type: ignore[arg-type]
        stream=True,
        stream_options={"include_usage": True},
        extra_body=SAY,
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hello there"
    assert chunks[-1].usage is not None and not chunks[-1].choices


def test_chat_logprobs(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="sim",
        messages=MESSAGES,  # type: ignore[arg-type]
        logprobs=True,
        top_logprobs=3,
        max_tokens=4,
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in logprobs.content)
    assert all(bytes(entry.bytes or ()).decode("utf-8", "ignore") == entry.token for entry in logprobs.content)


def test_text_completion(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="sim", prompt="x", logprobs=2, max_tokens=5, extra_body=SAY)
    assert reply.choices[0].text.startswith("hel")
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].logprobs is not None
    assert len(reply.choices[0].logprobs.content[0]["top_logprobs"]) == 2  # type: ignore[attr-defined]


def test_text_stream(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="sim", prompt="x", stream=True, extra_body=SAY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "hello there"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["sim"]


def test_errors_are_typed(client: openai.OpenAI, serve_sim: SimServer) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="sim", messages=[], max_tokens=1)
    locked = serve_sim(ServerConfig(port=0, api_keys=(ApiKey("k"),)))
    with (
        openai.OpenAI(base_url=f"{str(locked.base_url).rstrip(chr(47))}/v1", api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError),
    ):
        other.models.list()


PICK: Any = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"n": {"enum": [1, 2]}, "colour": {"enum": ["red", "green"]}},
            "required": ["n", "colour"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_a_forced_call_fits_its_schema(client: openai.OpenAI, choice: Any) -> None:
    """llama.cpp#27217, llama.cpp#26849: not enforced, or a named function taken for "auto"."""
    reply = client.chat.completions.create(
        model="sim",
        messages=MESSAGES,  # type: ignore[arg-type]
        tools=[PICK],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=200,
    )
    (call,) = reply.choices[0].message.tool_calls or ()
    assert call.type == "function" and call.function.name == "pick"
    arguments = json.loads(call.function.arguments)
    assert arguments["n"] in (1, 2) and arguments["colour"] in ("red", "green")
    assert reply.choices[0].finish_reason == "tool_calls" and not reply.choices[0].message.content


def test_a_forced_call_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim",
        messages=MESSAGES,  # type: ignore[arg-type]
        tools=[PICK],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        stream=True,
    )
    choices = [chunk.choices[0] for chunk in stream if chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert calls[0].function is not None and calls[0].function.name == "pick"
    assert set(json.loads("".join(c.function.arguments or "" for c in calls if c.function))) == {"n", "colour"}
    assert choices[-1].finish_reason == "tool_calls"


def test_a_schema_that_nothing_can_satisfy_is_a_400(client: openai.OpenAI) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(("}}, "required": ["a"]}
    bad: Any = {"type": "function", "function": {"name": "bad", "parameters": parameters, "strict": True}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="sim", messages=MESSAGES, tools=[bad], tool_choice="required")  # type: ignore[arg-type]
