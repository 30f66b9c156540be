"""Clients that leave at any moment harm nobody and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import random

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.api.conftest import SimServer
from tests.api.live import is_idle, until

from corral.config import ServerConfig

N_CLIENTS = 80


async def client(http: httpx.AsyncClient, i: int, patience_s: float | None) -> None:
    """A request for a text of its own; with ``patience_s`` it leaves after that time."""
    text = f"canary {i} " * 3
    body = {"prompt": f"{i % 7} words " * 20, "grammar": f"root ::= {json.dumps(text)}", "stream": i % 2 == 0}
    try:
        async with asyncio.timeout(patience_s):
            response = await http.post("/completion", json=body)
    except TimeoutError:
        return
    assert response.status_code == 200
    if body["stream"]:
        data = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n")[:-1]]
        assert "".join(event["content"] for event in data) == text
    else:
        assert response.json()["content"] == text


def test_random_aborts(serve_sim: SimServer) -> None:
    """sgl-project/sglang#28374: nothing of an aborted request keeps cells; nobody gets another's text."""
    http = serve_sim(ServerConfig(port=0, endpoint_metrics=True), n_slots=3, n_ctx=2048)
    draw = random.Random(5)
    patience = [draw.choice([None, draw.uniform(0.0, 0.3)]) for _ in range(N_CLIENTS)]

    async def main() -> None:
        limits = httpx.Limits(max_connections=N_CLIENTS)
        async with httpx.AsyncClient(base_url=http.base_url, timeout=30, limits=limits) as shared:
            await asyncio.gather(*(client(shared, i, patience_s) for i, patience_s in enumerate(patience)))

    asyncio.run(main())
    until(lambda: is_idle(http), "all slots are free")
    series = {
        sample.name: sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
    }
    assert series["corral:kv_cache_usage_ratio"] == 0
    assert series["llamacpp:requests_deferred"] == 0
