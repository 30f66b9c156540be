"""How a reply begins, goes on, fails and ends, over an engine that says exactly what the test wants."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.api.canned import SERVER, CannedEngine, canned_runtime, says
from tests.api.live import client, events

from corral.errors import ExceedContext, ServerError, Unavailable
from corral.events import Chunk, Event, Failed, Progress, Started, Timings
from corral.ids import SlotId
from corral.tasks import Task

PATHS = ("/completion", "/v1/completions", "/v1/chat/completions")
BODY: dict[str, Any] = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "stream": True}


@pytest.fixture(scope="module")
def server(engine: CannedEngine) -> Iterator[httpx.Client]:
    with client(canned_runtime(engine), SERVER) as http:
        yield http


@pytest.fixture
def http(engine: CannedEngine, server: httpx.Client) -> httpx.Client:
    engine.start_again()
    return server


def fails(error: Exception, *before: Callable[[Task], Event]) -> Callable[[Task], list[Event]]:
    return lambda task: [*(event(task) for event in before), Failed(task.id, error)]  # type: ignore[arg-type]


def started(task: Task) -> Event:
    return Started(task.id, SlotId(0), len(task.prompt), 0)


def chunk(task: Task) -> Event:
    return Chunk(task.id, "half", (1,), 1, Timings(0, 1, 1.0, 1, 1.0))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_first_event_that_fails_is_an_http_error(
    http: httpx.Client, engine: CannedEngine, path: str, stream: bool
) -> None:
    engine.script = fails(ExceedContext(3000, 1024))
    response = http.post(path, json={**BODY, "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"] == {
        "code": 400,
        "message": "request (3000 tokens) exceeds the available context size (1024 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 3000,
        "n_ctx": 1024,
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n_batch", [1, 10])
def test_a_later_failure_is_an_event_and_the_end(
    http: httpx.Client, engine: CannedEngine, path: str, n_batch: int
) -> None:
    engine.script, engine.n_batch = fails(ServerError("Compute error."), started, chunk), n_batch
    response = http.post(path, json=BODY)
    data = events(response)
    assert response.status_code == 200
    assert "half" in json.dumps(data[:-1])
    assert data[-1] == {"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}


@pytest.mark.parametrize("path", PATHS)
def test_a_failure_in_a_whole_reply_has_its_status(http: httpx.Client, engine: CannedEngine, path: str) -> None:
    engine.script = fails(ServerError("Compute error."), started, chunk)
    response = http.post(path, json={**BODY, "stream": False})
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize("path", PATHS)
def test_a_grammar_is_checked_on_a_worker_before_the_engine_hears_of_it(
    http: httpx.Client, engine: CannedEngine, path: str
) -> None:
    response = http.post(path, json={**BODY, "grammar": "bad"})
    assert (response.status_code, response.json()["error"]["message"]) == (400, "bad grammar")
    assert engine.tasks == []


def test_one_failed_choice_cancels_the_others(http: httpx.Client, engine: CannedEngine) -> None:
    def script(task: Task) -> list[Event]:
        return [Failed(task.id, ServerError("no"))] if task.index else [started(task)]

    engine.script = script
    assert http.post("/completion", json={**BODY, "n": 2, "stream": False}).status_code == 500
    assert engine.cancelled == [engine.tasks[0].id]


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_a_503_with_retry_after(http: httpx.Client, engine: CannedEngine, stream: bool) -> None:
    engine.refusal = Unavailable("the queue is full", retry_after_s=7)
    response = http.post("/completion", json={**BODY, "stream": stream})
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    assert response.json()["error"]["type"] == "unavailable_error"


def test_the_status_line_comes_when_the_prompt_starts(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = lambda task: [started(task)]
    with http.stream("POST", "/completion", json={**BODY, "sse_ping_interval": 0}) as response:
        assert response.status_code == 200
        assert response.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("before", [[], [started]], ids=["queued", "in prefill"])
def test_pings_fill_silence(http: httpx.Client, engine: CannedEngine, before: list[Callable[[Task], Event]]) -> None:
    """Also while the request waits for a slot: proxies cut silent connections."""
    engine.script = lambda task: [event(task) for event in before]
    with http.stream("POST", "/completion", json={**BODY, "sse_ping_interval": 1}) as response:
        assert response.status_code == 200
        assert next(response.iter_raw()) == b":\n\n"


def test_chunks_that_are_there_together_are_events_of_their_own(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script, engine.n_batch = says("abc"), 100
    data = events(http.post("/completion", json=BODY))
    assert [event["content"] for event in data] == ["a", "b", "c", ""]


def test_native_stream(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says("é")
    first, final = events(http.post("/completion", json=BODY))
    assert first == {
        "index": 0,
        "content": "é",
        "tokens": [195, 169],
        "stop": False,
        "id_slot": 0,
        "tokens_predicted": 2,
        "tokens_evaluated": 2,
    }
    assert (final["content"], final["tokens"], final["stop"], final["stop_type"]) == ("", [], True, "eos")


def test_native_reply_has_its_keys_in_order(http: httpx.Client) -> None:
    reply = http.post("/completion", json={**BODY, "stream": False, "return_tokens": True}).json()
    assert list(reply) == [
        "index",
        "content",
        "tokens",
        "id_slot",
        "stop",
        "model",
        "tokens_predicted",
        "tokens_evaluated",
        "generation_settings",
        "prompt",
        "has_new_line",
        "truncated",
        "stop_type",
        "stopping_word",
        "tokens_cached",
        "timings",
    ]
    assert (reply["content"], reply["tokens"], reply["prompt"], reply["model"]) == (
        "hi",
        [104, 105],
        "<bos>x",
        "canned",
    )


def test_timings(http: httpx.Client) -> None:
    timings = http.post("/completion", json={**BODY, "stream": False}).json()["timings"]
    assert timings == {
        "cache_n": 0,
        "prompt_n": 2,
        "prompt_ms": 5.0,
        "prompt_per_token_ms": 2.5,
        "prompt_per_second": 400.0,
        "predicted_n": 2,
        "predicted_ms": 4.0,
        "predicted_per_token_ms": 4.0,
        "predicted_per_second": 250.0,
    }


@pytest.mark.parametrize("path", PATHS)
def test_timings_per_token(http: httpx.Client, path: str) -> None:
    data = events(http.post(path, json={**BODY, "timings_per_token": True}))
    first = next(event for event in data if "h" in json.dumps(event.get("choices", event.get("content"))))
    with_timings = [event for event in data if event != "[DONE]" and "timings" in event]
    assert len(with_timings) == 3
    assert "timings" in first or path == "/v1/chat/completions"


@pytest.mark.parametrize("path", PATHS)
def test_a_chunk_that_has_timings_shows_them(http: httpx.Client, engine: CannedEngine, path: str) -> None:
    engine.script = lambda task: [started(task), chunk(task), says("")(task)[-1]]
    data = events(http.post(path, json=BODY))
    (shown,) = [event for event in data if event != "[DONE]" and "half" in json.dumps(event)]
    assert shown["timings"]["predicted_n"] == 1


def test_response_fields(http: httpx.Client) -> None:
    fields = ["content", "generation_settings/n_predict", "timings/no", "nothing"]
    reply = http.post("/completion", json={**BODY, "stream": False, "response_fields": fields}).json()
    assert reply == {"content": "hi", "generation_settings/n_predict": -1}


def test_several_prompts_are_numbered_with_their_choices(http: httpx.Client, engine: CannedEngine) -> None:
    body = {**BODY, "prompt": ["a", "b"], "n": 2, "stream": False}
    replies = http.post("/completion", json=body).json()
    assert [(reply["index"], reply["prompt"]) for reply in replies] == [
        (0, "<bos>a"),
        (1, "<bos>a"),
        (2, "<bos>b"),
        (3, "<bos>b"),
    ]
    assert [task.parent for task in engine.tasks] == [None, engine.tasks[0].id, None, engine.tasks[2].id]
    merged = http.post("/v1/completions", json=body).json()
    assert [choice["index"] for choice in merged["choices"]] == [0, 1, 2, 3]
    assert merged["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("path", PATHS)
def test_progress_events(http: httpx.Client, engine: CannedEngine, path: str) -> None:
    def script(task: Task) -> list[Event]:
        assert task.return_progress
        begin, *rest = says("hi")(task)
        return [begin, Progress(task.id, 9, 3, 5, 1.5), *rest]

    engine.script = script
    first = events(http.post(path, json={**BODY, "return_progress": True}))[0]
    assert first["prompt_progress"] == {"total": 9, "cache": 3, "processed": 5, "time_ms": 1}
    assert isinstance(first["prompt_progress"]["time_ms"], int)  # typed clients read it as one


def test_a_chat_stream_begins_with_the_role_and_ends_with_done(http: httpx.Client) -> None:
    data = events(http.post("/v1/chat/completions", json=BODY))
    deltas = [event["choices"][0]["delta"] for event in data[:-1]]
    assert deltas == [{"role": "assistant", "content": None}, {"content": "h"}, {"content": "i"}, {}]
    assert [event["choices"][0]["finish_reason"] for event in data[:-1]] == [None, None, None, "stop"]
    assert {event["object"] for event in data[:-1]} == {"chat.completion.chunk"}
    assert len({event["id"] for event in data[:-1]}) == 1
    assert "timings" in data[-2] and data[-1] == "[DONE]"


def test_a_chat_reply_without_text(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says("")
    data = events(http.post("/v1/chat/completions", json=BODY))
    assert [event["choices"][0]["delta"] for event in data[:-1]] == [{"role": "assistant", "content": None}, {}]
    reply = http.post("/v1/chat/completions", json={**BODY, "stream": False}).json()
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": ""}


def test_echo_repeats_what_is_continued(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well, "}]
    body = {"messages": messages, "echo": True}
    assert http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"] == "Well, hi"
    data = events(http.post("/v1/chat/completions", json={**body, "stream": True}))
    assert [event["choices"][0]["delta"].get("content") for event in data[:3]] == [None, "Well, ", "h"]


def test_verbose_adds_the_native_reply(http: httpx.Client) -> None:
    for path in PATHS[1:]:
        reply = http.post(path, json={**BODY, "stream": False, "verbose": True}).json()
        assert reply["__verbose"]["content"] == "hi"
        assert reply["__verbose"]["prompt"].startswith("<bos>")
        data = events(http.post(path, json={**BODY, "verbose": True}))
        (last,) = [event for event in data if "__verbose" in event]
        assert last["choices"][0]["finish_reason"] == "stop"
        assert last["__verbose"]["content"] == "hi"


def test_what_a_task_carries(http: httpx.Client, engine: CannedEngine) -> None:
    http.post("/completion", json={**BODY, "id_slot": 6, "n": 2, "cache_salt": "s", "cache_prompt": False, "seed": 9})
    first, second = engine.tasks
    assert (first.id_slot, second.id_slot) == (2, None)
    assert (first.sampling.seed, second.sampling.seed) == (9, 10)
    assert second == second and replace(first.sampling, seed=10) == second.sampling
    assert {task.cache_key for task in engine.tasks} == {":s"}
    assert not first.cache_prompt and first.request_id.startswith("chatcmpl-")
