"""Faults that users of LLM servers reported about slots, caches and scheduling, over HTTP and the simulated model.

Its next token is a hash of what the cache holds: equal texts mean equal caches.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest
from tests.api.conftest import SimServer
from tests.api.live import events, is_idle, send_raw, until
from tests.props.engine_machine import Player, Setup, Submit

from corral.bench.simulate import SimConfig, simulate
from corral.config import ServerConfig
from corral.sim.clock import VirtualClock

Json = dict[str, Any]
GREEDY: Json = {"temperature": 0, "ignore_eos": True, "n_predict": 16}


def ask(http: httpx.Client, body: Json) -> Json:
    response = http.post("/completion", json={**GREEDY, **body}, timeout=100)
    assert response.status_code == 200, response.text
    reply: Json = response.json()
    return reply


def ask_at_once(http: httpx.Client, bodies: list[Json]) -> list[Json]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: ask(http, body), bodies))


def test_21_equal_requests_on_all_slots_get_one_text(serve_sim: SimServer) -> None:
    """llama.cpp#7052, llama.cpp#19981, llama.cpp#4902: and the same as cold and alone, and as warm and alone."""
    http = serve_sim(n_slots=8, n_ctx=4096)
    body: Json = {"prompt": "tell me the same story " * 4, "n_predict": 40}
    alone = ask(http, {**body, "cache_prompt": False})["content"]
    texts = [reply["content"] for reply in ask_at_once(http, [body] * 8)]
    assert {*texts, ask(http, body)["content"]} == {alone}


@pytest.mark.parametrize("n_ctx", [8192, 900], ids=["roomy", "tight"])
def test_34_one_prompt_more_than_slots_finds_its_past_in_every_round(serve_sim: SimServer, n_ctx: int) -> None:
    """llama.cpp#22756: whoever comes next is the one that was evicted last."""
    http = serve_sim(n_slots=2, n_ctx=n_ctx, clock=VirtualClock())
    turns = [f"{i}: " + "agent " * n for i, n in enumerate((20, 20, 100))]
    for n_round in range(3):
        for i, prompt in enumerate(turns):
            reply = ask(http, {"prompt": prompt, "n_predict": 4})
            n_cached = reply["timings"]["cache_n"]
            assert n_round == 0 or n_cached > 0.9 * reply["tokens_evaluated"] - 10, f"round {n_round}, agent {i}"
            turns[i] = prompt + reply["content"] + " next"


def test_36_branches_that_start_together_compute_what_they_share_once(serve_sim: SimServer) -> None:
    """llama.cpp#26204: four branches of one long trunk on a cold server."""
    http = serve_sim(n_slots=4, n_ctx=8192)
    trunk = "trunk " * 200
    replies = ask_at_once(http, [{"prompt": f"{trunk}{i} branch"} for i in range(4)])
    n_computed = sorted(reply["timings"]["prompt_n"] for reply in replies)
    assert n_computed[-1] > 1200
    assert sum(n_computed[:-1]) < 3 * 64  # of the trunk at most what fills a tile of the kernel
    assert len({reply["content"] for reply in replies}) == 4


def test_38_four_requests_that_each_need_the_whole_cache(serve_sim: SimServer) -> None:
    """llama.cpp#10072, llama.cpp#29090, llama.cpp#23720, llama.cpp#4185: -c 128, each with 128 tokens to write."""
    http = serve_sim(ServerConfig(port=0, endpoint_metrics=True), n_slots=4, n_ctx=128)
    bodies: list[Json] = [{"prompt": f"{i} " + "abc " * 3, "n_predict": 128} for i in range(4)]
    alone = [ask(http, {**body, "cache_prompt": False}) for body in bodies]
    together = ask_at_once(http, bodies)
    for one, other in zip(alone, together, strict=True):
        assert other["content"] == one["content"]
        assert (other["stop_type"], other["truncated"]) == ("limit", True)
        assert other["tokens_evaluated"] + other["tokens_predicted"] == 128
    until(lambda: is_idle(http), "all slots are idle")


def test_32_nobody_starves_while_others_ask_back_to_back() -> None:
    """llama.cpp#15008: four clients on two slots; between two turns of one every other has at most two."""
    player = Player(Setup(n_slots=2, n_ctx=400))
    client_of, order = {}, []
    for who in range(4):
        client_of[player.submit(Submit(stem=who % 3, n_prompt=9 + who, n_predict=6))[0]] = who
    while len(order) < 60:
        for task in [task for task in client_of if task in player.finished]:
            who = client_of.pop(task)
            order.append(who)
            client_of[player.submit(Submit(stem=who % 3, n_prompt=9 + who, n_predict=6))[0]] = who
        player.step()
    for who in range(4):
        turns = [at for at, other in enumerate(order) if other == who]
        assert max(b - a for a, b in pairwise([-1, *turns])) <= 2 * 4, f"client {who} waited: {order}"
    player.drain()


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_33_a_stream_gets_a_token_at_each_step_while_long_prompts_arrive(unified: bool) -> None:
    """llama.cpp#10054, llama.cpp#4875, sgl-project/sglang#32549."""
    n_slots = 4
    player = Player(Setup(unified, n_slots=n_slots, n_ctx=4000 if unified else 1000, n_batch=512, n_ubatch=512))
    (stream,) = player.submit(Submit(n_prompt=10, n_predict=30))
    player.until(lambda: stream in player.open and bool(player.open[stream].tokens))
    for stem in (1, 2, 1):
        player.submit(Submit(stem=stem, n_prompt=900, tail=(100 + stem,), n_predict=1))
    while stream in player.open:
        n_before = len(player.open[stream].tokens)
        player.step()
        assert stream in player.finished or len(player.open[stream].tokens) == n_before + 1
    player.drain()


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_33_gaps_of_running_streams_are_bounded_in_virtual_time(unified: bool) -> None:
    """llama.cpp#10054: two streams while prompts of 1,500 tokens arrive, on a machine as slow as two CPU cores."""
    target_ms = 250.0
    figures = simulate(SimConfig("mixed", users=4, n_slots=6, kv_unified=unified, itl_target_ms=target_ms))
    assert figures["itl_max_ms"] <= 2 * target_ms


def test_33_over_http_a_stream_is_whole_beside_long_prompts(serve_sim: SimServer) -> None:
    http = serve_sim(n_slots=3, n_ctx=8192)
    steady: Json = {"prompt": "steady", "n_predict": 200}
    alone = ask(http, {**steady, "cache_prompt": False})["content"]
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(lambda: http.post("/completion", json={**GREEDY, **steady, "stream": True}))
        until(lambda: not is_idle(http), "the stream runs")
        ask_at_once(http, [{"prompt": f"{i} " + "long " * 300, "n_predict": 1} for i in range(2)])
        assert "".join(event["content"] for event in events(stream.result())) == alone


def test_n5_an_urgent_request_does_not_wait_for_a_long_one(serve_sim: SimServer) -> None:
    """The only slot is busy: its task makes way, and then it goes on in it."""
    http = serve_sim(ServerConfig(port=0, endpoint_metrics=True), n_slots=1, n_ctx=8192)
    with send_raw(http, {**GREEDY, "prompt": "long", "n_predict": 8000}):
        until(lambda: http.get("/slots").json()[0]["is_processing"], "the slot is busy")
        (long,) = http.get("/slots").json()
        assert long["priority"] == 0
        assert ask(http, {"prompt": "urgent", "priority": 1})["tokens_predicted"] == 16
        until(lambda: http.get("/slots").json()[0]["id_task"] == long["id_task"], "the long one is back")
    text = http.get("/metrics").text
    assert "\ncorral:preemptions_total 1\n" in text
    assert "\ncorral:num_requests_held 0\n" in text
