"""Context shift and chunk reuse as a client sees them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.conftest import SimServer
from tests.api.live import events

Json = dict[str, Any]
LONG: Json = {"prompt": "a story " * 8, "temperature": 0, "ignore_eos": True, "n_predict": 300}


def test_s17_a_reply_past_the_context_says_that_it_is_truncated(serve_sim: SimServer) -> None:
    http = serve_sim(n_slots=2, n_ctx=128, context_shift=True)
    reply = http.post("/completion", json={**LONG, "n_keep": 4, "n_discard": 10}).json()
    assert (reply["stop_type"], reply["truncated"], reply["tokens_predicted"]) == ("limit", True, 300)
    assert reply["tokens_evaluated"] == 65  # with BOS
    assert reply["tokens_cached"] < 128
    settings = reply["generation_settings"]
    assert (settings["n_keep"], settings["n_discard"]) == (4, 10)
    params = http.get("/slots").json()[reply["id_slot"]]["params"]
    assert (params["n_keep"], params["n_discard"]) == (4, 10)


def test_s17_the_log_tells_a_shifted_context_from_a_full_one(
    serve_sim: SimServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "corral.request")
    http = serve_sim(n_slots=2, n_ctx=128, context_shift=True)
    http.post("/completion", json={**LONG, "n_keep": 4, "n_discard": 100})
    assert caplog.messages[-1].endswith(", limit, context shifted 3 times")
    http.post("/completion", json={**LONG, "n_predict": 3})
    assert caplog.messages[-1].endswith(", limit")
    serve_sim(n_slots=2, n_ctx=128).post("/completion", json=LONG)
    assert caplog.messages[-1].endswith(", limit, context full")


def test_s17_usage_counts_all_that_was_written(serve_sim: SimServer) -> None:
    http = serve_sim(n_slots=2, n_ctx=128, context_shift=True)
    body = {**LONG, "max_tokens": 300, "stream": True, "stream_options": {"include_usage": True}}
    chunks = [event for event in events(http.post("/v1/completions", json=body)) if isinstance(event, dict)]
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 300


def test_s17_without_the_flag_the_context_is_the_end(serve_sim: SimServer) -> None:
    reply = serve_sim(n_slots=2, n_ctx=128).post("/completion", json=LONG).json()
    assert (reply["truncated"], reply["tokens_evaluated"] + reply["tokens_predicted"]) == (True, 128)


def test_s15_n_cache_reuse_moves_what_follows_a_gap(serve_sim: SimServer) -> None:
    http = serve_sim(n_slots=1, n_ctx=512)
    parts = ["the rules of the house; ", "one fine day in may, ", "rain came down on us all that week"]
    http.post("/completion", json={"prompt": "".join(parts), "n_predict": 1})
    body = {"prompt": parts[0] + parts[2] + "!?", "n_predict": 1}
    moved = http.post("/completion", json={**body, "n_cache_reuse": 16}).json()
    assert moved["timings"]["cache_n"] >= len(parts[0] + parts[2]) - 8
    exact = http.post("/completion", json={**body, "n_cache_reuse": 0}).json()
    assert exact["timings"]["cache_n"] < len(parts[0]) + 3


@pytest.mark.parametrize(("field", "value"), [("n_keep", -2), ("n_discard", -1), ("n_cache_reuse", -1)])
def test_numbers_out_of_range_are_refused(serve_sim: SimServer, field: str, value: int) -> None:
    response = serve_sim().post("/completion", json={**LONG, field: value})
    assert response.status_code == 400
    assert field in response.json()["error"]["message"]
