"""Faults that users of LLM servers reported about thoughts, tools and what text is held to, over HTTP.

The simulated model writes what a grammar forces; its tokens are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.api.canned import CALL, SERVER, TEMPLATE, CannedEngine, canned_runtime, says
from tests.api.conftest import simulated
from tests.api.live import client, events
from tests.api.sequences import MessageStream

from corral.config import ServerConfig

Json = dict[str, Any]
ASK: list[Json] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    server = ServerConfig(port=0, alias=("sim",), chat_template=TEMPLATE)
    with simulated(n_slots=2, n_ctx=8192) as runtime, client(runtime, server) as served:
        yield served


def forced(text: str) -> Json:
    return {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}"}


def of_chat(reply: httpx.Response) -> tuple[str, str, str]:
    choice = reply.json()["choices"][0]
    message = choice["message"]
    return message.get("reasoning_content", ""), message["content"] or "", choice["finish_reason"]


def of_chat_stream(reply: httpx.Response) -> tuple[str, str, str]:
    choices = [event["choices"][0] for event in events(reply)[:-1]]
    thoughts = "".join(choice["delta"].get("reasoning_content", "") for choice in choices)
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return thoughts, text, choices[-1]["finish_reason"]


def of_message(message: Json) -> tuple[str, str, str]:
    parts = {block["type"]: block[block["type"]] for block in message["content"]}
    return parts.get("thinking", ""), parts.get("text", ""), message["stop_reason"]


def of_lines(reply: httpx.Response) -> tuple[str, str, str]:
    lines = [json.loads(line) for line in reply.text.splitlines()]
    thoughts = "".join(line["message"].get("thinking", "") for line in lines)
    return thoughts, "".join(line["message"]["content"] for line in lines), lines[-1]["done_reason"]


Read = Callable[[httpx.Response], tuple[str, str, str]]
THINKERS: list[tuple[str, Json, Json, Read]] = [
    ("/v1/chat/completions", {"stream": False}, {"stop": ["STOP"]}, of_chat),
    ("/v1/chat/completions", {"stream": True}, {"stop": ["STOP"]}, of_chat_stream),
    ("/v1/messages", {}, {"stop_sequences": ["STOP"]}, lambda reply: of_message(reply.json())),
    (
        "/v1/messages",
        {"stream": True},
        {"stop_sequences": ["STOP"]},
        lambda r: of_message(MessageStream(r.text).message),
    ),
    ("/api/chat", {"stream": True}, {"options": {"stop": ["STOP"]}}, of_lines),
]


@pytest.mark.parametrize(("path", "mode", "stop", "read"), THINKERS)
def test_14_stop_strings_do_not_cut_thoughts(http: httpx.Client, path: str, mode: Json, stop: Json, read: Read) -> None:
    """vllm-project/vllm#14399, vllm-project/vllm#14170."""
    body = {"messages": ASK, "max_tokens": 200, **mode, **stop}
    reply = http.post(path, json={**body, **forced("<think>a STOP b</think>c STOP d")})
    thoughts, text, reason = read(reply)
    assert (thoughts, text.strip()) == ("a STOP b", "c") and reason in ("stop", "stop_sequence")
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    reply = http.post(path, json={**body, **forced("c STOP d"), **off})
    assert read(reply)[1].strip() == "c", "without thoughts"


def test_14_stop_strings_do_not_cut_thoughts_that_are_open(http: httpx.Client) -> None:
    """The prompt ends within them, as the last message is continued."""
    messages = [*ASK, {"role": "assistant", "content": "", "reasoning_content": "Hm,"}]
    body = {"messages": messages, "stop": ["STOP"], **forced(" a STOP b</think>c STOP d")}
    assert of_chat(http.post("/v1/chat/completions", json=body)) == ("a STOP b", "c ", "stop")


def big_tools(n: int, **more: Any) -> list[Json]:
    """``n`` tools of about a kilobyte each, with long texts."""
    text = {"type": "string", "maxLength": 65536, "description": "What it is about. " * 8}
    names = ("title", "body", "summary", "comment")
    schema = {"type": "object", "properties": dict.fromkeys(names, text), "required": ["title"], **more}
    return [{"type": "function", "function": {"name": f"edit_{i}", "parameters": schema}} for i in range(n)]


def test_55_a_large_set_of_tools_works() -> None:
    """llama.cpp#26596, llama.cpp#25895: beyond 97 KB in all, or with long texts, there was no grammar."""
    tools = big_tools(150)
    assert len(json.dumps(tools)) > 100_000
    engine = CannedEngine(says(CALL))
    runtime = replace(canned_runtime(engine), n_ctx_slot=10**6)
    with client(runtime, replace(SERVER, chat_template=TEMPLATE)) as http:
        for choice in ("auto", "required", {"type": "function", "function": {"name": "edit_7"}}):
            reply = http.post("/v1/chat/completions", json={"messages": ASK, "tools": tools, "tool_choice": choice})
            assert reply.status_code == 200, reply.text
            held = engine.tasks[-1].sampling.constraint
            assert held is not None and "edit_7" in held.text and ("edit_8" in held.text) == isinstance(choice, str)
