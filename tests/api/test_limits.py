"""No body makes the server slow or large: too much is refused at once, by name, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.canned import (
    INFO,
    SERVER,
    ByteModel,
    ByteTokenizer,
    CannedEngine,
    Script,
    canned_runtime,
    says,
)
from tests.api.canned import N_VOCAB as BYTES
from tests.api.conftest import simulated
from tests.api.live import client, send_raw
from tests.api.test_hostile import BODIES, POSTS

from corral.api import lanes
from corral.api.dialects.settings import public_settings_json
from corral.api.lanes import LONG_BYTES
from corral.api.routes import adapters
from corral.api.schemas.defaults import Defaults
from corral.api.service import Service
from corral.config import MIB, ApiKey, ContextConfig, EngineConfig, ModelConfig
from corral.events import Chunk, Event, Finished, Ranked, TokenProbs
from corral.llama import stock
from corral.ops import Span
from corral.ports import DecodeStatus
from corral.runtime import Runtime
from corral.sim.context import SimContext
from corral.sim.tokenizer import N_VOCAB, SimTokenizer
from corral.tasks import Limits, Sampling, Task

LIMIT = 64 * 1024
N_CTX = 512


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("limits")
    server = replace(SERVER, max_body_bytes=LIMIT, slot_save_path=folder, responses_store=folder / "r.db")
    with simulated(n_slots=2, n_ctx=N_CTX) as runtime, client(runtime, server) as served:
        yield served


def url(path: str) -> str:
    return path.format(id_slot=0) + ("?action=save" if "{" in path else "")


def message(reply: httpx.Response) -> str:
    error = reply.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


TAKE_BODIES = [path for path in BODIES if path != "/props"]


@pytest.mark.parametrize("path", TAKE_BODIES)
def test_a_body_over_the_limit_is_a_413_of_the_route(http: httpx.Client, path: str) -> None:
    body = json.dumps(BODIES[path]).encode()
    reply = http.post(url(path), content=body + b" " * LIMIT)
    assert reply.status_code == 413
    assert f"has {len(body) + LIMIT} bytes; at most {LIMIT} are read" in message(reply)
    assert "--max-body-mib" in message(reply)
    if path.startswith("/v1/messages"):
        assert reply.json()["error"]["type"] == "request_too_large"
    elif not path.startswith("/api/"):
        assert (reply.json()["error"]["code"], reply.json()["error"]["type"]) == (413, "invalid_request_error")
    assert http.post(url(path), content=body + b" " * (LIMIT - len(body))).status_code != 413


def test_of_a_body_without_a_length_no_more_than_the_limit_is_read(http: httpx.Client) -> None:
    reply = http.post("/completion", content=iter([b'{"prompt": "', b"x" * LIMIT, b'"}']))
    assert reply.status_code == 413
    assert f"at most {LIMIT} are read" in message(reply)


def test_a_terabyte_is_refused_before_it_is_sent(http: httpx.Client) -> None:
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as sock:
        sock.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % 10**12)
        assert b" 413 " in sock.recv(4096).split(b"\r\n")[0]


LONG = "the " * (N_CTX * 12 // 4)
"""No token has more than 12 bytes: at least N_CTX tokens, which is one too many."""
TOO_LONG: dict[str, Any] = {
    "/completion": {"prompt": LONG},
    "/v1/completions": {"prompt": ["short", LONG]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/responses": {"input": LONG},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1},
    "/api/chat": {"messages": [{"role": "user", "content": LONG}]},
    "/api/generate": {"prompt": LONG, "raw": True},
    "/cache/warm": {"messages": [{"role": "user", "content": LONG}]},
    "/cache/pin": {"prompt": [LONG, 3]},
}


@pytest.mark.parametrize("path", TOO_LONG)
def test_a_text_that_cannot_fit_is_refused_without_being_tokenized(
    http: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenize(self: SimTokenizer, text: str, **how: bool) -> list[int]:
        assert len(text) < len(LONG), "a text that cannot fit is tokenized"
        return [0] * len(text)

    monkeypatch.setattr(SimTokenizer, "tokenize", tokenize)
    reply = http.post(path, json=TOO_LONG[path])
    assert reply.status_code == 400, reply.text
    assert "at least" in message(reply) and f"{N_CTX}" in message(reply)
    error = reply.json()["error"]
    if not path.startswith("/api/"):
        assert error["type"] == ("invalid_request_error" if path == "/v1/messages" else "exceed_context_size_error")
        assert error["n_prompt_tokens"] >= error["n_ctx"] == N_CTX


def test_the_length_of_what_was_tokenized_is_exact(http: httpx.Client) -> None:
    reply = http.post("/completion", json={"prompt": "x" * N_CTX})
    assert message(reply).startswith(f"request ({N_CTX + 1} tokens) exceeds")
    reply = http.post("/completion", json={"prompt": [97] * (N_CTX + 40)})
    assert message(reply).startswith(f"request ({N_CTX + 40} tokens) exceeds")


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens", "/v1/chat/completions/input_tokens"])
def test_what_only_counts_has_no_limit_but_the_body(http: httpx.Client, path: str) -> None:
    body = {"content": LONG} if path == "/tokenize" else {"messages": [{"role": "user", "content": LONG}]}
    reply = http.post(path, json=body).json()
    assert len(reply.get("tokens", ())) or reply["input_tokens"] > len(LONG) // 4


PARTS = {
    "arrays": "[" + ",".join(["[]"] * 130_000) + "]",
    "objects": "[" + ",".join(["{}"] * 130_000) + "]",
    "members": "{" + ",".join(f'"{i}":1' for i in range(130_000)) + "}",
}


@pytest.mark.parametrize("value", PARTS.values(), ids=PARTS)
def test_bodies_of_many_parts_are_refused_before_they_are_parsed(value: str, http: httpx.Client) -> None:
    with simulated(n_slots=1, n_ctx=N_CTX) as runtime, client(runtime, SERVER) as http:
        few = http.post("/completion", content=f'{{"prompt": "x", "n_predict": 1, "unknown": {value}}}')
        assert few.status_code == 200
        many = http.post("/completion", content=f'{{"prompt": "x", "n_predict": 1, "unknown": [{value}, {value}]}}')
        assert (many.status_code, "at most 250000 are read" in message(many)) == (400, True)
        # Text is not counted.
        text = http.post("/tokenize", json={"content": '{"a":["' * 100_000})
        assert text.status_code == 200


def test_the_limit_grows_with_the_context() -> None:
    runtime = canned_runtime(CannedEngine(says("x")))
    service = Service.of(runtime, SERVER, Defaults())
    assert service.max_body_bytes == 8 * MIB
    assert replace(service, runtime=replace(runtime, n_ctx_slot=10**6)).max_body_bytes == 16 * 10**6
    assert replace(service, server=replace(SERVER, max_body_bytes=5)).max_body_bytes == 5


def test_while_a_long_body_is_read_others_are_served_and_who_left_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def tokenize(self: SimTokenizer, text: str, **how: bool) -> list[int]:
        seen.append(text)
        if text == "first":
            begun.set()
            assert go_on.wait(20)
        return [97]

    monkeypatch.setattr(SimTokenizer, "tokenize", tokenize)
    with simulated(n_slots=1, n_ctx=N_CTX) as runtime, client(runtime, SERVER) as http:
        blank = "x" * LONG_BYTES
        first = send_raw(http, {"content": "first", "unknown": blank}, "/tokenize")
        assert begun.wait(30)
        for gone in [send_raw(http, {"content": "gone", "unknown": blank}, "/tokenize") for _ in range(3)]:
            gone.close()
        last = send_raw(http, {"content": "last", "unknown": blank}, "/tokenize")
        assert http.get("/health").status_code == 200
        assert http.post("/tokenize", json={"content": "short", "unknown": "x" * 5000}).status_code == 200
        assert seen == ["first", "short"]
        go_on.set()
        for sock in (first, last):
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            sock.close()
        assert seen == ["first", "short", "last"]


def test_bodies_of_a_key_that_are_not_read_yet_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def tokenize(self: SimTokenizer, text: str, **how: bool) -> list[int]:
        if text == "first":
            begun.set()
            assert go_on.wait(20)
        return [97]

    monkeypatch.setattr(SimTokenizer, "tokenize", tokenize)
    monkeypatch.setattr(lanes, "MAX_UNREAD_BYTES", 2 * LONG_BYTES)
    server = replace(SERVER, api_keys=(ApiKey("ann"), ApiKey("bob")))
    with simulated(n_slots=1, n_ctx=N_CTX) as runtime, client(runtime, server) as http:
        ann, bob = {"X-Api-Key": "ann"}, {"X-Api-Key": "bob"}
        long = {"content": "first", "unknown": "x" * LONG_BYTES}
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(http.post, "/tokenize", json=long, headers=ann)
            assert begun.wait(30)
            refused = http.post("/tokenize", json=long, headers=ann)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert message(refused) == "bodies of yours that are not read yet take 1 MiB; try again later"
            other = pool.submit(http.post, "/tokenize", json={**long, "content": "other"}, headers=bob)
            assert http.post("/tokenize", json={"content": "short"}, headers=ann).status_code == 200
            go_on.set()
            assert (first.result().status_code, other.result().status_code) == (200, 200)
        assert http.post("/tokenize", json=long, headers=ann).status_code == 200


def test_every_route_with_a_body_is_limited() -> None:
    assert set(TAKE_BODIES) == set(POSTS) - {"/props"}


@pytest.mark.parametrize("name", ["n_probs", "logprobs"])
@pytest.mark.parametrize("value", [1e308, 2**31, 2**64, "5", [5]])
def test_a_number_of_probabilities_is_a_number(http: httpx.Client, name: str, value: object) -> None:
    reply = http.post("/completion", json={"prompt": "x", name: value, "n_predict": 1})
    assert (reply.status_code, name in message(reply)) == (400, True)


def test_more_probabilities_than_tokens_are_all_of_them(http: httpx.Client) -> None:
    reply = http.post("/completion", json={"prompt": "x", "n_probs": 2**31 - 1, "n_predict": 1}).json()
    assert reply["generation_settings"]["n_probs"] == N_VOCAB
    assert len(reply["completion_probabilities"][0]["top_logprobs"]) == N_VOCAB
    assert "completion_probabilities" not in http.post("/completion", json={"prompt": "x", "n_probs": -1}).json()
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "logprobs": True, "top_logprobs": 10**6}
    entry = http.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"][0]
    assert len(entry["top_logprobs"]) == N_VOCAB


def test_a_reply_of_too_many_probabilities_is_refused() -> None:
    with simulated(n_slots=2, n_ctx=8192) as runtime, client(runtime, SERVER) as http:
        n_ctx = http.get("/slots").json()[0]["n_ctx"]
        body = {"prompt": ["x", "y"], "n_probs": N_VOCAB, "n": 2}
        many = http.post("/completion", json=body)
        told = f"{N_VOCAB} for each of up to {n_ctx} tokens of 4 completions are {N_VOCAB * n_ctx * 4} probabilities"
        assert (many.status_code, told in message(many), "n_predict" in message(many)) == (400, True, True)
        assert http.post("/completion", json={**body, "n_predict": 2}).status_code == 200
        assert http.post("/completion", json={**body, "n_probs": 20, "n_predict": 2}).status_code == 200
        chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": N_VOCAB}
        assert http.post("/v1/chat/completions", json=chat).status_code == 400


class WatchedTokenizer(ByteTokenizer):
    """Counts the tokens that are written on an event loop."""

    n_vocab = 50_000
    n_on_loop = 0

    def piece(self, token: int, *, special: bool) -> bytes:
        with contextlib.suppress(RuntimeError):  # there is no loop on a worker
            asyncio.get_running_loop()
            self.n_on_loop += 1
        return super().piece(token % BYTES, special=special)


def says_with_all(n: int) -> Script:
    """Five tokens, with ``n`` likely ones each."""

    def script(task: Task) -> list[Event]:
        probs = tuple(TokenProbs(97, -1.0, Ranked(range(n), [-1.0] * n), False) for _ in range(5))
        chunks = [Chunk(task.id, "a", (97,), i + 1, None, (entry,)) for i, entry in enumerate(probs)]
        end = says("")(task)[-1]
        assert isinstance(end, Finished)
        return [*chunks, replace(end, text="aaaaa", tokens=(97,) * 5, probs=probs)]

    return script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions", "/api/chat"])
def test_many_probabilities_are_written_beside_the_event_loop(path: str, stream: bool) -> None:
    n, tokenizer = WatchedTokenizer.n_vocab, WatchedTokenizer()
    engine = CannedEngine(says_with_all(n))
    runtime = replace(canned_runtime(engine), model=ByteModel(replace(INFO, n_vocab=n), tokenizer))  # type: ignore[arg-type]
    body = {
        "prompt": "x",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 5,
        "options": {"num_predict": 5},
        "stream": stream,
    }
    asked = {"logprobs": True, "top_logprobs": n} if "chat" in path else {"n_probs": n}
    with client(runtime, SERVER) as http:
        tokenizer.n_on_loop = 0
        reply = http.post(path, json={**body, **asked})
        assert reply.status_code == 200
        assert reply.text.count('"logprob":-1.0') == 5 * (n + 1)
        assert tokenizer.n_on_loop < 100


ASK = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(30_000)]
MANY: dict[str, tuple[str, dict[str, Any], str]] = {
    "stops": ("/completion", {"stop": ["x"] * 257}, "'stop': it has 257 strings; at most 256"),
    "a long stop": ("/completion", {"stop": "x" * 16_385}, "'stop': it has 16385 characters; at most 16384"),
    "long stops": ("/completion", {"stop": ["x" * 9000] * 2}, "'stop': it has 18000 characters; at most 16384"),
    "samplers": ("/completion", {"samplers": ["top_k"] * 65}, "'samplers': it has 65 samplers; at most 64"),
    "letters": ("/completion", {"samplers": "k" * 65}, "'samplers': it has 65 samplers; at most 64"),
    "breakers": (
        "/completion",
        {"dry_multiplier": 1, "dry_sequence_breakers": ["x"] * 17},
        "'dry_sequence_breakers': it has 17 strings; at most 16",
    ),
    "biases": ("/completion", {"logit_bias": [[5, 1]] * (N_VOCAB + 1)}, f"'logit_bias': it has {N_VOCAB + 1} entries"),
    "biased texts": ("/completion", {"logit_bias": {"ab" * 200: 1}}, "'logit_bias': it has 400 tokens"),
    "a biased book": ("/completion", {"logit_bias": {"ab" * 20_000: 1}}, "'logit_bias': it has 3334 tokens"),
    "triggers": (
        "/completion",
        {"grammar": 'root ::= "a"', "grammar_lazy": True, "grammar_triggers": [{"value": "x"}] * 257},
        "'grammar_triggers': it has 257 triggers; at most 256",
    ),
    "long triggers": (
        "/completion",
        {"grammar": 'root ::= "a"', "grammar_lazy": True, "grammar_triggers": [{"value": "x" * 9000}] * 2},
        "'grammar_triggers': it has 18000 characters; at most 16384",
    ),
    "names": ("/completion", {"response_fields": ["a"] * 10_001}, "'response_fields': it has 10001 strings"),
    "a salt": ("/completion", {"cache_salt": "x" * 1025}, "'cache_salt': it has 1025 characters; at most 1024"),
    "a salt of a pin": ("/cache/pin", {"cache_salt": "x" * 1025}, "'cache_salt': it has 1025 characters; at most 1024"),
    "variables": (
        "/v1/chat/completions",
        {"chat_template_kwargs": {f"k{i}": 1 for i in range(1001)}},
        "'chat_template_kwargs': it has 1001 members; at most 1000",
    ),
    "tools of one name": ("/v1/chat/completions", {"tools": [*TOOLS, TOOLS[-1]]}, "two tools are called 'f29999'"),
    "prompts": (
        "/completion",
        {"prompt": [""] * 1000},
        "1000 prompts with 1 completions each are 1000; at most 102 can",
    ),
    "choices": (
        "/completion",
        {"prompt": [""] * 52, "n": 2},
        "52 prompts with 2 completions each are 104; at most 102",
    ),
    "schema": ("/completion", {"json_schema": {"enum": ["x" * 256_000]}}, "at most 256000"),
}


@pytest.mark.parametrize(("path", "body", "told"), MANY.values(), ids=MANY)
def test_what_is_too_much_is_refused_by_name(path: str, body: dict[str, Any], told: str) -> None:
    with simulated(n_slots=2, n_ctx=N_CTX, max_queue=100) as runtime, client(runtime, SERVER) as http:
        whole = {"messages": ASK, **body} if path.startswith("/v1/chat") else {"prompt": "x", **body}
        reply = http.post(path, json=whole)
        assert (reply.status_code, told in message(reply)) == (400, True), reply.text


def test_the_most_that_is_possible_works(http: httpx.Client) -> None:
    body: dict[str, Any] = {
        "prompt": "x",
        "n_predict": 2,
        "stop": [f"{i}zz" for i in range(256)],
        "samplers": ["top_k"] * 64,
        "logit_bias": [[i, 0.5] for i in range(N_VOCAB)],
        "cache_salt": "x" * 1024,
        "response_fields": ["a"] * 10_000,
    }
    reply = http.post("/completion", json=body)
    assert reply.status_code == 200, reply.text


def test_long_settings_of_many_completions_are_refused() -> None:
    with simulated(n_slots=2, n_ctx=N_CTX, max_queue=400) as runtime, client(runtime, SERVER) as http:
        body = {"prompt": ["x"] * 400, "n_predict": 1, "json_schema": {"enum": ["x" * 200_000]}}
        reply = http.post("/v1/completions", json=body)
        assert (reply.status_code, "400 completions take 200" in message(reply)) == (400, True), reply.text
        assert "at most 67108864" in message(reply)


def test_long_settings_are_repeated_beside_the_event_loop() -> None:
    tokenizer = WatchedTokenizer()
    engine = CannedEngine(says("a"))
    runtime = replace(canned_runtime(engine), model=ByteModel(INFO, tokenizer))  # type: ignore[arg-type]
    with client(runtime, SERVER) as http:
        body = {"prompt": "x" * 600, "logit_bias": [[i, 1] for i in range(20_000)], "response_fields": []}
        tokenizer.n_on_loop = 0
        reply = http.post("/completion", json=body).json()
        assert len(reply["generation_settings"]["logit_bias"]) == 20_000
        assert tokenizer.n_on_loop < 100


def test_what_slots_do_not_tell_takes_them_no_time() -> None:
    """Of a whole vocabulary of biases in each slot, GET /slots would hold up everybody's tokens."""

    class Untouched(Sequence[tuple[int, float]]):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("biases are looked at")

    shown = public_settings_json(Sampling(logit_bias=Untouched(), temperature=0.5), Limits())
    assert shown["temperature"] == 0.5 and "logit_bias" not in shown


def test_a_long_list_of_adapters_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    monkeypatch.setattr(adapters, "read_scales", _watched(adapters.read_scales, threads))
    with client(canned_runtime(CannedEngine(says("a"))), SERVER) as http:
        for n in (0, 5000):
            reply = http.post("/lora-adapters", json=[{"id": 0, "scale": 1}] * n)
            assert reply.status_code == (400 if n else 200)
    on_loop, beside = threads
    assert on_loop != beside


@pytest.mark.parametrize(
    ("body", "defaults"),
    [
        ({"grammar": 'root ::= "a"'}, Defaults()),
        ({"dry_multiplier": 1.0}, Defaults()),
        ({}, Defaults(sampling=Sampling(grammar='root ::= "a"'))),
        ({}, Defaults(sampling=Sampling(dry_multiplier=1.0))),
    ],
    ids=["grammar", "dry", "grammar by default", "dry by default"],
)
def test_what_takes_long_is_compiled_neither_on_the_event_loop_nor_by_the_engine(
    body: dict[str, Any], defaults: Defaults, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ContextConfig(n_ctx=1024, n_slots=2, n_rows=2, n_batch=64, kv_unified=False)
    runtime = Runtime.open(ModelConfig(tiny_model), context, EngineConfig(n_slots=2))
    threads: list[str] = []
    with contextlib.closing(runtime), client(runtime, SERVER, defaults) as http:
        for name in ("_new_grammar", "_new_dry"):
            monkeypatch.setattr(stock, name, _watched(getattr(stock, name), threads))
        reply = http.post("/completion", json={"prompt": "x", "n_predict": 2, "n": 2, **body})
        assert reply.status_code == 200, reply.text
    assert all(name.startswith(("asyncio_", "uvloop_")) for name in threads), threads
    assert threads or defaults.sampling.dry_multiplier, "nothing was compiled"


def _watched(make: Callable[..., Any], threads: list[str]) -> Callable[..., Any]:
    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return make(*args)

    return watched


def test_headers_have_a_limit(http: httpx.Client) -> None:
    assert http.get("/health", headers={"X-Long": "x" * 60_000}).status_code == 200
    assert http.get("/health?" + "x" * 60_000).status_code == 200
    chunked = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    heads = (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ", b"GET /health?")
    for first in (*heads, chunked + b"2;x=", chunked + b"2\r\n{}\r\n0\r\nX-Long: "):
        with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as sock:
            sent = 0
            with contextlib.suppress(OSError):  # it is closed from there
                sock.sendall(first)
                while sent < 64 * MIB:
                    sock.sendall(b"x" * 4096)
                    sent += 4096
                    if select.select([sock], [], [], 0)[0]:
                        break
            assert sent < 4 * MIB
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP/1.1 431 " in sock.recv(4096)


def test_a_body_may_come_in_chunks_of_a_byte(http: httpx.Client) -> None:
    body = json.dumps({"content": "x" * 30_000}).encode()
    reply = http.post("/tokenize", content=(body[i : i + 1] for i in range(len(body))))
    assert len(reply.json()["tokens"]) == 30_000


def test_many_requests_may_come_at_once(http: httpx.Client) -> None:
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 4000)
        got = b""
        while got.count(b"HTTP/1.1 200 OK") < 4000:
            part = sock.recv(1 << 16)
            assert part
            got += part


def test_on_one_connection_each_request_may_have_long_headers(http: httpx.Client) -> None:
    for _ in range(5):
        reply = http.post("/tokenize", json={"content": "x" * 50_000}, headers={"X-Long": "x" * 40_000})
        assert reply.status_code == 200


def test_a_prompt_over_the_context_is_refused_while_the_engine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    is_running, go_on, decode = threading.Event(), threading.Event(), SimContext.decode

    def gated(context: SimContext, spans: Sequence[Span]) -> DecodeStatus:
        is_running.set()
        assert go_on.wait(20)
        return decode(context, spans)

    monkeypatch.setattr(SimContext, "decode", gated)
    with simulated(n_slots=2, n_ctx=N_CTX) as runtime, client(runtime, SERVER) as http:
        busy = send_raw(http, {"prompt": "x", "n_predict": 1})
        assert is_running.wait(30)
        reply = http.post("/completion", json={"prompt": "x" * N_CTX})
        assert message(reply).startswith(f"request ({N_CTX + 1} tokens) exceeds")
        chat = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x" * N_CTX}]})
        assert chat.json()["error"]["type"] == "exceed_context_size_error"
        go_on.set()
        assert busy.recv(4096).startswith(b"HTTP/1.1 200")
        busy.close()
