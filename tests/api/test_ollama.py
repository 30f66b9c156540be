"""Ollama's routes, through the unmodified ``ollama`` client and by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import ollama
import pytest
from tests.api.canned import CALL, TEMPLATE, WEATHER, CannedEngine, says
from tests.api.conftest import SimServer

from corral.config import ApiKey, ServerConfig
from corral.errors import DecodeFailed, ExceedContext
from corral.events import Event, Failed, Finished, StopReason, TokenProbs
from corral.tasks import Task

ASK: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [WEATHER]
TWO_CALLS = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"


@pytest.fixture
def http(engine: CannedEngine, server: httpx.Client) -> httpx.Client:
    engine.start_again()
    return server


@pytest.fixture
def api(http: httpx.Client) -> Iterator[ollama.Client]:
    with ollama.Client(str(http.base_url)) as made:
        yield made


def lines(reply: httpx.Response) -> list[dict[str, Any]]:
    """The objects of a stream. Only the last one is done."""
    assert reply.headers["content-type"].startswith("application/x-ndjson") and reply.text.endswith("\n")
    told = [json.loads(line) for line in reply.text.splitlines()]
    assert [line.get("done") for line in told] == [False] * (len(told) - 1) + [True]
    return told


def test_the_client_chats(api: ollama.Client, engine: CannedEngine) -> None:
    engine.script = says(TWO_CALLS)
    reply = api.chat("m", ASK, tools=TOOLS)
    assert (reply.message.content, reply.message.thinking) == ("I look.", "Hm.")
    assert [dict(call.function.arguments) for call in reply.message.tool_calls or ()] == [{"city": "Rome"}] * 2
    assert (reply.done, reply.done_reason, reply.model) == (True, "stop", "canned")
    assert reply.eval_count == len(TWO_CALLS) and reply.eval_duration == 2_000_000 * len(TWO_CALLS)
    assert reply.prompt_eval_duration == 5_000_000 and reply.prompt_eval_count == len(engine.tasks[0].prompt)
    assert reply.total_duration == reply.eval_duration + reply.prompt_eval_duration


@pytest.mark.parametrize("n_batch", [1, 1000])
def test_the_client_streams(api: ollama.Client, engine: CannedEngine, n_batch: int) -> None:
    engine.script, engine.n_batch = says(TWO_CALLS), n_batch
    told = list(api.chat("m", ASK, tools=TOOLS, stream=True))
    assert "".join(part.message.content or "" for part in told) == "I look."
    assert "".join(part.message.thinking or "" for part in told) == "Hm."
    calls = [call for part in told for call in part.message.tool_calls or ()]
    assert [call.function.name for call in calls] == ["weather", "weather"]
    assert told[-1].done and not any(part.done for part in told[:-1])


def test_the_client_generates(api: ollama.Client, engine: CannedEngine) -> None:
    engine.script = says("<think>Hm.</think>Hello", StopReason.LIMIT)
    reply = api.generate("m", "hi", system="Be brief.")
    assert (reply.response, reply.thinking, reply.done_reason) == ("Hello", "Hm.", "length")
    assert engine.last_prompt == "<|system|>Be brief.<|user|>hi<|assistant|>"
    told = list(api.generate("m", "hi", stream=True))
    assert "".join(part.response or "" for part in told) == "Hello"
    api.generate("m", "<|user|>hi", raw=True)
    assert engine.last_prompt == "<|user|>hi"


def test_streams_are_lines_and_the_default(http: httpx.Client) -> None:
    assert [line["message"]["content"] for line in lines(http.post("/api/chat", json={"messages": ASK}))] == [
        "h",
        "i",
        "",
    ]
    assert [line["response"] for line in lines(http.post("/api/generate", json={"prompt": "x"}))] == ["h", "i", ""]


def test_options_reach_the_task(http: httpx.Client, engine: CannedEngine) -> None:
    options = {"num_predict": 5, "temperature": 0.25, "top_k": 7, "stop": ["A"], "seed": 3, "num_ctx": 9, "num_keep": 2}
    more = {"repeat_last_n": -1, "repeat_penalty": 1.5}
    body = {"messages": ASK, "options": {**options, **more}, "keep_alive": "5m", "stream": False, "think": False}
    assert http.post("/api/chat", json=body).status_code == 200
    (task,) = engine.tasks
    assert (task.limits.n_predict, task.limits.stop, task.n_keep) == (5, ("A",), 2)
    s = task.sampling
    assert (s.temperature, s.top_k, s.seed, s.repeat_last_n, s.repeat_penalty) == (0.25, 7, 3, 1024, 1.5)
    assert engine.last_prompt.endswith("<think></think>")
    http.post("/api/chat", json={"messages": ASK, "options": {"num_predict": -2}})
    assert engine.tasks[-1].limits.n_predict == -1


def test_a_history_with_tools_becomes_a_prompt(api: ollama.Client, engine: CannedEngine) -> None:
    call = ollama.Message.ToolCall(
        function=ollama.Message.ToolCall.Function(name="weather", arguments={"city": "Rome"})
    )
    messages = [
        *ASK,
        ollama.Message(role="assistant", thinking="Hm.", content="I look.", tool_calls=[call]),
        ollama.Message(role="tool", tool_name="weather", content="sunny"),
    ]
    api.chat("m", messages, tools=TOOLS)
    assert engine.last_prompt.endswith(
        f"<|user|>hi<|assistant|><think>Hm.</think>I look.{CALL}<|tool|>sunny<|assistant|>"
    )


def test_a_cut_call_is_not_called(http: httpx.Client, engine: CannedEngine) -> None:
    """llama.cpp#28711."""
    engine.script = says("I look." + CALL[:60], StopReason.LIMIT)
    body = {"messages": ASK, "tools": TOOLS}
    whole = http.post("/api/chat", json={**body, "stream": False}).json()
    assert whole["message"] == {"role": "assistant", "content": "I look."} and whole["done_reason"] == "length"
    told = lines(http.post("/api/chat", json=body))
    assert not any("tool_calls" in line["message"] for line in told) and told[-1]["done_reason"] == "length"


def test_logprobs(api: ollama.Client, engine: CannedEngine) -> None:
    def script(task: Task) -> list[Event]:
        probs = tuple(TokenProbs(token, -0.5, ((token, -0.5),), False) for token in b"hi")
        first, *chunks, last = says("hi")(task)
        assert isinstance(last, Finished)
        told = [replace(chunk, probs=(entry,)) for chunk, entry in zip(chunks, probs, strict=True)]  # type: ignore[type-var]
        return [first, *told, replace(last, probs=probs)]

    engine.script = script
    entries = api.chat("m", ASK, logprobs=True, top_logprobs=1).logprobs or ()
    assert [(entry.token, entry.logprob) for entry in entries] == [("h", -0.5), ("i", -0.5)]
    streamed = [entry for part in api.chat("m", ASK, logprobs=True, stream=True) for entry in part.logprobs or ()]
    assert [entry.token for entry in streamed] == ["h", "i"]


def test_an_empty_question_only_loads(api: ollama.Client, engine: CannedEngine) -> None:
    assert api.generate("m", "").done_reason == "load"
    assert [part.done_reason for part in api.chat("m", [], stream=True)] == ["load"]
    assert engine.tasks == []


def test_failures(api: ollama.Client, http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = lambda task: [*says("Hello")(task)[:3], Failed(task.id, DecodeFailed("the forward pass failed"))]
    with pytest.raises(ollama.ResponseError, match="the forward pass failed"):
        list(api.chat("m", ASK, stream=True))
    engine.script = lambda task: [Failed(task.id, ExceedContext(900, 500))]
    refused = http.post("/api/chat", json={"messages": ASK})
    assert refused.status_code == 400 and refused.json()["error"].startswith("request (900 tokens) exceeds")


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "chat",
            {"messages": [{"role": "user", "content": "x", "images": ["aaaa"]}]},
            "Field 'messages.0.images': image input",
        ),
        ("chat", {"messages": [{"content": "x"}]}, "Field 'messages.0.role': type must be string"),
        ("chat", {"messages": ASK, "options": {"top_k": "x"}}, "Field 'top_k': type must be number"),
        (
            "chat",
            {"messages": [*ASK, {"role": "user", "content": 5}]},
            "Field 'messages.1.content': type must be string",
        ),
        ("chat", {"messages": ASK, "format": "xml"}, "Field 'format': must be 'json'"),
        ("chat", {"messages": ASK, "think": "hard"}, "Field 'think': must be true"),
        ("generate", {"prompt": "x", "suffix": "y"}, "Field 'suffix': not supported"),
        ("generate", {"prompt": 3}, "Field 'prompt': type must be string"),
    ],
)
def test_refusals(http: httpx.Client, path: str, fields: dict[str, Any], message: str) -> None:
    reply = http.post(f"/api/{path}", json=fields)
    assert reply.status_code == 400 and reply.json()["error"].startswith(message)


def test_what_the_model_is(api: ollama.Client) -> None:
    (listed,) = api.list().models
    (running,) = api.ps().models
    assert listed.model == running.model == "canned" and listed.digest and len(listed.digest) == 64
    assert listed.size == 4000 and listed.modified_at and running.context_length == 1024 and running.expires_at
    shown = api.show("canned")
    assert shown.template == TEMPLATE and set(shown.capabilities or ()) == {"completion", "tools", "thinking"}
    assert shown.details is not None and shown.details.quantization_level == "F32"
    assert api._request_raw("GET", "/api/version").json()["version"].count(".") == 2


def test_tools_work_with_every_template_and_thoughts_with_some(serve_sim: SimServer) -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for template, caps in ((plain, ["completion", "tools"]), (TEMPLATE, ["completion", "tools", "thinking"])):
        http = serve_sim(ServerConfig(port=0, chat_template=template))
        assert http.post("/api/show", json={"model": "x"}).json()["capabilities"] == caps


def test_keys_and_the_simulated_model(serve_sim: SimServer) -> None:
    http = serve_sim(ServerConfig(port=0, alias=("sim",), api_keys=(ApiKey("k"),), api_prefix="/llm"))
    refused = http.post("/llm/api/chat", json={"messages": ASK})
    assert (refused.status_code, refused.json()) == (401, {"error": "Invalid API Key"})
    http.headers["Authorization"] = "Bearer k"
    told = lines(http.post("/llm/api/generate", json={"prompt": "hi", "options": {"num_predict": 4}}))
    assert told[-1]["eval_count"] == 4 and told[-1]["done_reason"] == "length"


def test_a_tool_needs_no_type(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says(CALL)
    body = {"messages": ASK, "tools": [{"function": WEATHER["function"]}], "stream": False}
    assert http.post("/api/chat", json=body).json()["message"]["tool_calls"]
