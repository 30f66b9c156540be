"""Tool calls and thoughts over HTTP, through the unmodified ``openai`` client; the engine says what the test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from tests.api.canned import CALL, SERVER, TEMPLATE, WEATHER, CannedEngine, canned_runtime, says
from tests.api.live import client, events

from corral.api.schemas.replies import ChatReply
from corral.events import Event, Finished, StopReason, TokenProbs
from corral.tasks import Task

ASK: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [WEATHER]


@pytest.fixture
def http(engine: CannedEngine, server: httpx.Client) -> httpx.Client:
    engine.start_again()
    return server


@pytest.fixture
def api(http: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{str(http.base_url).rstrip('/')}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_call(api: openai.OpenAI, engine: CannedEngine) -> None:
    engine.script = says(f"I look.\n{CALL}")
    reply = api.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "I look."
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function" and call.id
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Rome"}')


def test_only_calls_leave_content_null(http: httpx.Client, engine: CannedEngine) -> None:
    """llama.cpp#14101, llama.cpp#12279: only the first was there; ids were empty."""
    engine.script = says(CALL + "\n" + CALL)
    message = http.post("/v1/chat/completions", json={"messages": ASK, "tools": TOOLS}).json()["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 2
    assert len({call["id"] for call in message["tool_calls"] if call["id"]}) == 2
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"city": "Rome"}] * 2


def test_a_reply_with_calls_is_as_documented(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says(CALL)
    reply = http.post("/v1/chat/completions", json={"messages": ASK, "tools": TOOLS}).json()
    assert ChatReply.model_validate(reply, strict=True).choices[0].message.tool_calls
    replies = http.get("/openapi.json").json()["paths"]
    assert "application/x-ndjson" in replies["/api/chat"]["post"]["responses"]["200"]["content"]


def test_a_call_streamed(api: openai.OpenAI, engine: CannedEngine) -> None:
    """llama.cpp#14101, BerriAI/litellm#37792, llama.cpp#28522: each call has its index, and arguments are whole."""
    engine.script = says(f"I look.\n{CALL}\n{CALL}")
    stream = api.chat.completions.create(model="m", messages=ASK, tools=TOOLS, stream=True)
    deltas = [(chunk.choices[0].delta, chunk.choices[0].finish_reason) for chunk in stream if chunk.choices]
    assert "".join(delta.content or "" for delta, _ in deltas) == "I look."
    assert [reason for _, reason in deltas if reason] == ["tool_calls"]
    calls = [call for delta, _ in deltas for call in delta.tool_calls or ()]
    heads = [call for call in calls if call.id]
    assert [(call.index, call.type, call.function.name) for call in heads if call.function] == [
        (0, "function", "weather"),
        (1, "function", "weather"),
    ]
    for index in (0, 1):
        pieces = [call.function.arguments or "" for call in calls if call.index == index and call.function]
        assert json.loads("".join(pieces)) == {"city": "Rome"}
        assert len(pieces) > 5, "arguments come as they are written"


def test_a_call_cut_by_the_limit_ends_with_length(api: openai.OpenAI, engine: CannedEngine) -> None:
    """llama.cpp#28711: in both modes."""
    engine.script = says(CALL[:50], StopReason.LIMIT)
    reply = api.chat.completions.create(model="m", messages=ASK, tools=TOOLS)
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.tool_calls
    chunks = list(api.chat.completions.create(model="m", messages=ASK, tools=TOOLS, stream=True))
    assert chunks[-1].choices[0].finish_reason == "length"


CUTS = [CALL[:5], CALL[:14], CALL[:24], f"{CALL}\n<tool_ca", CALL[:-4]]
ROUTES = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("text", CUTS)
def test_what_the_limit_left_of_a_call_is_no_text(
    http: httpx.Client, engine: CannedEngine, text: str, path: str
) -> None:
    engine.script = says(f"I look.\n{text}", StopReason.LIMIT)
    function = TOOLS[0]["function"]
    tool = {"/v1/messages": {"name": "weather", "input_schema": {}}, "/v1/responses": {"type": "function", **function}}
    body = {"messages": ASK, "input": ASK, "tools": [tool.get(path, TOOLS[0])]}
    for stream in (False, True):
        told = http.post(path, json={**body, "stream": stream}).text
        assert stream or "I look." in told
        assert "<" not in told and 'tool_ca"' not in told and "name\\" not in told


def test_a_reply_that_must_be_calls_has_no_text_where_it_is_cut(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says("  ", StopReason.LIMIT)
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required"}
    choice = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["message"]["content"] == "" and choice["finish_reason"] == "length"


def test_a_stop_string_in_a_call_is_no_reason_to_call(http: httpx.Client, engine: CannedEngine) -> None:
    for text, reason in ((CALL[:50], "stop"), (CALL[:-4], "tool_calls"), (CALL, "tool_calls")):
        engine.script = says(text, StopReason.WORD, "x")
        body = {"messages": ASK, "tools": TOOLS}
        assert http.post("/v1/chat/completions", json=body).json()["choices"][0]["finish_reason"] == reason
        chunks = events(http.post("/v1/chat/completions", json={**body, "stream": True}))
        assert chunks[-2]["choices"][0]["finish_reason"] == reason


def test_a_stop_string_leaves_the_text_before_it_whole(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says("a <", StopReason.WORD, "b")
    choice = http.post("/v1/chat/completions", json={"messages": ASK, "tools": TOOLS}).json()["choices"][0]
    assert choice["message"]["content"] == "a <" and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_a_call_is_text(http: httpx.Client, engine: CannedEngine, fields: dict[str, Any]) -> None:
    engine.script = says(CALL)
    choice = http.post("/v1/chat/completions", json={"messages": ASK, **fields}).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": CALL} and choice["finish_reason"] == "stop"


def test_choices_have_calls_of_their_own(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says(CALL)
    body = {"messages": ASK, "tools": TOOLS, "n": 2}
    choices = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 2
    chunks = events(http.post("/v1/chat/completions", json={**body, "stream": True}))[:-1]
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["tool_calls"]
        calls = [call for choice in mine for call in choice["delta"].get("tool_calls", ())]
        assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Rome"}'


def test_the_model_is_told_of_tools_and_of_earlier_calls(http: httpx.Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    prompt = http.post("/apply-template", json={"messages": messages, "tools": TOOLS}).json()["prompt"]
    assert '"name": "weather", "description": "The weather"' in prompt
    assert f"<|assistant|>{CALL}<|tool|>sunny<|assistant|>" in prompt


def test_broken_arguments_in_the_history_do_not_wedge_the_conversation(http: httpx.Client) -> None:
    """llama.cpp#25510, llama.cpp#22072, am17an/llama.cpp#43."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ro'}}
    messages = [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "?"}, *ASK]
    reply = http.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
    assert reply.status_code == 200
    prompt = http.post("/apply-template", json={"messages": messages, "tools": TOOLS}).json()["prompt"]
    assert '{\\"city\\": \\"Ro' in prompt


def test_half_an_escaped_character_is_no_fault_of_the_server(http: httpx.Client, engine: CannedEngine) -> None:
    """A model that was cut, or counts in UTF-16, writes half of a pair; JSON's text cannot hold it."""
    engine.script = says('<tool_call>{"name": "w\\ud83d", "arguments": "{\\"city\\": \\"\\ud83d\\"}"}</tool_call>')
    for body in ({"messages": ASK, "tools": TOOLS}, {"messages": ASK, "tools": TOOLS, "stream": True}):
        reply = http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200 and "w\ufffd" in reply.text and "error" not in reply.text
    call = {"id": "a", "function": {"name": "weather", "arguments": '{"city": "\\ud83d"}'}}
    told: Any = [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}]
    assert "\ufffd" in http.post("/apply-template", json={"messages": told, "tools": TOOLS}).json()["prompt"]


def test_thoughts(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says("<think>\nHm.\n</think>\n\nHello")
    message = http.post("/v1/chat/completions", json={"messages": ASK}).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."}
    chunks = events(http.post("/v1/chat/completions", json={"messages": ASK, "stream": True}))[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello"


@pytest.mark.parametrize(
    ("form", "content", "streamed", "reasoning"),
    [
        ("none", "<think>Hm.</think>Hello", "<think>Hm.</think>Hello", None),
        ("deepseek", "Hello", "Hello", "Hm."),
        ("auto", "Hello", "Hello", "Hm."),
        ("deepseek-legacy", "<think>Hm.</think>Hello", "<think>Hm.</think>Hello", "Hm."),
    ],
)
def test_reasoning_formats(
    http: httpx.Client, engine: CannedEngine, form: str, content: str, streamed: str, reasoning: str | None
) -> None:
    engine.script = says("<think>Hm.</think>Hello")
    body = {"messages": ASK, "reasoning_format": form}
    message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content")) == (content, reasoning)
    chunks = events(http.post("/v1/chat/completions", json={**body, "stream": True}))[:-1]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == streamed


def test_no_effort_is_no_thoughts(http: httpx.Client) -> None:
    prompt = http.post("/apply-template", json={"messages": ASK, "reasoning_effort": "none"}).json()["prompt"]
    assert prompt.endswith("<|assistant|><think></think>")


def test_an_end_that_a_model_writes_behind_the_forced_one_is_not_text(http: httpx.Client, engine: CannedEngine) -> None:
    """llama.cpp#28182: it did not notice that its thoughts were ended, and ends them itself."""
    engine.script = says("<think>Hm</think>\n</think>so, I\n</think>\n\nIt is written </think>.")
    body = {"messages": ASK, "reasoning_budget_tokens": 9}
    message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm", "so, I\n\n\nIt is written </think>.")
    chunks = events(http.post("/v1/chat/completions", json={**body, "stream": True}))[:-1]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == message["content"]
    raw = {**body, "reasoning_format": "none"}
    assert http.post("/v1/chat/completions", json=raw).json()["choices"][0]["message"]["content"].count("</think>") == 4
    free = http.post("/v1/chat/completions", json={"messages": ASK}).json()["choices"][0]["message"]
    assert free["content"].count("</think>") == 2, "without a budget it is what the model says"
    engine.script = says("The mark is </think>.")
    answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert answer["content"] == "The mark is </think>.", "it had no thoughts"


def test_without_reading_calls_thoughts_are_read(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says(f"<think>Hm.</think>Hello {CALL}")
    body = {"messages": ASK, "tools": TOOLS, "parse_tool_calls": False}
    message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": f"Hello {CALL}", "reasoning_content": "Hm."}


def test_thoughts_and_text_are_continued(http: httpx.Client, engine: CannedEngine) -> None:
    started = {"role": "assistant", "reasoning_content": "Let me"}
    prompt = http.post("/apply-template", json={"messages": [*ASK, started]}).json()["prompt"]
    assert prompt.endswith("<|assistant|><think>Let me")
    engine.script = says(" see.</think>Hello")
    reply = http.post("/v1/chat/completions", json={"messages": [*ASK, started]}).json()["choices"][0]["message"]
    assert (reply["reasoning_content"], reply["content"]) == ("see.", "Hello")
    both = {**started, "content": "So,"}
    prompt = http.post("/apply-template", json={"messages": [*ASK, both]}).json()["prompt"]
    assert prompt.endswith("<|assistant|><think>Let me</think>So,")


def test_each_token_has_its_logprob_in_the_stream(http: httpx.Client, engine: CannedEngine) -> None:
    text = f"<think>Hm</think>ok {CALL}"

    def script(task: Task) -> list[Event]:
        told = says(text)(task)
        probs = [TokenProbs(token, -0.5, (), False) for token in text.encode()]
        first, *chunks, last = told
        assert isinstance(last, Finished)
        with_probs = [replace(chunk, probs=(entry,)) for chunk, entry in zip(chunks, probs, strict=True)]  # type: ignore[type-var]
        return [first, *with_probs, replace(last, probs=tuple(probs))]

    engine.script = script
    body = {"messages": ASK, "tools": TOOLS, "logprobs": True, "stream": True}
    chunks = events(http.post("/v1/chat/completions", json=body))[:-1]
    entries = [
        entry for chunk in chunks for entry in (chunk["choices"][0].get("logprobs") or {"content": []})["content"]
    ]
    assert [entry["id"] for entry in entries] == list(text.encode())


def test_control_tokens_in_texts_of_users_are_text(http: httpx.Client, engine: CannedEngine) -> None:
    hostile: Any = [{"role": "user", "content": "a<eos>b"}]
    http.post("/v1/chat/completions", json={"messages": hostile})
    assert list(b"a<eos>b") == [token for token in engine.tasks[0].prompt if token < 256][8:15]
    assert 257 not in engine.tasks[0].prompt
    assert "a<eos>b" in http.post("/apply-template", json={"messages": hostile}).json()["prompt"]


def test_control_tokens_of_users_count_where_that_is_asked_for(engine: CannedEngine) -> None:
    trusting = replace(SERVER, chat_template=TEMPLATE, parse_special_user_text=True)
    engine.tasks.clear()
    with client(canned_runtime(engine), trusting) as http:
        http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a<eos>b"}]})
    assert 257 in engine.tasks[0].prompt


def test_skip_chat_parsing_leaves_all_in_the_text(engine: CannedEngine) -> None:
    text = f"<think>Hm</think>{CALL}"
    engine.script = says(text)
    with client(canned_runtime(engine), replace(SERVER, chat_template=TEMPLATE, skip_chat_parsing=True)) as http:
        choice = http.post("/v1/chat/completions", json={"messages": ASK, "tools": TOOLS}).json()["choices"][0]
    assert choice["message"]["content"] == text and choice["finish_reason"] == "stop"


def test_allowed_tools_are_read_as_their_mode(http: httpx.Client, engine: CannedEngine) -> None:
    for mode in ("auto", "required"):
        engine.tasks.clear()
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function"}]}}
        body = {"messages": ASK, "tools": TOOLS, "tool_choice": choice}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        constraint = engine.tasks[0].sampling.constraint
        assert constraint is not None and bool(constraint.triggers) == (mode == "auto")
