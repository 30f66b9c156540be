"""Any reply, cut anywhere and told in any pieces: streams of Responses and Messages keep the providers' rules.

What the events add up to is what the whole reply says. The rules are in ``tests/api/sequences.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.api.canned import CALL, SERVER, TEMPLATE, WEATHER, CannedEngine, Script, canned_runtime, says
from tests.api.live import client, until
from tests.api.sequences import MessageStream, ResponseStream, check_message, check_response

from corral.errors import DecodeFailed
from corral.events import Event, Failed, StopReason
from corral.tasks import Task

Json = dict[str, Any]

FUNCTION: Any = WEATHER["function"]
RESPONSES: Json = {"input": "hi", "tools": [{"type": "function", **FUNCTION}]}
MESSAGES: Json = {
    "max_tokens": 99,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "weather", "input_schema": FUNCTION["parameters"]}],
}
BODIES = {"/v1/responses": RESPONSES, "/v1/messages": MESSAGES}
OTHER = CALL.replace("Rome", "São Paulo")
PARTS = st.sampled_from(
    ["Hello ", "I look.\n", "a < b", "日本 ", "</think>", f"{CALL}\n", f"{OTHER}\n", "\n\n", "<tool_"]
)
REPLIES = st.builds(
    lambda thoughts, parts: thoughts + "".join(parts),
    st.sampled_from(["", "<think>Hm.</think>", "<think>\nHm, é.\n</think>\n\n", "<think>\n\n</think>\n\n"]),
    st.lists(PARTS, max_size=6),
)
INTERLEAVED = f"<think>Hm.</think>First.\n{CALL}\nThen.\n{OTHER}\n{CALL}\nDone."
ENDS = [(StopReason.EOS, ""), (StopReason.LIMIT, ""), (StopReason.WORD, "STOP")]


@pytest.fixture(scope="module")
def http(engine: CannedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    store: Path = tmp_path_factory.mktemp("store") / "responses.db"
    config = replace(SERVER, chat_template=TEMPLATE, responses_store=store, responses_store_max=100)
    with client(canned_runtime(engine), config) as served:
        yield served


def response_parts(items: list[Json]) -> list[tuple[str, str]]:
    return [
        (item["type"], item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        for item in items
    ]


def message_parts(blocks: list[Json]) -> list[tuple[str, Any]]:
    return [
        (block["type"], block["input"] if block["type"] == "tool_use" else block[block["type"]]) for block in blocks
    ]


def with_inputs(blocks: list[Json]) -> list[Json]:
    """Blocks of a stream with their joined JSON read, as clients do; that of a cut call stays text."""
    return [block | {"input": _input(block["raw"])} if block["type"] == "tool_use" else block for block in blocks]


def _input(raw: str) -> Json:
    try:
        read = json.loads(raw or "{}")
    except json.JSONDecodeError:
        return {"arguments": raw}
    return read if isinstance(read, dict) else {"arguments": raw}


def settled(test: Any) -> Any:
    """40 examples, the same in each run; the engine's script is what changes in the fixtures."""
    return settings(
        max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )(test)


@settled
@example(INTERLEAVED, 10**6, ENDS[0], 1)
@example(INTERLEAVED, 10**6, ENDS[0], 1000)
@given(REPLIES, st.integers(0, 10**6), st.sampled_from(ENDS), st.sampled_from([1, 2, 7, 1000]))
def test_responses(
    http: httpx.Client, engine: CannedEngine, text: str, cut: int, end: tuple[StopReason, str], n_batch: int
) -> None:
    engine.script, engine.n_batch = says(text[:cut], *end), n_batch
    reply = http.post("/v1/responses", json={**RESPONSES, "stream": True})
    streamed = ResponseStream(reply.text).response
    whole = check_response(http.post("/v1/responses", json=RESPONSES).json())
    assert response_parts(streamed["output"]) == response_parts(whole["output"])
    assert [streamed[key] for key in ("status", "usage")] == [whole[key] for key in ("status", "usage")]
    assert (whole["status"] == "incomplete") == (end[0] is StopReason.LIMIT)


@settled
@example(INTERLEAVED, 10**6, ENDS[0], 1)
@example(INTERLEAVED, 10**6, ENDS[0], 1000)
@given(REPLIES, st.integers(0, 10**6), st.sampled_from(ENDS), st.sampled_from([1, 2, 7, 1000]))
def test_messages(
    http: httpx.Client, engine: CannedEngine, text: str, cut: int, end: tuple[StopReason, str], n_batch: int
) -> None:
    engine.script, engine.n_batch = says(text[:cut], *end), n_batch
    reply = http.post("/v1/messages", json={**MESSAGES, "stream": True})
    streamed = MessageStream(reply.text).message
    whole = check_message(http.post("/v1/messages", json=MESSAGES).json())
    assert message_parts(with_inputs(streamed["content"])) == message_parts(whole["content"])
    same = ("stop_reason", "stop_sequence", "usage")
    assert [streamed[key] for key in same] == [whole[key] for key in same]
    assert (whole["stop_reason"] == "max_tokens") == (end[0] is StopReason.LIMIT)


def test_calls_between_texts(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script, engine.n_batch = says(INTERLEAVED), 1
    items = ResponseStream(http.post("/v1/responses", json={**RESPONSES, "stream": True}).text).items
    assert [item["type"] for item in items] == [
        "reasoning",
        "message",
        "function_call",
        "message",
        "function_call",
        "function_call",
        "message",
    ]
    blocks = MessageStream(http.post("/v1/messages", json={**MESSAGES, "stream": True}).text).message["content"]
    assert [block["type"] for block in blocks] == [
        "thinking",
        "text",
        "tool_use",
        "text",
        "tool_use",
        "tool_use",
        "text",
    ]
    cities = [json.loads(block["raw"])["city"] for block in blocks if block["type"] == "tool_use"]
    assert cities == ["Rome", "São Paulo", "Rome"]


def breaks_after(n_events: int, text: str = INTERLEAVED) -> Script:
    def script(task: Task) -> list[Event]:
        return [*says(text)(task)[:n_events], Failed(task.id, DecodeFailed("the forward pass failed"))]

    return script


N_EVENTS = len(INTERLEAVED) + 1


@pytest.mark.parametrize("n_events", [1, 2, 9, 20, 40, 90, 120, 200, N_EVENTS])
def test_a_failure_at_any_moment(http: httpx.Client, engine: CannedEngine, n_events: int) -> None:
    engine.script, engine.n_batch = breaks_after(n_events), 1
    failed = ResponseStream(http.post("/v1/responses", json={**RESPONSES, "stream": True}).text).response
    assert failed["status"] == "failed" and failed["error"]["message"] == "the forward pass failed"
    assert http.get(f"/v1/responses/{failed['id']}").status_code == 404
    message = MessageStream(http.post("/v1/messages", json={**MESSAGES, "stream": True}).text)
    assert message.error == {"type": "api_error", "message": "the forward pass failed"}


@pytest.mark.parametrize("path", BODIES)
def test_a_fault_of_the_server_ends_the_stream_with_an_error(
    http: httpx.Client, engine: CannedEngine, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that only ends looks whole to some clients. The connection can be used again, and the log has it."""

    def script(task: Task) -> list[Event]:
        *before, end = says("Hello")(task)
        return [*before, replace(end, timings=None)]  # type: ignore[arg-type, call-arg]

    engine.script, engine.n_batch = script, 1
    text = http.post(path, json={**BODIES[path], "stream": True}).text
    if path == "/v1/messages":
        assert MessageStream(text).error == {"type": "api_error", "message": "internal error"}
    else:
        assert ResponseStream(text).response["error"] == {"code": "server_error", "message": "internal error"}
    assert http.get("/health").status_code == 200
    assert "the stream failed" in caplog.text and "AttributeError" in caplog.text


@pytest.mark.parametrize("n_events", [1, 2, 20, 40, 120, 200])
@pytest.mark.parametrize("path", BODIES)
def test_a_client_that_leaves_stops_its_task_and_nothing_is_kept(
    http: httpx.Client, engine: CannedEngine, path: str, n_events: int
) -> None:
    engine.script, engine.n_batch = lambda task: says(INTERLEAVED)(task)[:n_events], 1
    engine.tasks.clear()
    engine.cancelled.clear()
    with http.stream("POST", path, json={**BODIES[path], "stream": True, "sse_ping_interval": -1}) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("event: ")
        (task,) = engine.tasks
        assert not engine.cancelled
    until(lambda: engine.cancelled == [task.id], "the task is cancelled")
    kept = f"resp_{task.request_id.rpartition('-')[2]}"
    assert http.get(f"/v1/responses/{kept}").status_code == 404
