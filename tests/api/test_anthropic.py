"""POST /v1/messages: its events against Anthropic's rules, and the unmodified ``anthropic`` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from tests.api.canned import CALL, WEATHER, CannedEngine, says
from tests.api.conftest import SimServer
from tests.api.sequences import MessageStream, check_message

from corral.config import ApiKey, ServerConfig
from corral.errors import DecodeFailed, ExceedContext
from corral.events import Event, Failed, StopReason
from corral.tasks import Task

FUNCTION: Any = WEATHER["function"]
TOOL: Any = {"name": "weather", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
ASK: Any = [{"role": "user", "content": "hi"}]
BODY = {"model": "m", "max_tokens": 99, "messages": ASK, "tools": [TOOL]}
TWO_CALLS = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"


@pytest.fixture
def http(engine: CannedEngine, server: httpx.Client) -> httpx.Client:
    engine.start_again()
    return server


@pytest.fixture
def api(http: httpx.Client) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=str(http.base_url), api_key="none", max_retries=0) as made:
        yield made


def streamed(http: httpx.Client, **fields: Any) -> MessageStream:
    reply = http.post("/v1/messages", json={**BODY, "stream": True, **fields})
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
    return MessageStream(reply.text)


def whole(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = http.post("/v1/messages", json={**BODY, **fields})
    assert reply.status_code == 200, reply.text
    return check_message(reply.json())


SCRIPTS = {
    "text": (says("Hello"), "end_turn", None, ["text"]),
    "thoughts": (says("<think>\nHm.\n</think>\n\nHello"), "end_turn", None, ["thinking", "text"]),
    "only thoughts": (says("<think>Hm.", StopReason.LIMIT), "max_tokens", None, ["thinking"]),
    "calls": (says(TWO_CALLS), "tool_use", None, ["thinking", "text", "tool_use", "tool_use"]),
    "only a call": (says(CALL), "tool_use", None, ["tool_use"]),
    "a cut call": (says(CALL[:50], StopReason.LIMIT), "max_tokens", None, ["tool_use"]),
    "a cut text": (says("Hel", StopReason.LIMIT), "max_tokens", None, ["text"]),
    "a stop string": (says("Hel", StopReason.WORD, "lo"), "stop_sequence", "lo", ["text"]),
    "nothing": (says(""), "end_turn", None, []),
}


@pytest.mark.parametrize("n_batch", [1, 7, 1000])
@pytest.mark.parametrize("name", SCRIPTS)
def test_events_keep_the_rules_and_add_up_to_the_whole_reply(
    http: httpx.Client, engine: CannedEngine, name: str, n_batch: int
) -> None:
    """llama.cpp#18542, llama.cpp#18551: one start for each block, a stop where it ends, signatures before that."""
    engine.script, reason, word, kinds = SCRIPTS[name]
    engine.n_batch = n_batch
    stream = streamed(http).message
    assert (stream["stop_reason"], stream["stop_sequence"]) == (reason, word)
    assert [block["type"] for block in stream["content"]] == kinds
    one = whole(http)
    assert one["stop_reason"] == reason and one["usage"] == stream["usage"]
    for streamed_block, block in zip(stream["content"], one["content"], strict=True):
        if block["type"] != "tool_use":
            assert streamed_block == block
            continue
        assert streamed_block["name"] == block["name"] == "weather" and streamed_block["id"] != block["id"]
        if reason == "tool_use":
            assert json.loads(streamed_block["raw"]) == block["input"] == {"city": "Rome"}


def test_ids_of_calls_differ(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says(TWO_CALLS)
    content = streamed(http).message["content"]
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    assert len(set(ids)) == 2 and all(ids)


def test_a_silent_stream_is_pinged(http: httpx.Client) -> None:
    assert streamed(http).n_pings >= 1


def test_a_failure_in_mid_stream_is_an_error_event(http: httpx.Client, engine: CannedEngine) -> None:
    def script(task: Task) -> list[Event]:
        return [*says("Hello")(task)[:4], Failed(task.id, DecodeFailed("the forward pass failed"))]

    engine.script = script
    stream = streamed(http)
    assert stream.error == {"type": "api_error", "message": "the forward pass failed"}
    with (
        anthropic.Anthropic(base_url=str(http.base_url), api_key="none", max_retries=0) as api,
        pytest.raises(anthropic.APIStatusError, match="the forward pass failed"),
        api.messages.stream(model="m", max_tokens=9, messages=ASK) as told,
    ):
        told.until_done()


def test_a_failure_before_the_stream_is_a_status(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = lambda task: [Failed(task.id, ExceedContext(900, 500))]
    reply = http.post("/v1/messages", json={**BODY, "stream": True})
    assert reply.status_code == 400
    assert reply.json() == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 900 tokens > 500 maximum",
            "n_prompt_tokens": 900,
            "n_ctx": 500,
        },
    }


def test_the_client_reads_a_reply(api: anthropic.Anthropic, engine: CannedEngine) -> None:
    engine.script = says(TWO_CALLS)
    message = api.messages.create(model="m", max_tokens=99, messages=ASK, tools=[TOOL])
    thinking, text, call, _ = message.content
    assert thinking.type == "thinking" and thinking.thinking == "Hm."
    assert text.type == "text" and text.text == "I look."
    assert call.type == "tool_use" and call.input == {"city": "Rome"}
    assert message.stop_reason == "tool_use" and message.model == "canned"
    assert message.usage.output_tokens == len(TWO_CALLS)


def test_the_client_reads_a_stream(api: anthropic.Anthropic, engine: CannedEngine) -> None:
    engine.script = says(TWO_CALLS)
    with api.messages.stream(model="m", max_tokens=99, messages=ASK, tools=[TOOL]) as stream:
        assert "".join(stream.text_stream) == "I look."
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[-1].type == "tool_use" and message.content[-1].input == {"city": "Rome"}


def test_a_conversation_with_tools_becomes_a_prompt(http: httpx.Client, engine: CannedEngine) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    messages: list[Any] = [
        *ASK,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "and now?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    whole(http, messages=messages, system=system)
    prompt = bytes(token for token in engine.tasks[0].prompt if token < 256).decode()
    assert prompt.endswith(
        "<|system|>Be brief.\n\nBe kind.<|user|>hi<|assistant|><think>Hm.</think>I look."
        f"{CALL}<|tool|>sunny<|user|>and now?<|assistant|>"
    )
    messages[2]["content"][0]["content"] = [image]
    refused = http.post("/v1/messages", json={**BODY, "messages": messages})
    assert refused.status_code == 400 and "image input is not supported" in refused.json()["error"]["message"]


def test_a_header_that_changes_with_each_request_does_not_reach_the_prompt(
    http: httpx.Client, engine: CannedEngine
) -> None:
    """musistudio/claude-code-router#1217."""
    for cch in ("ab12", "ff00"):
        whole(http, system=f"x-anthropic-billing-header: v=1; cch={cch};\nBe brief.")
    assert engine.tasks[0].prompt == engine.tasks[1].prompt


def test_fields_reach_the_task(http: httpx.Client, engine: CannedEngine) -> None:
    whole(http, stop_sequences=["A", "B"], temperature=0.25, top_k=7, n=3, cache_salt="s", max_tokens=5)
    (task,) = engine.tasks
    assert task.limits.stop == ("A", "B") and task.limits.n_predict == 5
    assert (task.sampling.temperature, task.sampling.top_k) == (0.25, 7)
    assert str(task.cache_key) == ":s"
    whole(http, thinking={"type": "disabled"})
    assert bytes(token for token in engine.tasks[1].prompt if token < 256).endswith(b"<think></think>")


def test_tokens_are_counted_as_they_are_used(api: anthropic.Anthropic, http: httpx.Client) -> None:
    counted = api.messages.count_tokens(model="m", messages=ASK, tools=[TOOL], system="Be brief.")
    assert counted.input_tokens == whole(http, system="Be brief.")["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": None}, "Field 'messages': at least one message is required"),
        ({"messages": [{"role": "tool", "content": ""}]}, "Field 'messages.0.role': must be 'user' or 'assistant'"),
        ({"max_tokens": 0}, "Field 'max_tokens': Value must be between 1 <="),
        ({"system": 3}, "Field 'system': type must be string or array, but is number"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "Field 'messages.0.content.0': only"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "Field 'tools.0': tools of type 'web_se"),
        ({"tool_choice": {"type": "some"}}, "Field 'tool_choice.type': must be"),
        ({"thinking": {"type": "deep"}}, "Field 'thinking.type': must be"),
    ],
)
def test_refusals(http: httpx.Client, fields: dict[str, Any], message: str) -> None:
    reply = http.post("/v1/messages", json={**BODY, **fields})
    assert reply.status_code == 400
    body = reply.json()
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(message)


def test_keys_prefixes_and_cached_tokens(serve_sim: SimServer) -> None:
    """llama.cpp#19361: what was reused does not count as input. The key may come as ``x-api-key``."""
    http = serve_sim(ServerConfig(port=0, alias=("sim",), api_keys=(ApiKey("k"),)))
    base = str(http.base_url)
    with (
        anthropic.Anthropic(base_url=base, api_key="wrong", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(model="m", max_tokens=1, messages=ASK)
    long: Any = [{"role": "user", "content": "a long story " * 40}]
    with anthropic.Anthropic(base_url=base, api_key="k", max_retries=0) as api:
        cold = api.messages.create(model="m", max_tokens=2, messages=long)
        assert cold.usage.cache_read_input_tokens == 0
        with api.messages.stream(model="m", max_tokens=2, messages=long) as stream:
            warm = stream.get_final_message()
    assert warm.usage.cache_read_input_tokens and warm.usage.cache_read_input_tokens > 300
    assert warm.usage.input_tokens + warm.usage.cache_read_input_tokens == cold.usage.input_tokens
