"""Faults that users of LLM servers reported, as tests over HTTP and the simulated model.

Its grammar ``root ::= "text"`` forces the text, so that shapes and ends are exact.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.api.conftest import SimServer
from tests.api.live import events, is_idle, parse_events, send_raw, until

from corral.config import ApiKey, ServerConfig

Json = dict[str, Any]


def forced(text: str, **fields: Any) -> Json:
    """A native request whose reply is ``text`` and then the end of the text."""
    return {"prompt": "x", "n_predict": 200, "grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}", **fields}


def chat(text: str, **fields: Any) -> Json:
    return {**forced(text, **fields), "prompt": None, "messages": [{"role": "user", "content": "say it"}]}


def streamed(http: httpx.Client, body: Json, path: str = "/completion") -> list[Any]:
    response = http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return events(response)


def streamed_text(http: httpx.Client, body: Json) -> str:
    return "".join(event["content"] for event in streamed(http, body))


def chat_text(data: list[Any]) -> str:
    deltas = [choice["delta"] for event in data if event != "[DONE]" for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_1_a_stop_string_over_several_tokens(http: httpx.Client) -> None:
    """llama.cpp#11538."""
    reply = http.post("/completion", json=forced(" L M N O P Q R S", stop=["O P Q"])).json()
    assert reply["content"] == " L M N "
    assert (reply["stop_type"], reply["stopping_word"]) == ("word", "O P Q")


@pytest.mark.parametrize("limit", [200, 11])
def test_2_a_held_back_tail_is_sent_at_the_end(http: httpx.Client, limit: int) -> None:
    """llama.cpp#9867, llama.cpp#15007: the end by EOS and by the token limit."""
    body = forced("UNO DUE TRE", stop=["TRE\nAAAAAAAA"], n_predict=limit)
    assert streamed_text(http, body) == "UNO DUE TRE"
    assert http.post("/completion", json=body).json()["content"] == "UNO DUE TRE"


def test_4_no_part_of_a_stop_string_is_streamed(http: httpx.Client) -> None:
    """llama.cpp#15007, vllm-project/vllm#13087: nor are empty deltas while it is held back."""
    data = streamed(http, chat("one STOPPING two", stop=["STOPPING"]), "/v1/chat/completions")
    assert chat_text(data) == "one "
    deltas = [event["choices"][0]["delta"] for event in data[:-1]]
    assert all(delta["content"] != "" for delta in deltas if "content" in delta)


@pytest.mark.parametrize("text", ["a歪b", "🦙🦙", "€", "x\u0301é日"])
def test_5_no_delta_holds_half_a_character(http: httpx.Client, text: str) -> None:
    """llama.cpp#9195, llama.cpp#11738, llama.cpp#28926, Blaizzy/mlx-vlm#1076."""
    data = streamed(http, chat(text), "/v1/chat/completions")
    assert "\ufffd" not in json.dumps(data, ensure_ascii=False)
    assert chat_text(data) == text
    assert data[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}


def test_5_a_limit_inside_a_character(http: httpx.Client) -> None:
    """llama.cpp#9195: both modes agree and the JSON is valid."""
    body = forced("ab歪", n_predict=3)
    whole = http.post("/completion", json=body).json()
    assert whole["content"] == streamed_text(http, body)
    assert whole["content"].startswith("ab") and whole["tokens_predicted"] == 3


def test_7_framing_of_events(http: httpx.Client) -> None:
    """llama.cpp#14268, llama.cpp#24013, ollama/ollama#16443: pings have tests of their own."""
    response = http.post("/completion", json=forced("a\nb\r\n\n", stream=True, sse_ping_interval=-1))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "\n:" not in response.text
    assert "".join(event["content"] for event in events(response)) == "a\nb\r\n\n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_8_usage_in_a_chunk_of_its_own_when_asked_for(http: httpx.Client, path: str) -> None:
    """llama.cpp#16048, llama.cpp#12102, llama.cpp#15444."""
    body = chat("hello") if "chat" in path else forced("hello")
    asked = streamed(http, {**body, "stream_options": {"include_usage": True}}, path)
    assert asked[-1] == "[DONE]"
    assert asked[-2]["choices"] == [] and asked[-2]["usage"]["completion_tokens"] == 6
    assert all("usage" not in event for event in asked[:-2])
    silent = streamed(http, body, path)
    assert all(event["choices"] for event in silent[:-1])


def test_8_no_usage_in_a_chat_stream_unless_asked_for(http: httpx.Client) -> None:
    """llama.cpp#16048."""
    assert all("usage" not in event for event in streamed(http, chat("hi"), "/v1/chat/completions")[:-1])


def test_8_usage_always_by_flag(serve_sim: SimServer) -> None:
    """llama.cpp#22081."""
    http = serve_sim(ServerConfig(port=0, always_usage=True))
    assert streamed(http, chat("hi"), "/v1/chat/completions")[-2]["usage"]["total_tokens"] > 0


def test_9_each_choice_ends_once(http: httpx.Client) -> None:
    """llama.cpp#20226, BerriAI/litellm#3276."""
    data = streamed(http, chat("hello", n=3), "/v1/chat/completions")
    choices = [event["choices"][0] for event in data[:-1]]
    assert sorted(choice["index"] for choice in choices if choice["finish_reason"]) == [0, 1, 2]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"].get("content") or "" for choice in own) == "hello"
        assert own[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_10_usage_of_several_choices(http: httpx.Client, stream: bool) -> None:
    """llama.cpp#27318: completion tokens are summed, the prompt is counted once."""
    body = {**chat("0123456789", n=2, max_tokens=8), "n_predict": None, "stream_options": {"include_usage": True}}
    if stream:
        usage = streamed(http, body, "/v1/chat/completions")[-2]["usage"]
    else:
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    n_prompt = http.post("/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
    assert (usage["completion_tokens"], usage["prompt_tokens"]) == (16, n_prompt)
    assert usage["total_tokens"] == 16 + n_prompt


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("stream", "n_chars"), [(False, 3000), (True, 3000), (True, 9000)])
def test_12_a_prompt_that_does_not_fit_is_a_400(http: httpx.Client, path: str, stream: bool, n_chars: int) -> None:
    """llama.cpp#14566, llama.cpp#16486, llama.cpp#15780, llama.cpp#17284 (report 19): with both numbers."""
    words = "x" * n_chars
    body = {"messages": [{"role": "user", "content": words}]} if "chat" in path else {"prompt": words}
    response = http.post(path, json={**body, "stream": stream})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, 400, "exceed_context_size_error")
    assert error["n_prompt_tokens"] > n_chars and error["n_ctx"] == 2048
    assert str(error["n_prompt_tokens"]) in error["message"]


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_12_n_0_is_refused(http: httpx.Client, path: str) -> None:
    """EricLBuehler/mistral.rs#1874: it must not hang."""
    assert http.post(path, json={**chat("x"), "prompt": "x", "n": 0, "stream": True}).status_code == 400


@pytest.mark.parametrize(("n_predict", "reason"), [(3, "length"), (5, "length"), (6, "stop"), (50, "stop")])
def test_13_finish_reasons(http: httpx.Client, n_predict: int, reason: str) -> None:
    """llama.cpp#28711, vllm-project/vllm#53269."""
    body = chat("hello", n_predict=n_predict)
    whole = http.post("/v1/chat/completions", json=body).json()["choices"][0]["finish_reason"]
    last = streamed(http, body, "/v1/chat/completions")[-2]["choices"][0]["finish_reason"]
    assert (whole, last) == (reason, reason)


@pytest.mark.parametrize("n_predict", [0, 1, 2, 3])
def test_15_exactly_as_many_tokens_as_asked_for(http: httpx.Client, n_predict: int) -> None:
    """llama.cpp#4047."""
    body = forced("abcdef", n_predict=n_predict, return_tokens=True)
    reply = http.post("/completion", json=body).json()
    assert reply["tokens_predicted"] == n_predict == len(reply["tokens"])
    assert reply["content"] == "abcdef"[:n_predict] == streamed_text(http, body)
    assert (reply["stop_type"], reply["tokens_evaluated"]) == ("limit", 2)


@pytest.mark.parametrize(
    "fields", [{}, {"stop": ["cd"]}, {"stop": ["zz"]}, {"n_predict": 3}], ids=["eos", "a stop string", "none", "limit"]
)
def test_15_a_stream_has_all_tokens_of_the_reply_those_without_text_at_its_end(
    http: httpx.Client, fields: Json
) -> None:
    """An end-of-generation token is no text: no chunk brings it."""
    body = forced("abcdef", return_tokens=True, n_probs=1, **fields)
    whole, parts = http.post("/completion", json=body).json(), streamed(http, body)
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    told = [entry["id"] for part in parts for entry in part.get("completion_probabilities", ())]
    assert told == [entry["id"] for entry in whole["completion_probabilities"]]


def test_17_empty_prompts(http: httpx.Client) -> None:
    """llama.cpp#5953, llama.cpp#5957: "" goes on from the beginning-of-text token; [] is refused."""
    reply = http.post("/completion", json=forced("abc", prompt="")).json()
    assert (reply["content"], reply["tokens_evaluated"]) == ("abc", 1)
    refused = http.post("/completion", json={"prompt": []})
    assert refused.status_code == 400 and refused.json()["error"]["message"] == '"prompt" must not be empty'


WILD: Json = {"prompt": "Once", "n_predict": 24, "temperature": 30, "top_k": 0, "top_p": 1, "min_p": 0}
"""The simulated model is sure of itself: only so do its draws differ."""


def test_20_seeds(http: httpx.Client) -> None:
    """llama.cpp#7381, llama.cpp#8593: the same seed, the same text; the reply tells the seed that was used."""

    def reply(**fields: Any) -> Json:
        whole: Json = http.post("/completion", json={**WILD, "ignore_eos": True, **fields}).json()
        return whole

    first, again, other = reply(seed=42), reply(seed=42), reply(seed=43)
    assert first["content"] == again["content"] != other["content"]
    assert first["generation_settings"]["seed"] == 42
    drawn = reply()
    assert drawn["generation_settings"]["seed"] != 2**32 - 1
    assert reply(seed=drawn["generation_settings"]["seed"])["content"] == drawn["content"]


def test_20_choices_use_seeds_one_after_the_other(http: httpx.Client) -> None:
    """llama.cpp#7381."""
    body = {**WILD, "ignore_eos": True}
    both = http.post("/completion", json={**body, "seed": 5, "n": 2}).json()
    alone = [http.post("/completion", json={**body, "seed": seed}).json()["content"] for seed in (5, 6)]
    assert [reply["content"] for reply in both] == alone
    assert alone[0] != alone[1]
    assert [reply["generation_settings"]["seed"] for reply in both] == [5, 6]


@pytest.mark.parametrize("bias", [[[100000, 1.0]], {"100000": 1.0}, [[-1, 1.0]], [["x"]], [[{}, 1]]])
def test_23_a_bias_beyond_the_vocabulary_is_a_400(http: httpx.Client, bias: object) -> None:
    """vllm-project/vllm#16529."""
    assert http.post("/completion", json={"prompt": "x", "logit_bias": bias}).status_code == 400
    assert http.post("/completion", json=forced("ok")).json()["content"] == "ok"


@pytest.mark.parametrize("bias", [[["q", False]], {"q": False}, {str(ord("q")): -1e9}])
def test_23_banned_tokens_do_not_come(http: httpx.Client, bias: object) -> None:
    """llama.cpp#14946: object and array forms, text and ids, false."""
    body = {"prompt": "x", "n_predict": 8, "temperature": 0}
    assert http.post("/completion", json={**body, "logit_bias": {"q": 1e6}}).json()["content"] == "qqqqqqqq"
    assert "q" not in http.post("/completion", json={**body, "logit_bias": bias}).json()["content"]


@pytest.mark.parametrize("prompt", [[-1], [10**6], [[1, 2], [-5]], ["a", 10**6], [10**30]])
def test_25_token_ids_outside_the_vocabulary(http: httpx.Client, prompt: object) -> None:
    """llama.cpp#12178."""
    assert http.post("/completion", json={"prompt": prompt}).status_code == 400
    assert http.get("/health").status_code == 200


_WRONG: list[Json] = [
    {"prompt": 5},
    {"prompt": {"a": 1}},
    {"prompt": "x", "n_predict": "many"},
    {"prompt": "x", "stream": "yes"},
    {"prompt": "x", "stop": 3},
    {"prompt": "x", "temperature": [1]},
    {"prompt": "x", "samplers": {}},
    {"prompt": "x", "logit_bias": 7},
    {"prompt": "x", "grammar": 7},
    {"prompt": "x", "grammar": "root ::= ("},
    {"prompt": "x", "stream_options": 7},
    {"prompt": "x", "response_fields": "content"},
    {"prompt": "x", "cache_salt": 7},
    {"prompt": "x", "id_slot": "one"},
]


@pytest.mark.parametrize("body", _WRONG, ids=lambda body: json.dumps(body)[:60])
def test_27_wrong_types_are_a_400(http: httpx.Client, body: Json) -> None:
    """llama.cpp#7089, llama.cpp#7152."""
    response = http.post("/completion", json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_27_bans_that_leave_no_token_are_a_400_and_other_streams_go_on(serve_sim: SimServer) -> None:
    http = serve_sim(n_ctx=100_000)
    n_vocab = http.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    with http.stream("POST", "/completion", json={**ENDLESS, "stream": True}) as other:
        lines = other.iter_lines()
        next(lines)
        everything = {str(token): False for token in range(n_vocab)}
        for body in ({"prompt": "x", "logit_bias": everything}, forced("yes", logit_bias={"yes": False})):
            for stream in (False, True):
                response = http.post("/completion", json={**body, "stream": stream})
                assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
                assert "logit_bias" in response.text or "bans" in response.text
        late = http.post("/completion", json=forced("ye s", logit_bias={"s": False}, stream=True))
        assert events(late)[-1]["error"]["code"] == 400
        assert [line for line in (next(lines) for _ in range(50)) if line and "error" in line] == []


@pytest.mark.parametrize(
    "messages",
    [None, "hi", [], [1], [{}], [{"role": 5, "content": "x"}], [{"role": "user", "content": 5}]],
)
def test_27_wrong_messages_are_a_400(http: httpx.Client, messages: object) -> None:
    """llama.cpp#7089."""
    for path in ("/v1/chat/completions", "/apply-template", "/chat/completions/input_tokens"):
        assert http.post(path, json={"messages": messages}).status_code == 400


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", '{"prompt":"你好"}'.encode("gbk"), b"\x00", b"[" * 10000])
def test_27_bodies_that_are_not_json_objects(http: httpx.Client, raw: bytes) -> None:
    """llama.cpp#6396: bytes of another encoding included."""
    for path in ("/completion", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert http.post(path, content=raw).status_code == 400
    assert http.get("/health").json() == {"status": "ok"}


ENDLESS: Json = {"prompt": "x", "n_predict": 100_000, "logit_bias": {"q": 1e6}}


@pytest.mark.parametrize("stream", [False, True])
def test_31_the_slot_is_free_when_the_client_leaves(serve_sim: SimServer, stream: bool) -> None:
    """llama.cpp#13262, llama.cpp#24496, llama.cpp#11720."""
    http = serve_sim(n_ctx=100_000)
    sock = send_raw(http, {**ENDLESS, "stream": stream})
    until(lambda: not is_idle(http), "the request runs")
    sock.close()
    until(lambda: is_idle(http), "the slot is free")


def test_31_a_queued_request_that_is_dropped_never_runs(serve_sim: SimServer) -> None:
    """ikawrakow/ik_llama.cpp#1929: nor does it disturb the one that runs."""
    http = serve_sim(ServerConfig(port=0, endpoint_metrics=True), n_slots=1, n_ctx=100_000)
    active = send_raw(http, {**ENDLESS, "stream": True})
    until(lambda: not is_idle(http), "the request runs")
    queued = send_raw(http, forced("never"))
    until(lambda: _gauge(http, "llamacpp:requests_deferred") == 1, "the second request waits")
    queued.close()
    until(lambda: _gauge(http, "llamacpp:requests_deferred") == 0, "it is forgotten")
    assert not is_idle(http)
    active.close()
    until(lambda: is_idle(http), "the slot is free")
    assert _gauge(http, "corral:requests_total") == 0


def test_a_full_queue_refuses_with_a_time_to_come_back(serve_sim: SimServer) -> None:
    """vllm-project/vllm#13395, ollama/ollama#7758."""
    http = serve_sim(ServerConfig(port=0, endpoint_metrics=True), n_slots=1, n_ctx=100_000, max_queue=1)
    active = send_raw(http, ENDLESS)
    until(lambda: not is_idle(http), "the request runs")
    queued = send_raw(http, ENDLESS)
    until(lambda: _gauge(http, "llamacpp:requests_deferred") == 1, "the second request waits")
    for stream in (False, True):
        refused = http.post("/completion", json={**ENDLESS, "stream": stream})
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["type"] == "unavailable_error"
    for sock in (active, queued):
        sock.close()
    until(lambda: is_idle(http), "the slot is free")


def _gauge(http: httpx.Client, name: str) -> float:
    samples = _series(http)
    return samples[name]


def _series(http: httpx.Client) -> dict[str, float]:
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {
        sample.name: sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("outcome", "finished") == "finished"
    }


KEYS = ServerConfig(port=0, api_keys=(ApiKey("sesame"), ApiKey("open")), endpoint_metrics=True)


def test_62_api_keys(serve_sim: SimServer) -> None:
    """llama.cpp#9776, llama.cpp#10475: all paths but /health need one; Bearer and X-Api-Key."""
    http = serve_sim(KEYS)
    for path in ("/health", "/v1/health"):
        assert http.get(path).status_code == 200
    for path in ("/v1/models", "/models", "/props", "/slots", "/metrics", "/nowhere"):
        refused = http.get(path)
        assert refused.status_code == 401
        assert refused.json()["error"]["message"] == "Invalid API Key"
        assert refused.json()["error"]["type"] == "authentication_error"
    for headers in ({"Authorization": "Bearer sesame"}, {"Authorization": "open"}, {"X-Api-Key": "open"}):
        assert http.get("/v1/models", headers=headers).status_code == 200
    for headers in ({"Authorization": "Bearer sesam"}, {"X-Api-Key": ""}, {"X-Api-Key": "sesame open"}):
        assert http.get("/v1/models", headers=headers).status_code == 401


def test_62_the_key_and_the_prompts_are_not_told(serve_sim: SimServer) -> None:
    """llama.cpp#16534: /slots has no text by default."""
    http = serve_sim(KEYS)
    http.headers["Authorization"] = "Bearer sesame"
    secret = forced("answer-canary", prompt="prompt-canary", stop=["stop-canary"])
    assert http.post("/completion", json=secret).status_code == 200
    for path in ("/props", "/slots", "/metrics"):
        text = http.get(path).text
        assert "sesame" not in text and "canary" not in text


def test_62_preflight_and_origins(serve_sim: SimServer) -> None:
    """llama.cpp#14352, llama.cpp#25655."""
    http = serve_sim(ServerConfig(port=0, api_keys=(ApiKey("k"),), cors_origins="localhost"))
    preflight = http.options("/v1/chat/completions", headers={"Origin": "http://localhost:3000"})
    assert (preflight.status_code, preflight.text) == (200, "")
    assert preflight.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["access-control-allow-credentials"] == "true"
    foreign = http.get("/health", headers={"Origin": "http://localhost.evil.example"})
    assert "access-control-allow-origin" not in foreign.headers


LLAMACPP = [
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "prompt_seconds_total",
    "tokens_predicted_total",
    "tokens_predicted_seconds_total",
    "n_decode_total",
    "n_tokens_max",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_drafts_total",
    "prompt_tokens_seconds",
    "predicted_tokens_seconds",
    "requests_processing",
    "requests_deferred",
    "n_busy_slots_per_decode",
]


def test_62_metrics(serve_sim: SimServer) -> None:
    """llama.cpp#17384, llama.cpp#22879, llama.cpp#23632: names, growing counters, gauges that fall when idle."""
    http = serve_sim(ServerConfig(port=0, endpoint_metrics=True))
    before = _series(http)
    assert {f"llamacpp:{name}" for name in LLAMACPP} <= set(before)
    assert http.post("/completion", json=forced("hello")).status_code == 200
    busy, idle = _series(http), _series(http)
    counters = [name for name in before if name.endswith("_total")]
    assert all(before[name] <= busy[name] <= idle[name] for name in counters)
    assert busy["llamacpp:tokens_predicted_total"] == 6
    assert busy["llamacpp:prompt_tokens_total"] == 2
    assert busy["llamacpp:prompt_tokens_seconds"] > 0
    for gauge in ("prompt_tokens_seconds", "predicted_tokens_seconds", "requests_processing", "requests_deferred"):
        assert idle[f"llamacpp:{gauge}"] == 0
    assert "corral:kv_cache_usage_ratio" in idle and "corral:num_requests_waiting" in idle


def test_62_histograms_and_the_use_of_the_cache(serve_sim: SimServer) -> None:
    """What llama-server does not tell: latencies, cells in use, prefixes that were found."""
    http = serve_sim(ServerConfig(port=0, endpoint_metrics=True), n_ctx=100_000)
    for _ in range(2):
        http.post("/completion", json={**forced("hello"), "prompt": "How do you do?"})
    told = _series(http)
    counts = {"time_to_first_token": 2, "e2e_request_latency": 2, "queue_time": 2, "inter_token_latency": 10}
    assert {name: told[f"corral:{name}_seconds_count"] for name in counts} == counts
    assert told["corral:step_seconds_sum"] > 0
    assert (told["corral:prefix_cache_queries_total"], told["corral:prefix_cache_hits_total"]) == (2 * 15, 14)
    assert told["corral:kv_cache_filled_ratio"] > told["corral:kv_cache_usage_ratio"] == 0
    with send_raw(http, ENDLESS):
        until(lambda: _series(http)["corral:kv_cache_usage_ratio"] > 0, "a slot holds cells")


def test_ping_comments_are_not_events() -> None:
    """llama.cpp#14268: a client that follows the format sees none of them."""
    assert parse_events(':\n\ndata: {"a":1}\n\n:\n\n') == [{"a": 1}]
