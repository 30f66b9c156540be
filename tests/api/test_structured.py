"""What text is held to, over HTTP: response_format, json_schema, regex, lark, grammars with triggers."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tests.api.conftest import SimServer

from corral.config import ServerConfig

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
RESPONSE_FORMATS: list[dict[str, Any]] = [
    {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
    {"type": "json_object", "schema": SCHEMA},
]
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
PROMPT = {"prompt": "Hello"}
ROUTES: list[tuple[str, dict[str, Any]]] = [("/v1/chat/completions", CHAT), ("/v1/completions", PROMPT)]


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    body = response.json()
    if "content" in body:
        return str(body["content"])
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def refusal(response: httpx.Response) -> str:
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("form", RESPONSE_FORMATS)
def test_response_format(serve_sim: SimServer, path: str, body: dict[str, Any], form: dict[str, Any]) -> None:
    http = serve_sim()
    for seed in range(3):
        text = text_of(http.post(path, json={**body, "response_format": form, "seed": seed, "max_tokens": 300}))
        jsonschema.validate(json.loads(text), SCHEMA)


def test_native_json_schema_and_what_the_reply_says(serve_sim: SimServer) -> None:
    response = serve_sim().post("/completion", json={**PROMPT, "json_schema": SCHEMA, "seed": 1, "n_predict": 300})
    jsonschema.validate(json.loads(text_of(response)), SCHEMA)
    assert response.json()["stop_type"] == "eos"
    assert json.loads(response.json()["generation_settings"]["grammar"]) == SCHEMA


def test_text_is_text(serve_sim: SimServer) -> None:
    body = {**PROMPT, "response_format": {"type": "text"}, "json_schema": None, "grammar": None, "n_predict": 4}
    assert text_of(serve_sim().post("/completion", json=body))


def test_choices_of_one_request_are_each_held(serve_sim: SimServer) -> None:
    body = {**CHAT, "response_format": RESPONSE_FORMATS[0], "n": 3, "max_tokens": 300, "seed": 3}
    choices = serve_sim(n_slots=4).post("/v1/chat/completions", json=body).json()["choices"]
    assert len(choices) == 3
    for choice in choices:
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_regex_and_lark(serve_sim: SimServer) -> None:
    http = serve_sim()
    assert text_of(http.post("/completion", json={**PROMPT, "regex": "ab{3}c"})) == "abbbc"
    assert text_of(http.post("/completion", json={**PROMPT, "lark": 'start: "x" y\ny: "yz"'})) == "xyz"


TEMPLATES = Path(__file__).parents[1] / "unit" / "chat" / "templates"
KIMI_K3 = (
    '{% for m in messages %}<|open|>message role="{{ m.role }}"<|sep|>{{ m.content }}<|close|>message<|sep|>'
    '<|end_of_msg|>{% endfor %}{% if add_generation_prompt %}<|open|>message role="assistant"<|sep|>{% endif %}'
)


@pytest.mark.parametrize("template", ["harmony", "functionary-3.2", "kimi-k3"])
def test_an_answer_is_held_where_a_mark_stands_before_it(serve_sim: SimServer, template: str) -> None:
    """Whatever the model would make up in place of the mark."""
    source = KIMI_K3 if template == "kimi-k3" else (TEMPLATES / f"{template}.jinja").read_text()
    http = serve_sim(ServerConfig(port=0, chat_template=source))
    for asked in ({"regex": "ab{3}c"}, {"lark": 'start: "ab" /b{2}/ "c"'}, {"grammar": 'root ::= "a" "b"+ "bbc"'}):
        for seed in range(3):
            body = {**CHAT, **asked, "seed": seed, "max_tokens": 500, "reasoning_budget_tokens": 5}
            assert re.fullmatch("ab{3,}c", text_of(http.post("/v1/chat/completions", json=body)))


ASKED: list[dict[str, Any]] = [
    {"json_schema": {"const": "ab"}},
    {"regex": '"ab"'},
    {"lark": 'start: "\\"ab\\""'},
    {"grammar": r'root ::= "\"ab\""'},
]
EVERY_ROUTE = {
    "/completion": {"prompt": "x"},
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "x"},
    "/v1/messages": {**CHAT, "max_tokens": 20},
    "/api/chat": {**CHAT, "stream": False},
    "/api/generate": {"prompt": "x", "stream": False},
}


@pytest.mark.parametrize("path", EVERY_ROUTE)
def test_every_route_of_completions_holds_every_constraint(serve_sim: SimServer, path: str) -> None:
    http = serve_sim()
    for asked in ASKED:
        assert r'"\"ab\""' in http.post(path, json={**EVERY_ROUTE[path], **asked}).text, asked
    later = {"grammar_lazy": True, "grammar_triggers": [{"value": letter} for letter in "etaoinshrdlu"]}
    lazy = {"grammar": 'root ::= [a-z ] "!!"', **later, "seed": 5, "options": {"seed": 5}}
    assert '!!"' in http.post(path, json={**EVERY_ROUTE[path], **lazy, "max_tokens": 300}).text


def test_a_complete_text_ends_the_answer_also_at_the_limit_and_without_an_end(serve_sim: SimServer) -> None:
    body = {**PROMPT, "regex": "abc", "n_predict": 3, "ignore_eos": True}
    response = serve_sim().post("/completion", json=body)
    assert (text_of(response), response.json()["stop_type"]) == ("abc", "eos")


def test_a_stop_string_ends_it_before(serve_sim: SimServer) -> None:
    response = serve_sim().post("/completion", json={**PROMPT, "regex": "abc", "stop": ["b"]})
    assert (text_of(response), response.json()["stopping_word"]) == ("a", "b")


def test_grammar_with_triggers(serve_sim: SimServer) -> None:
    body = {**PROMPT, "grammar": 'root ::= [a-z ] "!"', "grammar_lazy": True, "seed": 5, "n_predict": 200}
    body["grammar_triggers"] = [{"type": 1, "value": letter} for letter in "etaoinshrdlu"]
    text = text_of(serve_sim().post("/completion", json=body))
    first = next(i for i, c in enumerate(text) if c in "etaoinshrdlu")
    assert text[first + 1 :] == "!"


def test_grammar_with_a_pattern(serve_sim: SimServer) -> None:
    body = {**PROMPT, "grammar": 'root ::= [aeiou] "!"', "grammar_lazy": True, "seed": 5, "n_predict": 200}
    body["grammar_triggers"] = [{"type": 2, "value": "[a-z] ?([aeiou])"}]
    response = serve_sim().post("/completion", json=body)
    text = text_of(response)
    match = re.search(r"[a-z] ?([aeiou])", text)
    assert match and text[match.start(1) + 1 :] == "!"
    assert response.json()["generation_settings"]["grammar_triggers"] == body["grammar_triggers"]


def test_triggers_are_shown_as_they_are_looked_for(serve_sim: SimServer) -> None:
    triggers = [{"type": 0, "value": "z", "token": ord("z")}, {"type": 1, "value": "~zz"}, {"type": 3, "value": "zz+"}]
    body = {**PROMPT, "grammar": 'root ::= "z"', "grammar_lazy": True, "n_predict": 1, "grammar_triggers": triggers}
    http = serve_sim()
    assert http.post("/completion", json=body).json()["generation_settings"]["grammar_triggers"] == triggers
    for preserved, shown in [([], triggers[1] | {"value": "z"}), (["z"], triggers[0])]:
        one = {**body, "grammar_triggers": [{"type": 1, "value": "z"}], "preserved_tokens": preserved}
        assert http.post("/completion", json=one).json()["generation_settings"]["grammar_triggers"] == [shown]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"grammar": 'root ::= "a"', "grammar_lazy": True, "grammar_triggers": [{"type": 2, "value": "a(?=b)"}]},
            "Field 'grammar_triggers.0.value': the pattern 'a(?=b)': look-ahead",
        ),
        ({"json_schema": {"not": {}}}, "json_schema: /not: the keyword 'not' is not supported"),
        ({"json_schema": {"type": "string", "pattern": "("}}, "json_schema: /pattern: regex parse error"),
        ({"json_schema": "{"}, "json_schema: not JSON"),
        ({"json_schema": {}, "grammar": 'root ::= "a"'}, "Cannot use both json_schema and grammar"),
        ({"regex": "("}, "regex: "),
        ({"lark": "start: nothing"}, "lark: "),
        ({"response_format": {"type": "yaml"}}, 'response_format type must be one of "text" or "json_object"'),
    ],
)
def test_53_what_does_not_compile_is_a_400(serve_sim: SimServer, body: dict[str, Any], message: str) -> None:
    """llama.cpp#19051, llama.cpp#19349: it was ignored, and the answer was free."""
    http = serve_sim()
    for path, rest in [*ROUTES, ("/completion", PROMPT)]:
        for stream in (False, True):
            assert message in refusal(http.post(path, json={**rest, **body, "stream": stream}))
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_bans_of_all_that_is_wanted_are_a_400(serve_sim: SimServer, path: str) -> None:
    body = {**PROMPT, "regex": "ab", "logit_bias": [[ord("a"), False]]}
    assert "no token is left" in refusal(serve_sim().post(path, json=body))
