"""Streams with an X-Conversation-Id go on when their client leaves, and are read again from any byte."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.types import Message, Send
from tests.api.canned import SERVER, CannedEngine, canned_runtime, says
from tests.api.live import TimeTold, client, events, until

from corral.api.sessions import Session, SessionKey, Sessions
from corral.config import ApiKey
from corral.errors import ExceedContext, InvalidRequest, Unavailable
from corral.events import Event, Failed
from corral.ids import TenantId
from corral.tasks import Task

ASK: Any = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
HEADER = {"X-Conversation-Id": "c1"}


@pytest.fixture
def engine() -> CannedEngine:
    return CannedEngine(says("Hello"))


@pytest.fixture
def http(engine: CannedEngine) -> Iterator[httpx.Client]:
    keys = (ApiKey("k"), ApiKey("other"))
    with client(canned_runtime(engine), replace(SERVER, api_keys=keys)) as http:
        http.headers["Authorization"] = "Bearer k"
        yield http


def unfinished(task: Task) -> list[Event]:
    return says("Hello")(task)[:3]


def look_up(http: httpx.Client, name: str = "c1") -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = http.post("/v1/streams/lookup", json={"conversation_ids": [name]}).json()
    return told


PATHS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", ASK),
    ("/completion", {"prompt": "x", "stream": True}),
    ("/v1/completions", {"prompt": "x", "stream": True}),
    ("/v1/responses", {"input": "x", "stream": True}),
    ("/v1/messages", ASK),
    ("/api/chat", ASK),
]


@pytest.mark.parametrize(("path", "body"), PATHS, ids=[path for path, _ in PATHS])
def test_a_stream_is_read_again_from_any_byte(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    first = http.post(path, json=body, headers=HEADER)
    raw = first.content
    assert b"lo" in raw or b'"o"' in raw
    for offset in (0, 1, len(raw) // 2, len(raw)):
        again = http.get("/v1/stream", params={"conv_id": "c1", "from": offset})
        assert again.status_code == 200 and again.content == raw[offset:]
        assert again.headers["content-type"] == first.headers["content-type"]
    (told,) = look_up(http)
    assert (told["is_done"], told["total_bytes"]) == (True, len(raw))
    assert told["completed_at"] >= told["started_at"] > 0


def test_a_client_that_leaves_does_not_stop_it(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = unfinished
    with http.stream("POST", "/v1/chat/completions", json=ASK, headers=HEADER) as left:
        next(left.iter_lines())
    assert [told["is_done"] for told in look_up(http)] == [False]
    assert engine.cancelled == []
    with http.stream("GET", "/v1/stream", params={"conv_id": "c1"}) as again:
        assert next(again.iter_lines()).startswith("data: ")
    assert http.delete("/v1/stream", params={"conv_id": "c1"}).status_code == 204
    until(lambda: len(engine.cancelled) == 1, "the task is cancelled")
    assert look_up(http) == []
    assert http.get("/v1/stream", params={"conv_id": "c1"}).status_code == 404
    assert http.delete("/v1/stream", params={"conv_id": "c1"}).status_code == 204


def test_without_the_header_it_does(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = unfinished
    with http.stream("POST", "/v1/chat/completions", json=ASK) as left:
        next(left.iter_lines())
    until(lambda: len(engine.cancelled) == 1, "the task is cancelled")


def test_a_new_stream_of_a_conversation_stops_the_old_one(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = unfinished
    with http.stream("POST", "/v1/chat/completions", json=ASK, headers=HEADER) as old:
        lines = old.iter_lines()
        next(lines)
        engine.script = says("Bye")
        fresh = http.post("/v1/chat/completions", json=ASK, headers=HEADER)
        assert events(fresh)[-1] == "[DONE]"
        assert "[DONE]" not in "".join(lines), "it ends, but not as if it were whole"
    assert len(engine.cancelled) == 1
    assert http.get("/v1/stream", params={"conv_id": "c1"}).content == fresh.content


def test_what_fails_before_streaming_leaves_nothing(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = lambda task: [Failed(task.id, ExceedContext(9, 5))]
    refused = http.post("/v1/chat/completions", json=ASK, headers=HEADER)
    assert refused.status_code == 400 and refused.json()["error"]["n_ctx"] == 5
    assert look_up(http) == []


def test_other_keys_see_none(http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json=ASK, headers=HEADER)
    http.headers["Authorization"] = "Bearer other"
    assert look_up(http) == []
    assert http.get("/v1/stream", params={"conv_id": "c1"}).status_code == 404
    http.delete("/v1/stream", params={"conv_id": "c1"})
    http.headers["Authorization"] = "Bearer k"
    assert len(look_up(http)) == 1


def test_names_with_a_model_are_found(http: httpx.Client) -> None:
    http.post("/v1/chat/completions", json=ASK, headers={"X-Conversation-Id": "c1::m"})
    assert [told["conversation_id"] for told in look_up(http)] == ["c1::m"]
    assert look_up(http, "c") == []


@pytest.mark.parametrize("offset", ["-1", "x", "99999999", "9" * 30, "1.5", "²"])
def test_bad_offsets(http: httpx.Client, offset: str) -> None:
    http.post("/v1/chat/completions", json=ASK, headers=HEADER)
    refused = http.get("/v1/stream", params={"conv_id": "c1", "from": offset})
    assert refused.status_code == 400 and refused.json()["error"]["message"].startswith("Invalid 'from' offset: ")
    assert http.get("/v1/stream").json()["error"]["message"] == "Missing conversation id in path"


def _key(name: str) -> SessionKey:
    return SessionKey(TenantId("t"), name)


def _sends(*pieces: bytes, end: bool = True) -> Callable[[Send], Awaitable[None]]:
    async def run(send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not end:
            await asyncio.get_running_loop().create_future()

    return run


async def _read(session: Session, offset: int = 0) -> bytes:
    got: list[bytes] = []

    async def send(message: Message) -> None:
        got.append(message.get("body", b""))

    await session.follow(send, offset)
    return b"".join(got)


def test_only_the_last_bytes_are_kept() -> None:
    async def main() -> None:
        session = Sessions(n_kept_bytes=4).open(_key("a"), _sends(b"abc", b"def"))
        assert await _read(session, 2) == b"cdef"
        with pytest.raises(InvalidRequest, match="Stream offset lost, please restart"):
            await _read(session, 1)

    asyncio.run(main())


def test_ended_sessions_make_room_and_running_ones_do_not() -> None:
    async def main() -> None:
        sessions = Sessions(n_max=2)
        await _read(sessions.open(_key("a"), _sends(b"a")))
        running = [sessions.open(_key(name), _sends(b"x", end=False)) for name in "bc"]
        assert sessions.get(_key("a")) is None
        with pytest.raises(Unavailable):
            sessions.open(_key("d"), _sends())
        other = SessionKey(TenantId("other"), "e")
        assert await _read(sessions.open(other, _sends(b"e"))) == b"e", "another's streams are no matter"
        for session in running:
            session.cancel()
        assert await asyncio.gather(*map(_read, running), return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("ends", [True, False])
def test_what_was_replaced_is_not_kept_until_it_would_expire(ends: bool) -> None:
    async def main() -> None:
        sessions = Sessions()
        held = []
        for _ in range(3):
            session = sessions.open(_key("a"), _sends(b"a", end=ends))
            held.append(weakref.ref(session))
            if ends:
                await _read(session)
            else:
                await asyncio.sleep(0)
        del session
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        assert [one() is not None for one in held] == [False, False, True]

    asyncio.run(main())


def test_a_conversation_that_is_named_often_is_told_once(http: httpx.Client) -> None:
    for name in ("a", "a::m", "b::m"):
        http.post("/completion", json={"prompt": "x", "stream": True}, headers={"X-Conversation-Id": name})
    names = ["a"] * 5000 + ["", "b", "b"]
    told = http.post("/v1/streams/lookup", json={"conversation_ids": names}).json()
    assert [one["conversation_id"] for one in told] == ["a", "a::m", "b::m"]


def test_sessions_expire() -> None:
    async def main() -> None:
        loop, sessions = asyncio.get_running_loop(), Sessions(keep_s=60)
        assert isinstance(loop, TimeTold)
        await _read(sessions.open(_key("a"), _sends(b"a")))
        for s, is_kept in ((59, True), (2, False)):
            loop.now_s += s
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (sessions.get(_key("a")) is not None) is is_kept

    with asyncio.Runner(loop_factory=TimeTold) as runner:
        runner.run(main())
