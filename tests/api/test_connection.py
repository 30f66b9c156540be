"""Connections on which no request comes are closed in time, and what is no HTTP is answered as other errors are."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from tests.api.conftest import SimServer
from tests.api.live import TimeTold, send_raw
from uvicorn.server import ServerState

from corral.api import serve
from corral.api.connection import Connection, HttpConfig
from corral.api.descriptors import Descriptors
from corral.config import ApiKey, ServerConfig

HALF = b"GET /health HTTP/1.1\r\nHos"
REST = b"t: x\r\n\r\n"


class _Wire(asyncio.Transport):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.sent = b""
        self.is_closed = False
        self._number = number

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def fileno(self) -> int:
        return self._number

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    getpeername = getsockname


class Peer:
    """A client's end of one ``Connection``. /later is answered when ``answer`` is called, /read behind the body."""

    def __init__(self, descriptors: Descriptors | None = None, number: int = 9) -> None:
        self._go = asyncio.Event()
        config = HttpConfig(
            self._app,
            head_s=20,
            descriptors=descriptors or Descriptors(None),
            timeout_keep_alive=60,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
        )
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TimeTold)
        self._loop = loop
        self.connection = Connection(config, ServerState(), {}, loop)
        self.wire = _Wire(number)
        self.connection.connection_made(self.wire)

    async def send(self, data: bytes) -> None:
        self.connection.data_received(data)
        await self.settle()

    async def wait(self, s: float) -> bool:
        """Let time pass; whether the connection is closed then."""
        self._loop.now_s += s
        await self.settle()
        return self.wire.is_closed

    async def answer(self) -> None:
        self._go.set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/read":
            while (await receive()).get("more_body"):
                pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        if scope["path"] == "/later":
            await self._go.wait()
        await send({"type": "http.response.body", "body": b"ok"})


def _run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=TimeTold) as runner:
        runner.run(main())


def test_who_sends_nothing_is_closed_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        peer = Peer()
        assert not await peer.wait(19)
        assert await peer.wait(1.1)
        assert peer.wire.sent == b""

    with caplog.at_level(logging.DEBUG, "corral.http"):
        _run(main)
    assert "no complete request in 20 s" in caplog.text


@pytest.mark.parametrize("is_later", [False, True])
def test_half_a_head_is_told_so(is_later: bool) -> None:
    """However often another byte of it comes."""

    async def main() -> None:
        peer = Peer()
        if is_later:
            await peer.send(HALF + REST)
            assert peer.wire.sent.endswith(b"ok")
            assert not await peer.wait(50)
        peer.wire.sent = b""
        await peer.send(HALF)
        for _ in range(3):
            assert not await peer.wait(6)
            await peer.send(b"x")
        assert await peer.wait(2.1)
        head, _, body = peer.wire.sent.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n") and b"connection: close" in head
        error = json.loads(body)["error"]
        assert (error["code"], error["type"]) == (408, "invalid_request_error")
        assert "20 s" in error["message"]

    _run(main)


def test_a_head_in_time_is_no_hurry_for_the_reply() -> None:
    async def main() -> None:
        peer = Peer()
        await peer.wait(19)
        await peer.send(b"GET /later HTTP/1.1\r\nHos")
        await peer.send(REST)
        assert not await peer.wait(1000)
        await peer.answer()
        assert peer.wire.sent.endswith(b"ok")
        assert not await peer.wait(59)
        assert await peer.wait(2), "idle"

    _run(main)


@pytest.mark.parametrize("drip", [b"\r\n", b"x"])
def test_what_is_no_head_does_not_keep_it_open(drip: bytes) -> None:
    """Empty lines, or a body that nobody asks for any more."""

    async def main() -> None:
        peer = Peer()
        await peer.send(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" if drip == b"x" else HALF + REST)
        assert peer.wire.sent.endswith(b"ok")
        for _ in range(7):
            await peer.wait(9)
            if not peer.wire.is_closed:
                await peer.send(drip)
        assert await peer.wait(9)

    _run(main)


def test_a_body_may_be_slow_but_not_stop() -> None:
    async def main() -> None:
        peer = Peer()
        await peer.send(b"POST /read HTTP/1.1\r\nContent-Length: 100\r\n\r\n")
        for _ in range(9):
            assert not await peer.wait(59)
            await peer.send(b"x")
        assert await peer.wait(61)
        assert peer.wire.sent.startswith(b"HTTP/1.1 408 ") and b"body" in peer.wire.sent

    _run(main)


def test_a_body_in_time_is_no_hurry_for_what_follows() -> None:
    async def main() -> None:
        peer = Peer()
        await peer.send(b"POST /read HTTP/1.1\r\nContent-Length: 2\r\n\r\na")
        await peer.wait(50)
        await peer.send(b"b")
        assert peer.wire.sent.endswith(b"ok")
        assert not await peer.wait(59)

    _run(main)


def test_a_body_that_comes_behind_its_reply_leaves_the_connection_as_it_is() -> None:
    async def main() -> None:
        peer = Peer()
        await peer.send(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab")
        await peer.send(b"cd")
        assert not await peer.wait(59)
        await peer.send(HALF + REST)
        assert peer.wire.sent.count(b"200 OK") == 2

    _run(main)


def test_nothing_is_said_into_a_reply_that_is_under_way() -> None:
    async def main() -> None:
        peer = Peer()
        await peer.send(b"GET /later HTTP/1.1\r\n\r\n")
        sent = peer.wire.sent
        await peer.send(b"\x00garbage\r\n\r\n")
        assert peer.wire.is_closed and peer.wire.sent == sent

    _run(main)


def test_the_last_descriptors_are_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watch = Descriptors(128)
        Peer(watch, 100)
        assert not caplog.records
        peers = [Peer(watch, number) for number in (125, 126, 127)]
        assert len(caplog.records) == 1
        await peers[0].wait(61)
        Peer(watch, 127)
        assert len(caplog.records) == 2

    with caplog.at_level(logging.WARNING, "corral.http"):
        _run(main)
    assert "all of the 128 file descriptors" in caplog.messages[0] and "ulimit -n" in caplog.messages[0]


def _raw(http: httpx.Client, data: bytes) -> tuple[bytes, Any]:
    """Status line, and the error of the reply; the server closes."""
    with socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30) as sock:
        sock.sendall(data)
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    return head.split(b"\r\n")[0], json.loads(body)["error"]


@pytest.mark.parametrize(
    "data", [b"\x00\x01\r\n\r\n", b"GET /a b HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\na b: c\r\n\r\n"]
)
def test_what_is_no_http_has_the_shape_of_other_errors(http: httpx.Client, data: bytes) -> None:
    status, error = _raw(http, data)
    assert status == b"HTTP/1.1 400 Bad Request"
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith("Invalid HTTP request received: ")


def test_tls_on_a_port_without_it_is_told(http: httpx.Client) -> None:
    hello = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="x")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    assert "without TLS (http://)" in _raw(http, hello.read())[1]["message"]


def test_clients_that_never_ask_are_let_go(serve_sim: SimServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no key can connect; the server closes those and serves whom it knows."""
    monkeypatch.setattr(serve, "HEAD_S", 0.05)
    http = serve_sim(ServerConfig(port=0, api_keys=(ApiKey("secret"),)))
    address = (http.base_url.host, http.base_url.port or 80)
    socks = [socket.create_connection(address, timeout=30) for _ in range(6)]
    for sock in socks[::2]:
        sock.sendall(b"G")
    got = [b"".join(iter(lambda sock=sock: sock.recv(4096), b"")) for sock in socks]
    assert [reply.startswith(b"HTTP/1.1 408") for reply in got] == [True, False] * 3
    assert got[1] == b""
    for sock in socks:
        sock.close()
    headers = {"Authorization": "Bearer secret"}
    assert http.post("/completion", json={"prompt": "x", "n_predict": 200}, headers=headers).status_code == 200


def test_the_operator_hears_of_the_last_descriptors(
    serve_sim: SimServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve, "limit", lambda: 5)
    http = serve_sim()
    for _ in range(3):
        send_raw(http, {"prompt": "x", "n_predict": 1}).close()
    assert http.get("/health").status_code == 200
    assert len([text for text in caplog.messages if "ulimit -n" in text]) == 1
