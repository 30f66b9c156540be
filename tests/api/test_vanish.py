"""Clients that connect, wait for a moment and close their socket, beside one stream that must not notice.

60 of them; 300 with CORRAL_LONG=1, where the stream's gaps are measured, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.api.live import client, is_idle, until

from corral.config import ContextConfig, EngineConfig, ModelConfig, ServerConfig, n_rows_for
from corral.runtime import Runtime

pytestmark = pytest.mark.timeout(600)

LONG = os.environ.get("CORRAL_LONG") == "1"
N_CLIENTS = 300 if LONG else 60
SPREAD_S = 4.0 if LONG else 1.0
N_SLOTS = 4
ITL_TARGET_MS = 250.0
SERVER = ServerConfig(port=0, endpoint_metrics=True)
SETTINGS = EngineConfig(n_slots=N_SLOTS, itl_target_ms=ITL_TARGET_MS, audit=True)

Json = dict[str, Any]
STEADY: Json = {"prompt": "a steady stream", "n_predict": 800, "temperature": 0, "ignore_eos": True, "stream": True}


def open_runtime(kind: str, tiny_model: Path) -> Runtime:
    """The real library on split KV in exact mode, or the fake, where any fault of a cache is a wrong token."""
    unified = kind == "sim"
    shape = {"n_slots": N_SLOTS, "n_rows": n_rows_for(N_SLOTS, unified), "kv_unified": unified}
    if kind == "sim":
        return Runtime.simulated(ContextConfig(n_ctx=3072, n_batch=256, n_ubatch=256, **shape), SETTINGS)
    exact = {"type_k": "f32", "type_v": "f32", "flash_attn": False, "n_threads": 1, "n_threads_batch": 1}
    context = ContextConfig(n_ctx=1024 * N_SLOTS, n_batch=256, n_ubatch=128, **shape, **exact)  # type: ignore[arg-type]
    return Runtime.open(ModelConfig(tiny_model), context, SETTINGS)


@pytest.fixture(params=["sim", "libllama"])
def http(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[httpx.Client]:
    with contextlib.closing(open_runtime(request.param, tiny_model)) as runtime, client(runtime, SERVER) as http:
        yield http


def request_of(i: int, draw: random.Random) -> Json:
    """Long and short prompts, some alike; streamed or not; alone or with siblings; none would end soon."""
    return {
        "prompt": f"{i % 9} " + "word " * draw.choice([1, 10, 60, 120]),
        "n_predict": draw.choice([0, 8, 350, 350, 350]),
        "ignore_eos": True,
        "temperature": draw.choice([0, 0.8]),
        "n": draw.choice([1, 1, 1, 2]),
        "stream": draw.random() < 0.5,
        "cache_prompt": draw.random() < 0.8,
    }


async def vanish(url: httpx.URL, body: Json, after_s: float, patience_s: float, rude: bool) -> None:
    """Connect after some time, ask, read whatever comes, and close the socket when patience ends."""
    await asyncio.sleep(after_s)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    raw = json.dumps(body).encode()
    writer.write(f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(patience_s):
            while await reader.read(4096):
                pass
    if rude:
        writer.transport.abort()
    else:
        writer.close()


async def crowd(url: httpx.URL, cache_prompt: bool | None = None) -> None:
    draw = random.Random(8)
    clients = []
    for i in range(N_CLIENTS):
        body = request_of(i, draw) | ({} if cache_prompt is None else {"cache_prompt": cache_prompt})
        patience_s = draw.choice([0.0, draw.uniform(0.0, 0.1), draw.uniform(0.0, 1.0)])
        clients.append(vanish(url, body, draw.uniform(0.0, SPREAD_S), patience_s, draw.random() < 0.5))
    await asyncio.gather(*clients)


async def follow(url: httpx.URL, begun: asyncio.Event) -> tuple[str, list[float]]:
    """The text of the steady stream and when each piece came, in seconds."""
    text, stamps = "", []
    async with (
        httpx.AsyncClient(base_url=url, timeout=500) as http,
        http.stream("POST", "/completion", json=STEADY) as reply,
    ):
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                text += event["content"]
                stamps.append(time.perf_counter())
                begun.set()
        assert event["stop"]
        assert event["tokens_predicted"] == STEADY["n_predict"]
    return text, stamps


def series(http: httpx.Client) -> dict[str, float]:
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {s.labels.get("outcome", s.name): s.value for family in families for s in family.samples}


def assert_nothing_is_left(http: httpx.Client) -> None:
    until(lambda: is_idle(http), "all slots are idle")
    assert {slot["state"] for slot in http.get("/slots").json()} == {"idle"}
    left = series(http)
    for gauge in ("kv_cache_usage_ratio", "num_requests_running", "num_requests_waiting"):
        assert left[f"corral:{gauge}"] == 0, gauge


def test_clients_vanish_and_the_stream_beside_them_goes_on(http: httpx.Client) -> None:
    """llama.cpp#13262, llama.cpp#24496, ikawrakow/ik_llama.cpp#1929."""

    async def main() -> tuple[str, list[float]]:
        begun = asyncio.Event()
        stream = asyncio.create_task(follow(http.base_url, begun))
        await begun.wait()
        await crowd(http.base_url)
        return await stream

    undisturbed, _ = asyncio.run(follow(http.base_url, asyncio.Event()))
    text, stamps = asyncio.run(main())
    assert text == undisturbed
    assert_nothing_is_left(http)
    left = series(http)
    assert left["cancelled"] > N_CLIENTS / 4
    assert left["failed"] == left["refused"] == 0
    if LONG:
        assert max(b - a for a, b in itertools.pairwise(stamps)) < 2 * ITL_TARGET_MS / 1e3
    after = http.post("/completion", json={"prompt": "who is next", "n_predict": 4, "ignore_eos": True}).json()
    assert after["tokens_predicted"] == 4


def test_42_the_pool_is_as_empty_as_before(http: httpx.Client) -> None:
    """sgl-project/sglang#28374: nothing that asked not to be kept is kept, wherever it was cut off."""
    assert series(http)["corral:kv_cache_filled_ratio"] == 0
    asyncio.run(crowd(http.base_url, cache_prompt=False))
    assert_nothing_is_left(http)
    until(lambda: series(http)["corral:kv_cache_filled_ratio"] == 0, "no cell is in use")
    assert series(http)["corral:snapshots"] == 0
    assert series(http)["cancelled"] > N_CLIENTS / 4
