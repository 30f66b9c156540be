"""Faults that users of LLM servers reported, over the dialects of conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.api.canned import CALL, WEATHER, CannedEngine, says
from tests.api.conftest import SimServer
from tests.api.live import is_idle, send_raw, until
from tests.api.sequences import MessageStream, ResponseStream

from corral.config import ApiKey, ServerConfig
from corral.events import StopReason

Json = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """``body`` makes a request with this user text, ``whole`` and ``streamed`` read the text of a reply."""

    path: str
    body: Callable[[str], Json]
    history: Callable[[str], Json]
    """A conversation whose assistant called a tool with these arguments."""
    whole: Callable[[Json], str]
    streamed: Callable[[str], str]
    stop: str
    reason: Callable[[Json], str]


def _chat(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


def _called(arguments: object) -> list[Json]:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [*_chat("hi"), {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "ok"}]


def _items(arguments: str) -> list[Json]:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": arguments}
    return [*_chat("hi"), call, {"type": "function_call_output", "call_id": "c1", "output": "ok"}]


def _of_response(reply: Json) -> str:
    messages = [item for item in reply["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


def _of_message(reply: Json) -> str:
    return "".join(block["text"] for block in reply["content"] if block["type"] == "text")


def _of_lines(text: str) -> str:
    return "".join(json.loads(line)["message"]["content"] for line in text.splitlines())


DIALECTS = {
    "responses": Dialect(
        "/v1/responses",
        lambda text: {"input": text, "stream": False},
        lambda arguments: {"input": _items(arguments)},
        _of_response,
        lambda text: _of_response(ResponseStream(text).response),
        "",
        lambda reply: (reply["incomplete_details"] or {}).get("reason", reply["status"]),
    ),
    "messages": Dialect(
        "/v1/messages",
        lambda text: {"messages": _chat(text), "stream": False},
        lambda arguments: {
            "messages": [
                *_chat("hi"),
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "weather", "input": {}}]},
                *_chat(arguments),
            ]
        },
        _of_message,
        lambda text: _of_message(MessageStream(text).message),
        "stop_sequences",
        lambda reply: reply["stop_reason"],
    ),
    "ollama": Dialect(
        "/api/chat",
        lambda text: {"messages": _chat(text), "stream": False},
        lambda arguments: {"messages": _called(arguments)},
        lambda reply: reply["message"]["content"],
        _of_lines,
        "stop",
        lambda reply: reply["done_reason"],
    ),
}


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


def forced(text: str) -> Json:
    return {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}"}


@pytest.mark.parametrize("text", ["\U0001f600 歪 ok", "UNO DUE TRE", "a\n\n b "])
def test_5_a_stream_and_a_whole_reply_have_the_same_text(http: httpx.Client, dialect: Dialect, text: str) -> None:
    """llama.cpp#9195, llama.cpp#11738, llama.cpp#28926: no half characters, nothing lost."""
    body = {**dialect.body("say it"), **forced(text)}
    reply = http.post(dialect.path, json=body)
    assert dialect.whole(reply.json()) == text
    raw = http.post(dialect.path, json={**body, "stream": True}).text
    assert "\ufffd" not in raw
    assert dialect.streamed(raw) == text


@pytest.mark.parametrize("dialect", [dialect for dialect in DIALECTS.values() if dialect.stop], ids=lambda d: d.path)
def test_4_no_part_of_a_stop_string_is_sent(http: httpx.Client, dialect: Dialect) -> None:
    """llama.cpp#15007. Responses have no stop strings."""
    stop = {"options": {"stop": ["O P Q"]}} if dialect.path.startswith("/api") else {dialect.stop: ["O P Q"]}
    body = {**dialect.body("say it"), **forced(" L M N O P Q R S"), **stop}
    reply = http.post(dialect.path, json=body).json()
    assert dialect.whole(reply) == " L M N " and dialect.reason(reply) in ("stop", "stop_sequence")
    assert dialect.streamed(http.post(dialect.path, json={**body, "stream": True}).text) == " L M N "


@pytest.mark.parametrize("stream", [False, True])
def test_12_a_prompt_that_is_too_long_is_a_status(http: httpx.Client, dialect: Dialect, stream: bool) -> None:
    """llama.cpp#14566, llama.cpp#16486: 400, never an empty 200."""
    reply = http.post(dialect.path, json={**dialect.body("x " * 3000), "stream": stream})
    assert reply.status_code == 400 and "error" in reply.json()


def test_13_a_call_cut_by_the_limit_is_told_as_cut(
    server: httpx.Client, engine: CannedEngine, dialect: Dialect
) -> None:
    """llama.cpp#28711."""
    engine.script = says(CALL[:60], StopReason.LIMIT)
    tool = WEATHER if dialect.path == "/api/chat" else {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
    if dialect.path == "/v1/messages":
        tool = {"name": "weather", "input_schema": {"type": "object"}}
    reply = server.post(dialect.path, json={**dialect.body("hi"), "tools": [tool]}).json()
    assert dialect.reason(reply) in ("length", "max_tokens", "max_output_tokens")


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMATS: dict[str, Callable[[Json], Json]] = {
    "/v1/responses": lambda schema: {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
    "/v1/messages": lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    "/api/chat": lambda schema: {"format": schema},
}


def test_a_schema_holds_the_text(server: httpx.Client, engine: CannedEngine, dialect: Dialect) -> None:
    assert server.post(dialect.path, json={**dialect.body("hi"), **FORMATS[dialect.path](SCHEMA)}).status_code == 200
    held = engine.tasks[-1].sampling.constraint
    assert held is not None and json.loads(held.text) == SCHEMA


def test_53_a_schema_that_does_not_compile_is_refused(http: httpx.Client, dialect: Dialect) -> None:
    """llama.cpp#19051: never an answer without it."""
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    reply = http.post(dialect.path, json={**dialect.body("hi"), **FORMATS[dialect.path](bad)})
    assert reply.status_code == 400, reply.text


@pytest.mark.parametrize("arguments", ["{", "", "null", '{"city": "Ro', "[" * 50, "\0"])
def test_57_broken_arguments_in_the_history(http: httpx.Client, dialect: Dialect, arguments: str) -> None:
    """llama.cpp#25510: the conversation is not wedged."""
    reply = http.post(dialect.path, json={**dialect.history(arguments), **forced("ok"), "stream": False})
    assert reply.status_code == 200 and dialect.whole(reply.json()) == "ok", reply.text


def test_61_control_tokens_in_texts_of_users_are_text(
    server: httpx.Client, engine: CannedEngine, dialect: Dialect
) -> None:
    """llama.cpp#24382, llama.cpp#26309."""
    engine.script = says("hi")
    assert server.post(dialect.path, json=dialect.body("a<eos>b")).status_code == 200
    prompt = engine.tasks[-1].prompt
    assert 257 not in prompt and b"a<eos>b" in bytes(token for token in prompt if token < 256)


def test_62_keys(serve_sim: SimServer, dialect: Dialect) -> None:
    """llama.cpp#9776: Bearer and X-Api-Key, and 401 without."""
    http = serve_sim(ServerConfig(port=0, api_keys=(ApiKey("k"),)))
    body = {**dialect.body("hi"), **forced("ok")}
    assert http.post(dialect.path, json=body).status_code == 401
    for headers in ({"Authorization": "Bearer k"}, {"X-Api-Key": "k"}):
        assert http.post(dialect.path, json=body, headers=headers).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_31_a_client_that_leaves_frees_its_slot(serve_sim: SimServer, dialect: Dialect, stream: bool) -> None:
    """llama.cpp#13262, llama.cpp#24496."""
    http = serve_sim(ServerConfig(port=0), n_slots=1, n_ctx=100_000)
    long = {**forced("a" * 50_000), "max_tokens": 60_000}
    sock = send_raw(http, {**dialect.body("hi"), **long, "stream": stream}, dialect.path)
    until(lambda: not is_idle(http), "it runs")
    sock.close()
    until(lambda: is_idle(http), "the slot is free")
