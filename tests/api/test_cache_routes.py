"""The operator's routes: prompts computed ahead, pins that outlast any pressure, and a list that tells no secrets."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.conftest import SimServer, simulated
from tests.api.live import client, is_idle, send_raw, until

from corral.api.pins import pin_all
from corral.api.schemas.defaults import Defaults
from corral.api.service import Service
from corral.config import ApiKey, ContextConfig, EngineConfig, ServerConfig
from corral.ops import Span
from corral.ports import DecodeStatus
from corral.runtime import Runtime
from corral.sim.clock import VirtualClock
from corral.sim.context import SimContext

TEXT = "Once upon a time there was a llama that lived in a corral with others. "
SERVER = ServerConfig(port=0, alias=("sim",), endpoint_metrics=True)


@contextlib.contextmanager
def served(server: ServerConfig = SERVER, *, unified: bool = True, ram: int = 20_000) -> Iterator[httpx.Client]:
    """Two slots of 300 tokens, and room for a few prompts in RAM (8 bytes a token)."""
    context = ContextConfig(n_ctx=600, n_slots=2, n_rows=4 if unified else 2, n_batch=256, kv_unified=unified)
    runtime = Runtime.simulated(context, EngineConfig(n_slots=2, cache_ram_bytes=ram, audit=True), clock=VirtualClock())
    try:
        with client(runtime, server) as http:
            yield http
    finally:
        runtime.close()


def cached(http: httpx.Client, prompt: str) -> int:
    reply = http.post("/completion", json={"prompt": prompt, "n_predict": 1, "temperature": 0})
    assert reply.status_code == 200, reply.text
    return int(reply.json()["timings"]["cache_n"])


def pressure(http: httpx.Client, n: int = 20) -> None:
    for i in range(n):
        cached(http, f"{i} " + "other words " * 20)


def message(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["message"]


def test_what_was_warmed_is_there(http: httpx.Client) -> None:
    prompt = "warmed ahead: " + TEXT
    reply = http.post("/cache/warm", json={"prompt": prompt}).json()
    assert (reply["n_cached"], reply["n_tokens"]) == (0, len(prompt) + 1)
    assert http.post("/cache/warm", json={"prompt": prompt}).json()["n_cached"] > 80
    assert cached(http, prompt + "more") >= len(prompt)


def test_messages_are_warmed_as_the_beginning_of_a_conversation(http: httpx.Client) -> None:
    system = {"role": "system", "content": "You are a llama in a corral, and you answer as one. Be brief, be kind."}
    n_tokens = http.post("/cache/warm", json={"messages": [system]}).json()["n_tokens"]
    body = {"messages": [system, {"role": "user", "content": "Who are you?"}], "max_tokens": 1}
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == n_tokens


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_a_pin_outlasts_pressure_until_it_is_unpinned(unified: bool) -> None:
    with served(unified=unified, ram=5000) as http:
        reply = http.post("/cache/pin", json={"prompt": TEXT}).json()
        assert (reply["pinned"], reply["n_tokens"]) == (True, len(TEXT) + 1)
        assert reply["n_bytes"] >= 8 * reply["n_tokens"]
        assert http.post("/cache/pin", json={"prompt": TEXT}).json()["id"] == reply["id"]
        pressure(http)
        assert cached(http, TEXT + "What then?") >= len(TEXT)
        assert http.delete(f"/cache/pin/{reply['id']}").json() == {"id": reply["id"], "pinned": False}
        pressure(http)
        assert cached(http, TEXT + "What then?") < 10
        assert message(http.delete(f"/cache/pin/{reply['id']}")) == (404, f"there is no pin {reply['id']}")


def test_unpinning_by_post(http: httpx.Client) -> None:
    name = http.post("/cache/pin", json={"tokens": list(range(97, 120)), "cache_salt": "mine"}).json()["id"]
    assert http.post("/cache/pin", json={"pinned": False, "id": name}).json() == {"id": name, "pinned": False}
    assert message(http.post("/cache/pin", json={"pinned": False}))[0] == 400


def test_pins_that_would_not_leave_room_are_refused() -> None:
    with served() as http:
        first = http.post("/cache/pin", json={"prompt": "a" * 200})
        assert first.status_code == 200
        code, why = message(http.post("/cache/pin", json={"prompt": "b" * 120}))
        assert (code, "half of the 600 KV cells" in why) == (400, True), why
        http.delete(f"/cache/pin/{first.json()['id']}")
        assert http.post("/cache/pin", json={"prompt": "b" * 120}).status_code == 200
    for ram in (0, 1000):
        with served(ram=ram) as http:
            code, why = message(http.post("/cache/pin", json={"prompt": "a" * 100}))
            assert (code, f"half of the RAM tier's {ram}" in why) == (400, True), why
            assert cached(http, "a" * 100) == 0  # nothing was computed for it


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "one of 'tokens', 'prompt' and 'messages' is needed, but there is none of them"),
        ({"prompt": "a", "tokens": [97]}, "but there is tokens and prompt"),
        ({"tokens": [-1]}, "invalid tokens"),
        ({"prompt": 7}, "must be a string"),
        ({"prompt": "a" * 5000}, "exceeds the available context size"),
    ],
)
def test_refusals(http: httpx.Client, body: dict[str, Any], why: str) -> None:
    for route in ("warm", "pin"):
        code, text = message(http.post(f"/cache/{route}", json=body))
        assert (code, why in text or "half of the" in text) == (400, True), text


def test_the_list_tells_what_is_kept_and_no_text() -> None:
    with served() as http:
        name = http.post("/cache/pin", json={"prompt": TEXT}).json()["id"]
        raw = http.get("/cache").text
        body = http.get("/cache").json()
        assert "llama" not in raw
        assert {kept["kept"] for kept in body["prefixes"]} == {"row", "ram"}
        (pinned,) = [kept for kept in body["prefixes"] if kept["pin"] == name]
        assert (pinned["kept"], pinned["n_tokens"], pinned["is_busy"]) == ("ram", len(TEXT) + 1, False)
        assert body["ram_bytes"] == sum(kept["n_bytes"] for kept in body["prefixes"] if kept["kept"] == "ram")


def test_the_list_shows_texts_if_the_operator_wants_it() -> None:
    with served(ServerConfig(port=0, cache_show_text=True)) as http:
        cached(http, TEXT)
        assert any(TEXT in kept["text"] for kept in http.get("/cache").json()["prefixes"])


def test_n7_keys_see_and_unpin_their_own(serve_sim: SimServer) -> None:
    http = serve_sim(ServerConfig(port=0, api_keys=(ApiKey("ann"), ApiKey("bob"))))
    assert http.get("/cache").status_code == 401
    http.headers["Authorization"] = "Bearer ann"
    name = http.post("/cache/pin", json={"prompt": TEXT}).json()["id"]
    assert http.get("/cache").json()["prefixes"]
    http.headers["Authorization"] = "Bearer bob"
    assert http.get("/cache").json()["prefixes"] == []
    assert http.delete(f"/cache/pin/{name}").status_code == 404
    assert cached(http, TEXT) == 0


def test_what_a_key_warms_or_pins_has_its_priority(serve_sim: SimServer) -> None:
    http = serve_sim(ServerConfig(port=0, api_keys=(ApiKey("low", weight=0.5, priority=-7),)), n_slots=1)
    http.headers["Authorization"] = "Bearer low"
    for route in ("warm", "pin"):
        assert http.post(f"/cache/{route}", json={"prompt": f"{route} {TEXT}"}).status_code == 200
        assert http.get("/slots").json()[0]["priority"] == -7


def test_erasing_a_slot_leaves_pins(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(ServerConfig(port=0, slot_save_path=tmp_path), n_slots=1)
    http.post("/cache/pin", json={"prompt": TEXT})
    http.post("/slots/0?action=erase", json={})
    assert cached(http, TEXT + "and") >= len(TEXT)


def test_a_file_of_pins_is_computed_at_the_start() -> None:
    keys = (ApiKey("ann"), ApiKey("bob"))
    pins: tuple[dict[str, object], ...] = (
        {"prompt": TEXT, "api_key": "ann"},
        {"prompt": TEXT, "api_key": "eve"},
        {"prompt": 7, "api_key": "bob"},
    )
    context = ContextConfig(n_ctx=600, n_slots=2, n_rows=4, n_batch=256)
    runtime = Runtime.simulated(context, EngineConfig(n_slots=2, audit=True), clock=VirtualClock())
    server = ServerConfig(port=0, api_keys=keys, pins=pins)
    try:
        asyncio.run(pin_all(Service.of(runtime, server, Defaults())))
        with client(runtime, server) as http:
            http.headers["Authorization"] = "Bearer ann"
            assert [kept["pin"] for kept in http.get("/cache").json()["prefixes"] if kept["pin"]]
            assert cached(http, TEXT + "and") >= len(TEXT)
            http.headers["Authorization"] = "Bearer bob"
            assert http.get("/cache").json()["prefixes"] == []
    finally:
        runtime.close()


def test_the_ram_tier_never_takes_more_than_its_budget_and_one_entry() -> None:
    """llama-server's `--cache-ram 64` under 200 distinct prompts, on a smaller scale."""
    limit, entry = 20_000, 20 + 8 * 256
    with served(ram=limit) as http:
        for i in range(200):
            cached(http, f"{i:03} " + f"words of {i} " * 18)
            metrics = http.get("/metrics").text
            (line,) = [line for line in metrics.splitlines() if line.startswith("corral:snapshot_bytes ")]
            assert int(line.split()[1]) <= limit + entry
        assert int(line.split()[1]) > limit // 2


class Passes:
    """Forward passes that wait to be let through; ``rows`` of each that began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[set[int]] = []
        self._tickets = threading.Semaphore(0)
        decode = SimContext.decode

        def gated(context: SimContext, spans: Sequence[Span]) -> DecodeStatus:
            self.rows.append({span.row for span in spans})
            assert self._tickets.acquire(timeout=60)
            return decode(context, spans)

        monkeypatch.setattr(SimContext, "decode", gated)

    def let_through(self, n: int = 1) -> None:
        self._tickets.release(n)


@pytest.mark.parametrize("path", ["/cache/warm", "/cache/pin"])
def test_a_client_that_leaves_stops_what_it_asked_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch)
    with simulated(n_slots=2, n_batch=32) as runtime, client(runtime, SERVER) as http:
        sock = send_raw(http, {"prompt": "x" * 1000}, path)
        until(lambda: len(passes.rows) == 1, "the prompt is being computed")
        sock.close()
        inbox = runtime.engine._inbox
        until(lambda: bool(inbox._urgent), "the server has noticed")
        passes.let_through(100)
        until(lambda: is_idle(http), "the slot is free")
        assert len(passes.rows) == 1
        assert not [kept for kept in http.get("/cache").json()["prefixes"] if kept["pin"]]


def test_pins_that_have_nothing_in_common_begin_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch)
    with simulated(n_slots=4, n_batch=256) as runtime, client(runtime, SERVER) as http, contextlib.ExitStack() as socks:
        busy = socks.enter_context(send_raw(http, {"prompt": "busy", "n_predict": 3, "ignore_eos": True}))
        until(lambda: len(passes.rows) == 1, "a pass is running")
        pins = [socks.enter_context(send_raw(http, {"prompt": letter * 60}, "/cache/pin")) for letter in "abc"]
        inbox = runtime.engine._inbox
        until(lambda: len(inbox._messages) == 6, "all three are asked for, each to be computed and to be kept")
        passes.let_through()
        until(lambda: len(passes.rows) == 2, "the next pass is running")
        assert len(passes.rows[1]) == 4
        passes.let_through(100)
        for sock in (busy, *pins):
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_slot_action_whose_client_left_is_not_done(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(ServerConfig(port=0, slot_save_path=tmp_path), n_slots=1)
    cached(http, TEXT)
    body = {"prompt": "x", "n_predict": 400, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/completion", json=body) as stream:
        next(stream.iter_lines())
        sock = send_raw(http, {}, "/slots/0?action=erase")
        http.get("/health")
        sock.close()
        http.get("/health")
    until(lambda: is_idle(http), "the slot is free")
    assert cached(http, TEXT) > 0
