"""Adapters over HTTP: the list, the default, one request's own, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from corral.ids import AdapterId, AdapterSet, adapter_set
from corral.ports import AdapterInfo
from corral.sim.model import SimModel
from corral.sim.oracle import solo

ADAPTERS = (
    AdapterInfo(AdapterId(0), "/a/first.gguf", 0.5, "rhyme", "Rhyme: "),
    AdapterInfo(AdapterId(1), "/a/second.gguf", 0.0),
    AdapterInfo(AdapterId(2), "/a/alora.gguf", 0.0, invocation=tuple(b"@@")),
    AdapterInfo(AdapterId(3), "/a/other.gguf", 0.0, invocation=tuple(b"!!")),
)
MODEL = SimModel()
PROMPT = "a prompt of some length, with @@ in it"


@pytest.fixture
def http(serve_sim: Callable[..., httpx.Client]) -> httpx.Client:
    return serve_sim(adapters=ADAPTERS)


def ask(http: httpx.Client, prompt: str = PROMPT, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "return_tokens": True, **fields}
    reply = http.post("/completion", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


def alone(adapters: AdapterSet, prompt: str = PROMPT, n_base: int = 0) -> list[int]:
    tokens = MODEL.tokenizer.tokenize(prompt, add_special=True, parse_special=True)
    return list(solo(tokens, 8, model=MODEL, adapters=adapters, n_base=n_base))


def only(adapter: int, scale: float = 1.0) -> AdapterSet:
    return adapter_set({AdapterId(adapter): scale})


def test_the_list_is_that_of_llama_server(http: httpx.Client) -> None:
    first, _, alora, _ = http.get("/lora-adapters").json()
    shown = {"id": 0, "path": "/a/first.gguf", "scale": 0.5, "task_name": "rhyme", "prompt_prefix": "Rhyme: "}
    assert first == shown
    assert alora["alora_invocation_string"] == "@@"
    assert alora["alora_invocation_tokens"] == list(b"@@")


def test_without_adapters_the_list_is_empty(serve_sim: Callable[..., httpx.Client]) -> None:
    assert serve_sim().get("/lora-adapters").json() == []


def test_a_request_without_a_list_gets_the_default_and_others_what_they_name(http: httpx.Client) -> None:
    assert ask(http)["tokens"] == alone(only(0, 0.5))
    assert ask(http, lora=[])["tokens"] == alone(only(0, 0.5))
    assert ask(http, lora=[{"id": 1, "scale": 1}])["tokens"] == alone(only(1))
    assert ask(http, lora=[{"id": 0, "scale": 0}])["tokens"] == alone(())
    n_base = 1 + len(MODEL.tokenizer.tokenize(PROMPT.partition("@@")[0], add_special=False, parse_special=True))
    assert ask(http, lora=[{"id": 2, "scale": 1}])["tokens"] == alone(only(2), n_base=n_base)


def test_a_new_default_is_for_later_requests_and_meets_no_stale_prefix(http: httpx.Client) -> None:
    assert ask(http)["tokens"] == alone(only(0, 0.5))
    assert http.post("/lora-adapters", json=[{"id": 1, "scale": 2}]).json() == {"success": True}
    assert [a["scale"] for a in http.get("/lora-adapters").json()] == [0.0, 2.0, 0.0, 0.0]
    after = ask(http)
    assert after["tokens"] == alone(only(1, 2.0))
    assert after["timings"]["cache_n"] == 0
    assert http.post("/lora-adapters", json=[]).json() == {"success": True}
    assert ask(http)["tokens"] == alone(())


def test_settings_show_what_the_request_named(http: httpx.Client) -> None:
    named = [{"id": 1, "scale": 1.5}, {"id": 2, "scale": 0.0}]
    assert ask(http, lora=named, id_slot=0)["generation_settings"]["lora"] == named
    assert http.get("/slots").json()[0]["params"]["lora"] == named
    assert ask(http)["generation_settings"]["lora"] == []
    assert http.get("/props").json()["default_generation_settings"]["params"]["lora"] == []


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ([{"id": 4, "scale": 1}], "there is no adapter with id 4; ids are 0 to 3"),
        ([{"id": -1, "scale": 1}], "there is no adapter with id -1"),
        ([{"id": 2, "scale": 1}, {"id": 3, "scale": 1}], "Cannot run multiple aLoRAs in a single request"),
        ([{"id": 0, "scale": 1e39}], "lora.0.scale"),
        ({"id": 0}, "type must be array"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_list_that_cannot_be_used_is_a_400(http: httpx.Client, lora: object, words: str, stream: bool) -> None:
    reply = http.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "lora": lora, "stream": stream}
    )
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert words in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"id": 0, "scale": 1}, "Request body must be an array"),
        ([{"id": 7}], "there is no adapter with id 7"),
        ([{"id": "0"}], "type must be an integer"),
        ([{"id": 0, "scale": []}], "type must be number"),
    ],
)
def test_a_default_that_cannot_be_is_a_400_and_changes_nothing(http: httpx.Client, body: object, words: str) -> None:
    reply = http.post("/lora-adapters", json=body)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert http.get("/lora-adapters").json()[0]["scale"] == 0.5
    assert http.post("/lora-adapters", content=b"[").status_code == 400


@pytest.mark.parametrize("path", ["/cache/warm", "/cache/pin"])
def test_what_is_computed_ahead_is_for_requests_with_the_adapters_that_it_names(http: httpx.Client, path: str) -> None:
    lora = [{"id": 1, "scale": 1}]
    assert http.post(path, json={"prompt": PROMPT, "lora": lora}).status_code == 200
    assert ask(http)["timings"]["cache_n"] == 0
    reply = ask(http, lora=lora)
    assert reply["timings"]["cache_n"] > 20 and reply["tokens"] == alone(only(1))
    refused = http.post(path, json={"prompt": PROMPT, "lora": [{"id": 9, "scale": 1}]})
    assert refused.status_code == 400 and "no adapter with id 9" in refused.json()["error"]["message"]
