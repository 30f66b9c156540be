"""Schemas of tools as agents send them: what cannot be held costs nothing but that, unless the tool is strict."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import pytest
from tests.api.canned import CALL, SERVER, TEMPLATE, CannedEngine, canned_runtime, says
from tests.api.conftest import SimServer
from tests.api.live import client

from corral.config import ServerConfig

ASK: Any = [{"role": "user", "content": "hi"}]
TEXT: Any = {"type": "string"}

WILD: dict[str, Any] = {
    "uniqueItems": {"type": "array", "items": TEXT, "uniqueItems": True},
    "not": {"not": {"type": "null"}},
    "if": {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
    "contains": {"type": "array", "contains": TEXT},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "format": {"type": "string", "format": "google-datetime"},
    "pattern": {"type": "string", "pattern": "^(?!-)[a-z-]+$"},
    "type": {"type": "any"},
    "$ref": {"$ref": "https://example.org/schema.json"},
    "minLength": {"type": "string", "minLength": "3"},
    "oneOf": {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
}
"""Parts of schemas as they are met in the wild, by the keyword that cannot be held."""


def tool(schema: Any, name: str = "look", **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def with_part(part: Any) -> Any:
    return {"type": "object", "properties": {"n": {"type": "integer"}, "x": part}, "required": ["n", "x"]}


@pytest.fixture(scope="module")
def engine() -> CannedEngine:
    return CannedEngine(says(CALL))


@pytest.fixture(scope="module")
def http(engine: CannedEngine) -> Iterator[httpx.Client]:
    with client(canned_runtime(engine, n_ctx=1 << 20), replace(SERVER, chat_template=TEMPLATE)) as http:
        yield http


def held_text(engine: CannedEngine) -> str:
    held = engine.tasks[-1].sampling.constraint
    assert held is not None
    return held.text


@pytest.mark.parametrize("word", WILD)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_keyword_that_cannot_be_held_does_not_cost_the_chat(
    http: httpx.Client, engine: CannedEngine, word: str, choice: str
) -> None:
    body = {"messages": ASK, "tools": [tool(with_part(WILD[word])), tool({}, "other")], "tool_choice": choice}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert json.dumps({word: WILD[word][word]})[1:-1] not in held_text(engine)
    assert '"n": {"type": "integer", ' in held_text(engine)


def test_what_is_left_out_is_logged_once_a_request(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    tools = [
        tool(with_part({"type": "array", "uniqueItems": True}), "first"),
        tool(with_part({"type": "string", "format": "odd"}), "second"),
        tool(with_part(TEXT), "third"),
    ]
    with caplog.at_level(logging.DEBUG, "corral.chat"):
        for _ in range(2):
            assert http.post("/v1/chat/completions", json={"messages": ASK, "tools": tools}).status_code == 200
    lines = [record for record in caplog.records if record.name.startswith("corral.chat")]
    assert [line.levelno for line in lines] == [logging.INFO, logging.DEBUG]
    for line in lines:
        assert "first: /properties/x/uniqueItems: the keyword 'uniqueItems' is not supported" in line.message
        assert "second: /properties/x/format: Unknown format: odd" in line.message
        assert "third" not in line.message


def test_types_in_capitals_are_read(serve_sim: SimServer) -> None:
    schema = {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}, "on": {"type": "Boolean"}}, "required": ["n"]}
    call = forced_call(serve_sim, tool(schema))
    jsonschema.validate(call, {"type": "object", "properties": {"n": {"type": "integer"}, "on": {"type": "boolean"}}})
    assert "n" in call


def forced_call(serve_sim: SimServer, one: Any) -> Any:
    """The arguments of the call that a simulated model is made to write."""
    http = serve_sim(ServerConfig(port=0, chat_template=TEMPLATE))
    body = {"messages": ASK, "tools": [one], "tool_choice": "required", "parallel_tool_calls": False, "seed": 3}
    response = http.post("/v1/chat/completions", json={**body, "max_tokens": 900})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "look"
    return json.loads(call["function"]["arguments"])


def test_the_rest_of_an_argument_is_held(serve_sim: SimServer) -> None:
    part = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 2, "maxItems": 3}
    schema = {"type": "object", "properties": {"x": part}, "required": ["x"], "additionalProperties": False}
    call = forced_call(serve_sim, tool(schema))
    assert 2 <= len(call["x"]) <= 3 and set(call["x"]) <= {1, 2}


def anthropic(one: Any, strict: bool) -> Any:
    made = {"name": "look", "input_schema": one} | ({"strict": True} if strict else {})
    return {"model": "m", "max_tokens": 9, "messages": ASK, "tools": [made]}


def requests_of(schema: Any, strict: bool) -> list[tuple[str, Any]]:
    """The same chat on every route that takes tools."""
    more = {"strict": True} if strict else {}
    function = tool(schema, **more)
    return [
        ("/v1/chat/completions", {"messages": ASK, "tools": [function]}),
        (
            "/v1/responses",
            {"input": "hi", "tools": [{"type": "function", "name": "look", "parameters": schema, **more}]},
        ),
        ("/v1/messages", anthropic(schema, strict)),
        ("/api/chat", {"model": "m", "messages": ASK, "tools": [function], "stream": False}),
    ]


def error_text(body: Any) -> str:
    """The message in each route's shape."""
    error = body["error"]
    return str(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("word", WILD)
def test_a_strict_tool_is_held_to_the_letter_or_refused_by_tool_path_and_keyword(http: httpx.Client, word: str) -> None:
    for path, body in requests_of(with_part(WILD[word]), strict=True):
        response = http.post(path, json=body)
        assert response.status_code == 400, (path, response.text)
        message = error_text(response.json())
        assert "function 'look' is strict" in message and f"/properties/x/{word}: " in message
        assert "\n" not in message and "%json" not in message
    for path, body in requests_of(with_part(WILD[word]), strict=False):
        assert http.post(path, json=body).status_code == 200, path
    for path, body in requests_of(with_part(TEXT), strict=True):
        assert http.post(path, json=body).status_code == 200, path


def test_a_strict_tool_that_may_not_be_called_is_only_shown(http: httpx.Client) -> None:
    body = {"messages": ASK, "tools": [tool(with_part(WILD["not"]), strict=True)], "tool_choice": "none"}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


LARGE = {"type": "object", "properties": {f"p{i}": {**TEXT, "description": "x" * 300} for i in range(800)}}
ODD: list[Any] = [
    {"$ref": "#"},
    {"type": "string"},
    {"properties": {"a": "string"}},
    {"properties": []},
    {"required": True},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a{1000}){1000}"}}},
    {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 99_999_991}}},
    {"type": "object", "properties": {f"p{i}": TEXT for i in range(3000)}},
    LARGE,
    {"type": "object", "properties": {"a": {"type": "array", "minItems": 10**9}}, "required": ["a"]},
    {
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
        "$ref": "#/$defs/n",
    },
]


@pytest.mark.parametrize("schema", ODD, ids=range(len(ODD)))
def test_no_schema_costs_the_chat(http: httpx.Client, engine: CannedEngine, schema: Any) -> None:
    good = tool(with_part({"enum": ["red"]}), "good")
    for tools in ([tool(schema)], [good, tool(schema)], [tool(schema, f"t{i}") for i in range(3)]):
        response = http.post("/v1/chat/completions", json={"messages": ASK, "tools": tools})
        assert response.status_code == 200, response.text
    http.post("/v1/chat/completions", json={"messages": ASK, "tools": [good, tool(schema)]})
    assert '"enum": ["red"]' in held_text(engine), "what is wrong with one tool is not the other's fault"


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"type": "function", "function": {"parameters": {}}}], "the function needs a 'name'"),
        ([tool([])], "'parameters' of function 'look' must be a JSON schema"),
    ],
)
def test_a_malformed_tool_is_refused(http: httpx.Client, tools: Any, message: str) -> None:
    response = http.post("/v1/chat/completions", json={"messages": ASK, "tools": tools})
    assert response.status_code == 400 and message in error_text(response.json())


@pytest.mark.parametrize("word", WILD)
def test_a_response_format_that_cannot_be_held_is_refused_by_path_and_keyword(http: httpx.Client, word: str) -> None:
    schema = with_part(WILD[word])
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for path, body in [
        ("/v1/chat/completions", {"messages": ASK, "response_format": form}),
        ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_object", "schema": schema}}),
        ("/completion", {"prompt": "a", "json_schema": schema}),
        ("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}),
        ("/api/chat", {"model": "m", "messages": ASK, "format": schema, "stream": False}),
        ("/api/generate", {"model": "m", "prompt": "a", "format": schema, "stream": False}),
    ]:
        response = http.post(path, json=body)
        assert response.status_code == 400, (path, response.text)
        message = error_text(response.json())
        assert f"json_schema: /properties/x/{word}: " in message
        assert "\n" not in message and "%json" not in message and "|" not in message.replace("||", "")


ANSWER = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMS: list[Any] = [
    {"type": "json_schema", "json_schema": {"name": "x", "schema": ANSWER}},
    {"type": "json_object", "schema": ANSWER},
]


@pytest.mark.parametrize("form", FORMS)
def test_with_a_response_format_the_reply_is_calls_or_fits_it(serve_sim: SimServer, form: Any) -> None:
    http = serve_sim(ServerConfig(port=0, chat_template=TEMPLATE))
    schema = {**with_part({"enum": [1, 2]}), "additionalProperties": False}
    body = {"messages": ASK, "tools": [tool(schema)], "response_format": form, "parallel_tool_calls": False}
    body["chat_template_kwargs"] = {"enable_thinking": False}
    seen = set()
    for seed in range(12):
        response = http.post("/v1/chat/completions", json={**body, "max_tokens": 900, "seed": seed})
        assert response.status_code == 200, response.text
        message = response.json()["choices"][0]["message"]
        if calls := message.get("tool_calls"):
            assert not message["content"]
            assert all(json.loads(call["function"]["arguments"])["x"] in (1, 2) for call in calls)
        else:
            jsonschema.validate(json.loads(message["content"]), ANSWER)
        seen.add(bool(calls))
    assert seen == {True, False}


def test_a_call_that_is_forced_leaves_no_room_for_an_answer(http: httpx.Client, engine: CannedEngine) -> None:
    body = {"messages": ASK, "tools": [tool(with_part(TEXT))], "response_format": FORMS[0]}
    assert http.post("/v1/chat/completions", json={**body, "tool_choice": "required"}).status_code == 200
    assert '"ok"' not in held_text(engine)
    assert http.post("/v1/chat/completions", json={**body, "tool_choice": "none"}).status_code == 200
    assert json.loads(held_text(engine)) == ANSWER
    continued = {**body, "messages": [*ASK, {"role": "assistant", "content": '{"ok"'}]}
    assert http.post("/v1/chat/completions", json=continued).status_code == 200
    assert json.loads(held_text(engine)) == ANSWER


def test_a_response_format_that_cannot_be_held_is_refused_beside_tools(http: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": with_part(WILD["not"])}}
    body = {"messages": ASK, "tools": [tool(with_part(TEXT))], "response_format": form}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert error_text(response.json()) == "json_schema: /properties/x/not: the keyword 'not' is not supported"


def test_other_constraints_do_not_go_with_tools(http: httpx.Client) -> None:
    for held in ({"regex": "a"}, {"lark": 'start: "a"'}, {"grammar": 'root ::= "a"'}):
        response = http.post("/v1/chat/completions", json={"messages": ASK, "tools": [tool({})], **held})
        assert response.status_code == 400 and "Cannot use" in error_text(response.json())
