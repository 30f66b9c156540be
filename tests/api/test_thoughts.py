"""Budgets of thoughts over HTTP, in every format: what is said after so many tokens, and how it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from tests.api.canned import WEATHER
from tests.api.conftest import SimServer, simulated
from tests.api.live import client, events, until
from tests.api.sequences import MessageStream, ResponseStream

from corral.config import ApiKey, ServerConfig
from corral.sim.tokenizer import SimTokenizer

THINKS = (
    "{%- for m in messages %}<|{{ m.role }}|>"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n{% endfor %}"
    "{%- if add_generation_prompt %}<|assistant|><think>{% if enable_thinking is false %}</think>{% endif %}{% endif %}"
)
"""Opens thoughts, or ends them at once."""

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "temperature": 0}
N = 6
LIMITED = {**ASK, "reasoning_budget_tokens": N, "reasoning_budget_message": " So."}
N_FORCED = len(" So.</think>")


def server(**settings: Any) -> ServerConfig:
    return ServerConfig(port=0, alias=("sim",), chat_template=THINKS, **settings)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with simulated() as runtime, client(runtime, server()) as shared:
        yield shared


def said(http: httpx.Client, body: dict[str, Any]) -> tuple[str, str]:
    """Thoughts and text of the only reply."""
    response = http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    return message.get("reasoning_content", ""), message["content"]


def raw(http: httpx.Client, n: int) -> str:
    """The first n tokens that are generated where nothing ends the thoughts."""
    body = {**ASK, "max_tokens": n, "reasoning_format": "none"}
    return str(http.post(CHAT, json=body).json()["choices"][0]["message"]["content"])


def refusal(response: httpx.Response) -> str:
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"])


def test_thoughts_end_after_the_budget_and_an_answer_follows(http: httpx.Client) -> None:
    assert len(SimTokenizer().tokenize(raw(http, N), add_special=False, parse_special=False)) == N
    response = http.post(CHAT, json=LIMITED).json()
    message = response["choices"][0]["message"]
    assert message["reasoning_content"] == f"{raw(http, N)} So.".strip()
    assert message["content"]
    n_completion = response["usage"]["completion_tokens"]
    assert n_completion == 40 or response["choices"][0]["finish_reason"] == "stop"


def test_what_is_forced_counts_as_generated(http: httpx.Client) -> None:
    exact = {**LIMITED, "max_tokens": N + N_FORCED}
    response = http.post(CHAT, json=exact).json()
    assert response["usage"]["completion_tokens"] == N + N_FORCED
    assert response["choices"][0]["message"] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": f"{raw(http, N)} So.".strip(),
    }
    short = {**exact, "max_tokens": N + 3}
    assert said(http, short) == (f"{raw(http, N)} So".strip(), "")


def test_a_stream_tells_the_same(http: httpx.Client) -> None:
    chunks = events(http.post(CHAT, json={**LIMITED, "stream": True}))[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert (thoughts, "".join(delta.get("content") or "" for delta in deltas)) == said(http, LIMITED)
    kinds = [key for delta in deltas for key in delta if delta[key]]
    assert kinds.index("content") > max(i for i, key in enumerate(kinds) if key == "reasoning_content")


@pytest.mark.parametrize(
    ("form", "thoughts", "marks"), [("none", False, True), ("deepseek", True, False), ("deepseek-legacy", True, True)]
)
def test_every_reasoning_format(http: httpx.Client, form: str, thoughts: bool, marks: bool) -> None:
    wanted = f"{raw(http, N)} So.".strip()
    reasoning, content = said(http, {**LIMITED, "reasoning_format": form})
    assert reasoning == (wanted if thoughts else "")
    assert (f"{wanted}</think>" in content) is marks and (wanted in content) is marks


def test_nothing_and_everything(http: httpx.Client) -> None:
    reasoning, content = said(http, {**LIMITED, "reasoning_budget_tokens": 0})
    assert reasoning == "So." and content
    assert said(http, {**LIMITED, "reasoning_budget_tokens": -1})[1] == ""
    assert said(http, {**ASK, "reasoning_budget_tokens": 0})[0] == ""


def test_its_other_name(http: httpx.Client) -> None:
    other = {**ASK, "thinking_budget_tokens": N, "reasoning_budget_message": " So."}
    assert said(http, other) == said(http, LIMITED)
    assert said(http, {**LIMITED, "thinking_budget_tokens": 1}) == said(http, LIMITED)


def test_the_servers_budget_is_that_of_who_names_none(http: httpx.Client, serve_sim: SimServer) -> None:
    own = serve_sim(server(reasoning_budget=N, reasoning_budget_message=" So."))
    for asked in (ASK, {**ASK, "reasoning_budget_tokens": -1}):
        assert said(own, asked) == said(http, LIMITED)
    assert said(own, {**ASK, "reasoning_budget_tokens": 3})[0] == f"{raw(http, 3)} So.".strip()
    assert said(own, {**LIMITED, "reasoning_budget_message": ""})[0] == raw(http, N).strip()


def test_each_choice_has_its_own(http: httpx.Client) -> None:
    body = {**LIMITED, "n": 3, "temperature": 2, "top_k": 20, "top_p": 1, "min_p": 0, "seed": 5}
    choices = http.post(CHAT, json=body).json()["choices"]
    thoughts = [choice["message"]["reasoning_content"] for choice in choices]
    assert len(set(thoughts)) == 3 and all(text.endswith(" So.") for text in thoughts)


def test_thoughts_that_are_continued_count(http: httpx.Client) -> None:
    begun = {"role": "assistant", "reasoning_content": "abcd"}
    body = {**LIMITED, "messages": [*ASK["messages"], begun]}
    reply = http.post(CHAT, json={**body, "reasoning_format": "none"}).json()["choices"][0]["message"]["content"]
    n_new = len(SimTokenizer().tokenize(reply.partition(" So.</think>")[0], add_special=False, parse_special=False))
    assert n_new == N - 4
    assert said(http, {**body, "reasoning_budget_tokens": 2})[0] == "So."


def test_no_thoughts_no_budget(http: httpx.Client, serve_sim: SimServer) -> None:
    """It ends thoughts, and nothing else."""
    off = {**LIMITED, "chat_template_kwargs": {"enable_thinking": False}}
    assert said(http, off) == said(http, {**off, "reasoning_budget_tokens": -1})
    plain = serve_sim()
    assert said(plain, LIMITED) == said(plain, ASK)


def test_a_schema_holds_behind_the_forced_end(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"schema": {**schema, "additionalProperties": False}}}
    thoughts, content = said(http, {**LIMITED, "response_format": form, "max_tokens": 200})
    assert thoughts == f"{raw(http, N)} So.".strip()
    jsonschema.validate(json.loads(content), schema)


def test_60_a_grammar_leaves_thoughts_alone(http: httpx.Client) -> None:
    """llama.cpp#22537, llama.cpp#28182, llama.cpp#13867: it hit the thoughts, and stray marks were in the answer."""
    thoughts, content = said(http, {**LIMITED, "grammar": "root ::= [a-c]{3}"})
    assert thoughts == f"{raw(http, N)} So.".strip()
    assert len(content) == 3 and set(content) <= set("abc")
    off = {"enable_thinking": False}
    assert said(http, {**LIMITED, "grammar": 'root ::= "abc"', "chat_template_kwargs": off}) == ("", "abc")
    assert "Rule 'nobody' not found" in refusal(http.post(CHAT, json={**LIMITED, "grammar": "root ::= nobody"}))


def test_a_grammar_that_speaks_of_thoughts_holds_in_them(http: httpx.Client) -> None:
    asked = {**LIMITED, "grammar": 'root ::= "whatever it is</think>yes"'}
    assert said(http, asked) == ("whatever it is", "yes")


def test_a_call_that_must_be_made_follows_the_forced_end(http: httpx.Client) -> None:
    body = {**LIMITED, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 400, "temperature": 0.8, "seed": 3}
    choice = http.post(CHAT, json=body).json()["choices"][0]
    assert choice["message"]["reasoning_content"].endswith(" So.")
    (call,) = choice["message"]["tool_calls"][:1]
    assert call["function"]["name"] == "weather"


def test_probabilities_tell_what_was_forced(http: httpx.Client) -> None:
    entries = http.post(CHAT, json={**LIMITED, "logprobs": True, "top_logprobs": 1}).json()["choices"][0]["logprobs"]
    forced = entries["content"][N : N + N_FORCED]
    assert "".join(entry["token"] for entry in forced) == " So.</think>"
    assert any(entry["logprob"] < entry["top_logprobs"][0]["logprob"] for entry in forced)


# --- other formats ---------------------------------------------------------------------------------------------------


def test_messages_close_the_block_of_thoughts(http: httpx.Client) -> None:
    thinking = {"type": "enabled", "budget_tokens": N}
    body = {**ASK, "thinking": thinking, "reasoning_budget_message": " So."}
    thoughts, text = said(http, LIMITED)
    whole = http.post("/v1/messages", json=body).json()
    assert whole["content"] == [
        {"type": "thinking", "thinking": thoughts, "signature": ""},
        {"type": "text", "text": text},
    ]
    assert (
        MessageStream(http.post("/v1/messages", json={**body, "stream": True}).text).message["content"]
        == (whole["content"])
    )


def test_thinking_without_a_number_has_a_large_one(http: httpx.Client, serve_sim: SimServer) -> None:
    own = serve_sim(server(reasoning_budget=N))
    enabled = own.post("/v1/messages", json={**ASK, "thinking": {"type": "enabled"}}).json()
    assert [block["type"] for block in enabled["content"]] == ["thinking"]
    adaptive = own.post("/v1/messages", json={**ASK, "thinking": {"type": "adaptive"}}).json()
    assert [block["type"] for block in adaptive["content"]] == ["thinking", "text"]


def test_responses_close_the_item_of_thoughts(http: httpx.Client) -> None:
    body = {
        "input": "Hello",
        "max_output_tokens": 40,
        "temperature": 0,
        "reasoning_budget_tokens": N,
        "reasoning_budget_message": " So.",
    }
    thoughts, text = said(http, LIMITED)
    whole = http.post("/v1/responses", json=body).json()
    assert [item["content"][0]["text"] for item in whole["output"]] == [thoughts, text]
    assert (whole["output"][0]["type"], whole["output"][0]["status"]) == ("reasoning", "completed")
    stream = ResponseStream(http.post("/v1/responses", json={**body, "stream": True}).text)
    assert [item["content"][0]["text"] for item in stream.items] == [thoughts, text]
    assert stream.response["usage"]["output_tokens_details"]["reasoning_tokens"] >= N


@pytest.mark.parametrize(("path", "n"), [("/v1/messages", N + 2), ("/v1/responses", N + 2), ("/v1/messages", N)])
def test_thoughts_that_are_cut_while_they_are_ended_are_the_last_block(http: httpx.Client, path: str, n: int) -> None:
    body = {**LIMITED, "max_tokens": n, "max_output_tokens": n, "input": "Hello", "stream": True}
    text = http.post(path, json=body).text
    if path == "/v1/messages":
        message = MessageStream(text).message
        assert [block["type"] for block in message["content"]] == ["thinking"]
        assert message["stop_reason"] == "max_tokens"
    else:
        stream = ResponseStream(text)
        assert [(item["type"], item["status"]) for item in stream.items] == [("reasoning", "incomplete")]


def test_ollama(http: httpx.Client) -> None:
    body = {
        "messages": ASK["messages"],
        "options": {"num_predict": 40, "temperature": 0},
        "think": True,
        "reasoning_budget_tokens": N,
        "reasoning_budget_message": " So.",
    }
    whole = http.post("/api/chat", json={**body, "stream": False}).json()["message"]
    assert (whole["thinking"], whole["content"]) == said(http, LIMITED)
    lines = [json.loads(line)["message"] for line in http.post("/api/chat", json=body).text.splitlines()]
    assert "".join(line.get("thinking", "") for line in lines) == whole["thinking"]
    assert "".join(line["content"] for line in lines) == whole["content"]


# --- prompts ---------------------------------------------------------------------------------------------------------

TAGS = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ["</t>", "<call>"]}


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_prompt_whose_thoughts_are_open(http: httpx.Client, path: str) -> None:
    body = {"prompt": "Hm: <t>ab", "n_predict": 30, "temperature": 0}
    budget = {"reasoning_budget_tokens": N, "reasoning_budget_message": "!", "generation_prompt": "<t>ab"}

    def text(**more: Any) -> str:
        reply = http.post(path, json={**body, **more}).json()
        return str(reply["content"] if path == "/completion" else reply["choices"][0]["text"])

    free = text()
    cut = text(**TAGS, **budget)
    n_free = len(cut.partition("!</t>")[0])
    assert cut != free and cut.startswith(free[:n_free] + "!</t>") and n_free > 0
    assert text(**TAGS, **{**budget, "generation_prompt": "<t>ab</t>"}) == free
    assert text(**TAGS, **{**budget, "reasoning_budget_tokens": -1}) == free
    one = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tag": "</t>"}
    assert text(**one, **budget) == cut


def test_a_budget_needs_to_know_what_thoughts_are(http: httpx.Client, serve_sim: SimServer) -> None:
    for tags in ({}, {"reasoning_budget_start_tag": "<t>"}, {**TAGS, "reasoning_budget_end_tags": [""]}):
        body = {"prompt": "Hm", "n_predict": 1, "reasoning_budget_tokens": N, **tags}
        assert "'reasoning_budget_start_tag' and 'reasoning_budget_end_tags'" in refusal(
            http.post("/completion", json=body)
        )
    default = serve_sim(server(reasoning_budget=N))
    assert default.post("/completion", json={"prompt": "Hm", "n_predict": 1}).status_code == 200


def test_a_chat_whose_template_has_no_thoughts_may_name_their_marks(serve_sim: SimServer) -> None:
    body = {**ASK, "reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ["</t>"]}
    text = said(serve_sim(), {**body, "reasoning_budget_tokens": 0, "generation_prompt": "<t>"})[1]
    assert text.startswith("</t>")


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (CHAT, {"reasoning_budget_tokens": -2}, "reasoning_budget_tokens"),
        (CHAT, {"reasoning_budget_tokens": "6"}, "'reasoning_budget_tokens': type must be number"),
        (CHAT, {"reasoning_budget_message": 6}, "'reasoning_budget_message': type must be string"),
        (CHAT, {"reasoning_control": 1}, "'reasoning_control': type must be boolean"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": -2}}, "thinking.budget_tokens"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
        ("/completion", {"prompt": "x", "reasoning_budget_end_tags": "x"}, "'reasoning_budget_end_tags'"),
    ],
)
def test_wrong_values_are_refused_by_name(http: httpx.Client, path: str, fields: dict[str, Any], message: str) -> None:
    assert message in refusal(http.post(path, json={**ASK, **fields}))


# --- whether a model thinks, and how hard ----------------------------------------------------------------------------

SHOWS = "{{ messages[0].content }} {{ enable_thinking }} {{ reasoning_effort }} {{ preserve_thinking }}"
ON, OFF = {"enable_thinking": True}, {"enable_thinking": False}


@pytest.mark.parametrize(
    ("settings", "fields", "shown"),
    [
        ({}, {}, "True  True"),
        ({"reasoning": "off"}, {}, "False  True"),
        ({"reasoning": "off"}, {"chat_template_kwargs": ON}, "True  True"),
        ({"reasoning": "off", "chat_template_kwargs": ON}, {}, "True  True"),
        ({"chat_template_kwargs": OFF}, {"chat_template_kwargs": ON}, "True  True"),
        ({"chat_template_kwargs": OFF}, {"chat_template_kwargs": {"enable_thinking": None}}, "False  True"),
        ({"reasoning_effort": "low"}, {}, "True low True"),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}, "True high True"),
        ({}, {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}}, "True high True"),
        ({"reasoning_effort": "low"}, {"chat_template_kwargs": {"reasoning_effort": "high"}}, "True high True"),
        ({}, {"reasoning_effort": "none"}, "False  True"),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "none"}, "False  True"),
        ({}, {"reasoning_effort": "none", "chat_template_kwargs": ON}, "False  True"),
        ({"reasoning_effort": "none"}, {}, "False  True"),
        ({"reasoning_effort": "none"}, {"chat_template_kwargs": ON}, "True  True"),
        ({"reasoning_preserve": False}, {}, "True  False"),
    ],
)
def test_who_decides_about_thoughts(
    serve_sim: SimServer, settings: dict[str, Any], fields: dict[str, Any], shown: str
) -> None:
    http = serve_sim(ServerConfig(port=0, alias=("sim",), chat_template=SHOWS, **settings))
    body = {"messages": ASK["messages"], **fields}
    assert http.post("/apply-template", json=body).json()["prompt"] == f"Hello {shown}"


@pytest.mark.parametrize(("value", "kind"), [("false", "string"), (1, "number"), ([], "array")])
def test_thinking_is_switched_by_a_boolean(http: httpx.Client, value: object, kind: str) -> None:
    body = {**ASK, "chat_template_kwargs": {"enable_thinking": value}}
    assert refusal(http.post(CHAT, json=body)) == (f'invalid type for "enable_thinking" (expected boolean, got {kind})')


# --- ended from outside ----------------------------------------------------------------------------------------------

CONTROL = "/v1/chat/completions/control"
ARMED = {"reasoning_control": True, "reasoning_budget_message": " So.", "ignore_eos": True, "max_tokens": -1}
ENDED = {"success": True}
NOT_THERE = {"success": False, "message": "no active completion for this id"}


@pytest.fixture(scope="module")
def long(http: httpx.Client) -> Iterator[httpx.Client]:
    """A context so long that nothing ends by itself while a test looks on."""
    keys = (ApiKey("k"), ApiKey("other"))
    with (
        simulated(n_slots=2, n_ctx=200_000) as runtime,
        client(runtime, server(api_keys=keys)) as served,
    ):
        served.headers["Authorization"] = "Bearer k"
        yield served


def end_thoughts(http: httpx.Client, name: str, key: str = "k") -> Any:
    body = {"id": name, "action": "reasoning_end"}
    reply = http.post(CONTROL, json=body, headers={"Authorization": f"Bearer {key}"})
    assert reply.status_code == 200, reply.text
    return reply.json()


def told(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("budget", [-1, 100_000])
def test_a_client_ends_the_thoughts_that_it_reads(long: httpx.Client, budget: int) -> None:
    body = {**ASK, **ARMED, "stream": True, "reasoning_budget_tokens": budget}
    thoughts = content = ""
    with long.stream("POST", CHAT, json=body) as response:
        for i, chunk in enumerate(told(response.iter_lines())):
            if i == 3:
                assert end_thoughts(long, chunk["id"], "other") == NOT_THERE
                assert end_thoughts(long, chunk["id"]) == ENDED
            delta = chunk["choices"][0]["delta"]
            thoughts += delta.get("reasoning_content", "")
            content += delta.get("content") or ""
            if len(content) > 5:
                assert end_thoughts(long, chunk["id"]) == ENDED, "they have ended"
                break
    assert thoughts.endswith(" So.")
    until(lambda: bool(end_thoughts(long, chunk["id"]) == NOT_THERE), "the reply is gone with its client")


def test_ids_of_responses_and_messages_are_known(long: httpx.Client) -> None:
    body = {**ARMED, "temperature": 0, "stream": True}
    with long.stream("POST", "/v1/responses", json={**body, "input": "Hello"}) as response:
        kinds = []
        for i, event in enumerate(told(response.iter_lines())):
            if i == 0:
                assert end_thoughts(long, event["response"]["id"]) == ENDED
            kinds.append(event["type"])
            if event["type"] == "response.output_text.delta":
                break
    assert kinds.index("response.output_item.done") == kinds.index("response.reasoning_text.done") + 2
    body = {**body, "max_tokens": 100_000, "messages": ASK["messages"]}
    with long.stream("POST", "/v1/messages", json=body) as response:
        kinds = []
        for i, event in enumerate(told(response.iter_lines())):
            if i == 0:
                assert end_thoughts(long, event["message"]["id"]) == ENDED
            kinds.append(event["type"])
            if event.get("delta", {}).get("type") == "text_delta":
                break
    assert kinds.index("content_block_stop") < kinds.index("content_block_start", kinds.index("content_block_stop"))


def test_who_did_not_ask_for_control_has_none(long: httpx.Client) -> None:
    body = {**ASK, **ARMED, "stream": True, "reasoning_control": False, "reasoning_budget_tokens": 100_000}
    with long.stream("POST", CHAT, json=body) as response:
        chunks = told(response.iter_lines())
        assert end_thoughts(long, next(chunks)["id"]) == {
            "success": False,
            "message": "reasoning control not enabled for this completion",
        }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "missing completion id"),
        ({"id": "", "action": "reasoning_end"}, "missing completion id"),
        ({"id": "chatcmpl-x"}, "unknown control action: '' (known: 'reasoning_end')"),
        (
            {"id": "chatcmpl-x", "action": "stop"},
            "unknown control action: 'stop' (known: 'reasoning_end')",
        ),
        ({"id": 5, "action": "reasoning_end"}, "Field 'id': type must be string, but is number"),
        ({"id": "chatcmpl-x", "action": 5}, "Field 'action': type must be string, but is number"),
    ],
)
def test_control_that_is_wrong(http: httpx.Client, body: dict[str, Any], message: str) -> None:
    assert refusal(http.post(CONTROL, json=body)) == message


def test_control_needs_the_key_and_a_model(long: httpx.Client) -> None:
    body = {"id": "chatcmpl-x", "action": "reasoning_end"}
    assert long.post(CONTROL, json=body, headers={"Authorization": "Bearer no"}).status_code == 401
    with client(None, server()) as loading:
        assert loading.post(CONTROL, json=body).status_code == 503
