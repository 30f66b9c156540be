"""What the client sends and what it notes of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from corral.bench.load import RequestFailed, Stream, connect


def ask(server: Any, api: str = "native", n_predict: int = 8, api_key: str = "") -> Stream:
    async def run() -> Stream:
        async with server.serve() as url, connect(url, api, api_key) as client:
            return await client.stream("Once", n_predict)

    return asyncio.run(run())


def test_times_of_a_stream_are_measured_from_its_request():
    stream = Stream(sent_s=10.0, stamps_s=(10.5, 10.6, 10.8), ended_s=10.9, n_tokens=5, text="abc")
    assert stream.ttft_ms == pytest.approx(500)
    assert stream.gaps_ms == pytest.approx([100, 200])
    assert stream.total_ms == pytest.approx(900)
    assert stream.tpot_ms == pytest.approx(100)


def test_a_stream_without_text_has_its_whole_time_before_the_first():
    stream = Stream(sent_s=1.0, stamps_s=(), ended_s=3.0, n_tokens=0, text="")
    assert stream.ttft_ms == pytest.approx(2000)
    assert stream.gaps_ms == []
    assert stream.tpot_ms is None


def test_native_stream_notes_each_piece_and_the_servers_counts(imitation):
    imitation.wait_s = 0.003
    stream = ask(imitation)
    assert stream.text == "word word word "
    assert len(stream.stamps_s) == stream.n_tokens == 3
    assert stream.ttft_ms >= 2.9
    assert stream.ttft_ms + sum(stream.gaps_ms) >= 8.7, (
        "gaps alone may be short: what came while the reader had to wait"
    )
    assert all(gap_ms > 0 for gap_ms in stream.gaps_ms)
    assert (stream.n_prompt, stream.n_cached) == (7, 5)


def test_oai_stream_takes_the_usage_over_the_number_of_pieces(imitation):
    stream = ask(imitation, "oai")
    assert stream.text == "word word word "
    assert stream.n_tokens == 4
    assert (stream.n_prompt, stream.n_cached) == (7, 5)


def test_requests_ask_for_all_tokens_greedily(imitation):
    ask(imitation, n_predict=2)
    (body,) = imitation.bodies
    wanted = {"prompt": "Once", "n_predict": 2, "stream": True, "ignore_eos": True, "temperature": 0}
    assert body.items() >= wanted.items()


def test_api_key_is_sent_as_bearer(imitation):
    ask(imitation, api_key="secret")
    assert imitation.headers[0]["Authorization"] == "Bearer secret"


def test_refusal_is_an_error_that_names_the_status(imitation):
    imitation.status = 503
    with pytest.raises(RequestFailed, match=r"503.*queue is full"):
        ask(imitation)


def test_error_event_inside_a_stream_is_an_error(imitation):
    imitation.break_after = 1
    with pytest.raises(RequestFailed, match="it broke"):
        ask(imitation)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1", "cannot connect: Connection refused; is a server there?"),
        ("127.0.0.1:1", "no URL such as http://127.0.0.1:8080"),
    ],
)
def test_nobody_listening_is_an_error_that_says_what_to_look_at(url, words):
    async def run() -> None:
        async with connect(url) as client:
            await client.stream("Once", 1)

    with pytest.raises(RequestFailed) as failure:
        asyncio.run(run())
    assert str(failure.value) == f"{url}: {words}"


def test_choices_of_one_request_are_told_apart(imitation):
    async def run() -> list[Stream]:
        async with imitation.serve() as url, connect(url) as client:
            return await client.fork("Once", 3, 4)

    streams = asyncio.run(run())
    assert [stream.n_tokens for stream in streams] == [3, 3, 3, 3]
    assert imitation.bodies[0]["n_cmpl"] == 4


def test_settle_tells_slots_that_stay_busy(imitation):
    waits = []

    async def no_wait(seconds: float) -> None:
        waits.append(seconds)
        imitation.n_stuck = 1 if len(waits) < 3 else 0

    async def run() -> tuple[int | None, int | None]:
        async with imitation.serve() as url, connect(url) as client:
            imitation.n_stuck = 2
            freed = await client.settle(sleep=no_wait)
            imitation.n_stuck = 2
            return freed, await client.settle(limit_s=0.0, sleep=no_wait)

    assert asyncio.run(run()) == (0, 2)
