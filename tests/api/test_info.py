"""Props, models, slots, tokens, templates: what is told about the server and its model."""

from __future__ import annotations

import httpx
import openai
import pytest
from tests.api.conftest import SimServer
from tests.api.live import is_idle, send_raw, until

from corral.api.schemas import replies
from corral.config import ApiKey, ServerConfig


def test_health(http: httpx.Client) -> None:
    assert http.get("/health").json() == http.get("/v1/health").json() == {"status": "ok"}
    assert http.get("/health").headers["server"] == "llama.cpp"


def test_props(http: httpx.Client) -> None:
    props = http.get("/props").json()
    settings = props["default_generation_settings"]
    assert (settings["n_ctx"], props["total_slots"], props["model_alias"]) == (2048, 4, "sim")
    assert settings["params"]["temperature"] == 0.8 and settings["params"]["n_predict"] == -1
    assert "grammar" not in settings["params"] and "stop" not in settings["params"]
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    assert "im_start" in props["chat_template"] and props["chat_template_caps"]["supports_string_content"]
    assert (props["endpoint_slots"], props["endpoint_metrics"], props["endpoint_props"]) == (True, True, False)


def test_models(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert listed == {**http.get("/models").json(), "data": listed["data"]}
    assert list(listed) == ["models", "object", "data"]
    assert listed["models"][0]["name"] == listed["data"][0]["id"] == "sim"
    meta = listed["data"][0]["meta"]
    assert (meta["n_ctx"], meta["n_ctx_train"], meta["vocab_type"]) == (2048, 4096, 2)


def test_one_model_by_each_of_its_names(serve_sim: SimServer) -> None:
    """openai's client.models.retrieve."""
    http = serve_sim(ServerConfig(port=0, alias=("zebra", "org/ant"), api_keys=(ApiKey("k"),)))
    assert http.get("/v1/models/zebra").status_code == 401
    http.headers["Authorization"] = "Bearer k"
    with openai.OpenAI(base_url=f"{str(http.base_url).rstrip('/')}/v1", api_key="k", max_retries=0) as api:
        (listed,) = api.models.list().data
        for name in ("zebra", "org/ant"):
            assert http.get(f"/models/{name}").json()["meta"]["n_ctx"] == 2048
            found = api.models.retrieve(name)
            assert (found.id, found.object, found.owned_by) == (listed.id, "model", "llamacpp")
    missing = http.get("/v1/models/bear")
    error = missing.json()["error"]
    assert (missing.status_code, error["code"], error["type"]) == (404, 404, "not_found_error")
    assert "'bear'" in error["message"] and "'zebra'" in error["message"]


def test_the_first_alias_is_the_name(serve_sim: SimServer) -> None:
    http = serve_sim(ServerConfig(port=0, alias=("zebra", "ant")))
    assert http.get("/v1/models").json()["data"][0]["aliases"] == ["ant", "zebra"]
    assert http.post("/completion", json={"prompt": "x", "n_predict": 1, "model": "else"}).json()["model"] == "ant"


def test_slots(serve_sim: SimServer) -> None:
    http = serve_sim(n_slots=2)
    fresh = http.get("/slots").json()
    assert [slot["id"] for slot in fresh] == [0, 1]
    assert all(not slot["is_processing"] and "id_task" not in slot for slot in fresh)
    http.post("/completion", json={"prompt": "hello", "n_predict": 2, "id_slot": 1, "temperature": 0.5})
    used = http.get("/slots").json()[1]
    assert used["params"]["temperature"] == 0.5
    assert used["n_prompt_tokens"] >= 7
    assert used["next_token"] == [{"has_next_token": False, "has_new_line": False, "n_remain": -1, "n_decoded": 0}]
    assert http.get("/slots?fail_on_no_slot=1").status_code == 200


def test_slots_while_busy(serve_sim: SimServer) -> None:
    http = serve_sim(n_slots=1, n_ctx=100_000)
    asked = {"prompt": "hello", "n_predict": 90_000, "logit_bias": {"q": 1e6}, "stream": True}
    with send_raw(http, {**asked, "timings_per_token": True}):
        until(lambda: http.get("/slots").json()[0].get("next_token", [{}])[0].get("n_decoded", 0) > 3, "tokens come")
        slot = http.get("/slots").json()[0]
        assert (slot["params"]["stream"], slot["params"]["timings_per_token"]) == (True, True)
        assert slot["is_processing"] and slot["next_token"][0]["has_next_token"]
        assert slot["n_prompt_tokens_processed"] + slot["n_prompt_tokens_cache"] == 6
        assert 0 < slot["next_token"][0]["n_remain"] < 90_000
        refused = http.get("/slots?fail_on_no_slot=1")
        assert (refused.status_code, refused.json()["error"]["message"]) == (503, "no slot available")
    until(lambda: is_idle(http), "the slot is free")


def test_tasks_without_a_slot_are_counted_in_metrics(serve_sim: SimServer) -> None:
    """One was sent out of the only slot by a task of a higher priority, one has not had it yet."""
    http = serve_sim(ServerConfig(port=0, endpoint_metrics=True), n_slots=1, n_ctx=100_000)
    names = ("corral:num_requests_held", "corral:num_requests_waiting", "llamacpp:requests_deferred")

    def counts() -> tuple[float, ...]:
        lines = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line[0] != "#")
        return tuple(float(lines[name]) for name in names)

    asked = {"prompt": "hello", "n_predict": 90_000, "logit_bias": {"q": 1e6}}
    with send_raw(http, asked):
        until(lambda: not is_idle(http), "the first runs")
        with send_raw(http, {**asked, "priority": 1}):
            until(lambda: counts() == (1, 0, 1), "it is held")
            with send_raw(http, asked):
                until(lambda: counts() == (1, 1, 2), "another waits")
                (slot,) = http.get("/slots").json()
                assert (slot["priority"], slot["state"]) == (1, "generating")
        until(lambda: counts() == (0, 0, 0), "the held task goes on")
        assert http.get("/slots").json()[0]["priority"] == 0
    until(lambda: is_idle(http), "the slot is free")


def test_slots_with_texts_when_debugging(serve_sim: SimServer) -> None:
    http = serve_sim(ServerConfig(port=0, slots_debug=True), n_slots=1)
    http.post("/completion", json={"prompt": "hello", "n_predict": 2})
    assert http.get("/slots").json()[0]["prompt"] == "<s>hello"


@pytest.mark.parametrize(
    ("method", "path", "flag"),
    [("GET", "/slots", "--no-slots"), ("GET", "/metrics", "--metrics"), ("POST", "/props", "--props")],
)
def test_endpoints_that_are_off_name_their_flag(serve_sim: SimServer, method: str, path: str, flag: str) -> None:
    http = serve_sim(ServerConfig(port=0, endpoint_slots=False))
    refused = http.request(method, path, json={})
    assert refused.status_code == 501
    assert flag in refused.json()["error"]["message"]
    assert refused.json()["error"]["type"] == "not_supported_error"


def test_props_may_be_posted_with_its_flag(serve_sim: SimServer) -> None:
    http = serve_sim(ServerConfig(port=0, endpoint_props=True))
    assert http.post("/props", json={"x": 1}).json() == {"success": True}


def test_tokenize(http: httpx.Client) -> None:
    def tokens(**body: object) -> object:
        return http.post("/tokenize", json=body).json()["tokens"]

    assert tokens(content="ab") == [97, 98]
    assert tokens(content="ab", add_special=True) == [256, 97, 98]
    assert tokens(content="</s>") == [257]
    assert tokens(content="</s>", parse_special=False) == list(b"</s>")
    assert tokens(content=["a", 257, "b"]) == [97, 257, 98]
    assert tokens() == [] == tokens(content="")
    assert tokens(content="aß", with_pieces=True) == [
        {"id": 97, "piece": "a"},
        {"id": 195, "piece": [195]},
        {"id": 159, "piece": [159]},
    ]
    assert http.post("/tokenize", json={"content": 5}).status_code == 400


def test_detokenize(http: httpx.Client) -> None:
    assert http.post("/detokenize", json={"tokens": [97, 257, 98]}).json() == {"content": "a</s>b"}
    assert http.post("/detokenize", json={}).json() == {"content": ""}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/detokenize", {"tokens": [97, -1]}, "Field 'tokens': element 1 is -1, which is not in [0, 272)"),
        ("/detokenize", {"tokens": [10**9]}, "Field 'tokens': element 0 is 1000000000, which is not in [0, 272)"),
        ("/detokenize", {"tokens": ["a"]}, "Field 'tokens': element 0 must be a token id, but is string"),
        ("/detokenize", {"tokens": [1, 2, 1.5]}, "Field 'tokens': element 2 must be a token id, but is 1.5"),
        ("/detokenize", {"tokens": "a"}, "Field 'tokens': type must be array, but is string"),
        ("/tokenize", {"content": ["a", True]}, "Field 'content': element 1 must be a token id, but is boolean"),
        ("/tokenize", {"content": [272]}, "Field 'content': element 0 is 272, which is not in [0, 272)"),
    ],
)
def test_wrong_tokens_are_named(http: httpx.Client, path: str, body: dict[str, object], message: str) -> None:
    refused = http.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, message)


def test_apply_template_and_token_counts(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    text = http.post("/apply-template", json=body).json()["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    n_tokens = len(http.post("/tokenize", json={"content": text, "add_special": True}).json()["tokens"])
    for path in ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"):
        assert http.post(path, json=body).json() == {"input_tokens": n_tokens, "object": "response.input_tokens"}


def test_a_template_of_the_command_line(serve_sim: SimServer) -> None:
    template = "{{ bos_token }}{{ tone }}|{% for m in messages %}{{ m.content }}{% endfor %}"
    http = serve_sim(ServerConfig(port=0, chat_template=template, chat_template_kwargs={"tone": "dry"}))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert http.post("/apply-template", json=body).json()["prompt"] == "<s>dry|hi"
    assert http.post("/chat/completions/input_tokens", json=body).json()["input_tokens"] == len("<dry|hi"), "one BOS"
    warm = {**body, "chat_template_kwargs": {"tone": "warm"}}
    assert http.post("/apply-template", json=warm).json()["prompt"] == "<s>warm|hi"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tools": [{"type": "function"}]}, "Missing tool function"),
        ({"tools": [{"type": "web"}]}, "Unsupported tool type"),
        ({"tools": 5}, "expected 'tools' to be an array"),
        ({"functions": [{"name": "f"}]}, "use 'tools'"),
        ({"modalities": ["text", "audio"]}, "Field 'modalities': replies are text, not audio"),
        ({"web_search_options": {}}, "Field 'web_search_options'"),
        ({"tool_choice": "required"}, "the request has no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "no tool is called 'f'"),
        ({"tool_choice": "maybe"}, "Invalid tool_choice: maybe"),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "enable_thinking"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"top_logprobs": 2}, "top_logprobs requires logprobs"),
    ],
)
def test_chat_refusals(http: httpx.Client, fields: dict[str, object], text: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    refused = http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400 and text in refused.json()["error"]["message"]


def test_every_route_is_documented(http: httpx.Client) -> None:
    page = http.get("/openapi.json").json()
    assert "swagger" in http.get("/docs").text.lower()
    posts = {path: methods["post"] for path, methods in page["paths"].items() if "post" in methods}
    assert {"/completion", "/v1/completions", "/v1/chat/completions", "/tokenize", "/apply-template"} <= set(posts)
    assert {"/health", "/props", "/v1/models", "/slots", "/metrics"} <= set(page["paths"])
    schema = posts["/v1/chat/completions"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["example"]["messages"] and "temperature" in schema["properties"]
    ids = [operation["operationId"] for methods in page["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    for path, media in (("/v1/messages", "text/event-stream"), ("/api/chat", "application/x-ndjson")):
        assert set(posts[path]["responses"]["200"]["content"]) == {"application/json", media}


def test_replies_are_as_documented(http: httpx.Client) -> None:
    body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "n_predict": 2, "return_tokens": True}
    for path, model in (
        ("/completion", replies.NativeReply),
        ("/v1/completions", replies.TextReply),
        ("/v1/chat/completions", replies.ChatReply),
    ):
        reply = http.post(path, json=body).json()
        assert set(reply) <= set(model.model_fields)
        model.model_validate(reply, strict=True)
