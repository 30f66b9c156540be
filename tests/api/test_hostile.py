"""Whatever a body holds, the answer is no fault of the server, and the server lives."""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.canned import SERVER, TEMPLATE, WEATHER
from tests.api.conftest import simulated
from tests.api.live import client

from corral.api.openapi import ROUTES, Route

ASK = [{"role": "user", "content": "hi"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CHAT = {
    "messages": [
        *ASK,
        {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny"},
    ],
    "tools": [WEATHER],
    "max_tokens": 2,
    "stop": ["a"],
    "chat_template_kwargs": {"enable_thinking": False},
}
COMPLETION: dict[str, Any] = {"prompt": ["x", 3], "n_predict": 2, "logit_bias": [[5, 1.0]], "stream_options": {}}
RESPONSES = {
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ],
    "tools": [{"type": "function", **WEATHER["function"]}],  # type: ignore[dict-item]
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "max_output_tokens": 2,
}
MESSAGES = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        *ASK,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
    ],
    "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "max_tokens": 2,
}
OLLAMA = {
    "messages": [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny"},
    ],
    "tools": [WEATHER],
    "options": {"num_predict": 2, "stop": ["a"], "repeat_last_n": -1},
    "think": True,
    "format": "",
}
BODIES: dict[str, Any] = {
    "/completion": COMPLETION,
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/chat/completions/control": {"id": "chatcmpl-x", "action": "reasoning_end"},
    "/apply-template": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/api/chat": OLLAMA,
    "/api/generate": {"prompt": "x", "system": "y", "options": {"num_predict": 2}, "raw": False},
    "/api/show": {"model": "x"},
    "/v1/streams/lookup": {"conversation_ids": ["x"]},
    "/tokenize": {"content": ["x", 3], "with_pieces": True},
    "/detokenize": {"tokens": [1, 2]},
    "/lora-adapters": [{"id": 0, "scale": 1.0}],
    "/props": {},
    "/slots/{id_slot}": {"filename": "x"},
    "/cache/warm": {"prompt": "x", "cache_salt": ""},
    "/cache/pin": {"messages": ASK, "pinned": True},
}
POSTS = {route.paths[0]: route for route in ROUTES if route.method == "POST"}


def _nested(depth: int, key: str | None) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if key is None else {key: value}
    return value


SCALARS: list[Any] = [None, True, False, 0, 1, -1, 2, 1.5, 2**31, -(2**31), 2**63, 2**64, 10**30, 1e308, -1e-320]
TEXTS = ["", "\0", "a\0b", "\ud800", "x\udfff", "\U0001f600", "<eos>", "{", "$ref", "x" * 5000, "json_schema"]
SHAPES: list[Any] = [
    [],
    {},
    [[]],
    [{}],
    {"": None},
    [None],
    [0],
    ["", 0],
    [[1, 2], "x"],
    [True],
    [-1],
    {"type": "text"},
]
NESTS = [_nested(depth, key) for depth in (20, 70, 150, 190) for key in (None, "properties", "content")]
REPLACEMENTS = st.sampled_from([*SCALARS, *TEXTS, *SHAPES, *NESTS, float("nan"), float("inf"), 10**400])


def _places(body: Any) -> list[tuple[Any, Any]]:
    """Every member of every container, as container and key."""
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    return [place for key, value in items for place in [(body, key), *_places(value)]]


@st.composite
def hostile(draw: st.DrawFn, route: Route) -> bytes:
    """A good body with up to three wrong members, or other JSON, or none."""
    if draw(st.integers(0, 9)) == 0:
        value = draw(REPLACEMENTS)
        return draw(st.sampled_from([json.dumps(value).encode(), b"", b"{", b"\xff\xfe", b"[" * 3000, b'{"a":' * 2000]))
    body = copy.deepcopy(BODIES[route.paths[0]])
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        names = sorted(route.body.model_fields) if route.body and isinstance(body, dict) else []
        if names and draw(st.booleans()):
            body[draw(st.sampled_from(names))] = copy.deepcopy(draw(REPLACEMENTS))
        elif places := _places(body):
            container, key = draw(st.sampled_from(places))
            container[key] = copy.deepcopy(draw(REPLACEMENTS))
    return json.dumps(body).encode()


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("hostile")
    server = replace(
        SERVER,
        chat_template=TEMPLATE,
        endpoint_props=True,
        slot_save_path=folder,
        responses_store=folder / "responses.db",
        responses_store_max=10,
    )
    with simulated(n_slots=2, n_ctx=512) as runtime, client(runtime, server) as served:
        yield served


N_EXAMPLES = 1000 if os.environ.get("CORRAL_LONG") else 30


def test_every_route_with_a_body_is_tried() -> None:
    assert set(BODIES) == set(POSTS)


@pytest.mark.parametrize("path", BODIES)
def test_no_body_is_a_fault_of_the_server(http: httpx.Client, path: str) -> None:
    where = path.format(id_slot=0) + ("?action=save" if "{" in path else "")

    @settings(
        max_examples=N_EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    @given(hostile(POSTS[path]))
    def run(body: bytes) -> None:
        reply = http.post(where, content=body)
        assert reply.status_code < 500, f"{reply.status_code} {reply.text[:300]} for {body[:2000]!r}"
        assert b"internal error" not in reply.content, f"{body[:2000]!r}"

    run()
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_the_good_body_works(http: httpx.Client, path: str) -> None:
    where = path.format(id_slot=0) + ("?action=save" if "{" in path else "")
    reply = http.post(where, json=BODIES[path])
    assert reply.is_success or path == "/lora-adapters", reply.text


def test_bodies_that_nest_too_deeply_are_refused(http: httpx.Client) -> None:
    body = {"prompt": "x", "n_predict": 1, "unknown": _nested(250, None)}
    reply = http.post("/completion", json=body)
    assert reply.status_code == 400 and "nests more than 200 levels" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "x", "regex": "(" * 9000}),
        ("/completion", {"prompt": "x", "json_schema": {"type": "x" * 9000}}),
        ("/v1/chat/completions", {"messages": ASK, "tool_choice": "x" * 9000}),
        ("/v1/messages", {"messages": ASK, "max_tokens": 1, "tools": [{"name": "f", "type": "x" * 9000}]}),
        ("/api/chat", {"messages": ASK, "format": {"type": "x" * 9000}}),
    ],
)
def test_a_refusal_does_not_repeat_all_that_was_sent(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    refused = http.post(path, json=body)
    assert refused.status_code == 400 and "characters left out" in refused.text and len(refused.text) < 4000


def test_a_mark_before_the_body_is_no_part_of_it(http: httpx.Client) -> None:
    """As nlohmann's parser has it: editors of Windows write one."""
    raw = b"\xef\xbb\xbf" + json.dumps({"prompt": "x", "n_predict": 1}).encode()
    assert http.post("/completion", content=raw).status_code == 200


def test_a_compressed_body_is_refused_by_name(http: httpx.Client) -> None:
    raw = gzip.compress(json.dumps({"prompt": "x"}).encode())
    refused = http.post("/completion", content=raw, headers={"Content-Encoding": "GZIP"})
    assert refused.status_code == 400 and "compressed ('gzip'): send it as it is" in refused.json()["error"]["message"]
