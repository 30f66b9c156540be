"""A real server on a loopback port, in a thread of its own, for tests that need sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import httpx
import uvloop

from corral.api.app import App, create_app
from corral.api.schemas.defaults import Defaults
from corral.api.serve import serve
from corral.config import ServerConfig
from corral.runtime import Runtime

PATIENCE_S = 30
"""What must come is waited for so long: much longer than it takes, since the machine may be busy."""
_PAUSE = threading.Event()


@contextlib.contextmanager
def listening(app: App, server: ServerConfig) -> Iterator[str]:
    """The base URL of a running server."""
    address: Future[str] = Future()
    stop: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        event = asyncio.Event()
        stop.set_result((asyncio.get_running_loop(), event))
        await serve(app, server, event, lambda addresses: address.set_result(addresses[0]))

    thread = threading.Thread(target=lambda: uvloop.run(main()), daemon=True)
    thread.start()
    yield address.result(PATIENCE_S)
    loop, event = stop.result()
    loop.call_soon_threadsafe(event.set)
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the server did not stop"


@contextlib.contextmanager
def client(runtime: Runtime | None, server: ServerConfig, defaults: Defaults | None = None) -> Iterator[httpx.Client]:
    """A client of a server over ``runtime``."""
    app = create_app(runtime, server, defaults or Defaults())
    with listening(app, server) as url, httpx.Client(base_url=url, timeout=2 * PATIENCE_S, verify=False) as http:
        yield http


def events(response: httpx.Response) -> list[Any]:
    """The data of a stream's events, parsed; ``[DONE]`` as text. Fails on anything that is not SSE."""
    return parse_events(response.text)


def parse_events(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    blocks: Sequence[str] = text.split("\n\n")[:-1]
    data = []
    for block in blocks:
        if block.startswith(":"):
            continue
        assert block.startswith("data: "), block
        body = block.removeprefix("data: ")
        data.append(body if body == "[DONE]" else json.loads(body))
    return data


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"not in {PATIENCE_S} s: {what}"
        _PAUSE.wait(0.001)  # leaves the interpreter to the threads that are waited for


class TimeTold(asyncio.SelectorEventLoop):
    """Its time moves only when told."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


def is_idle(http: httpx.Client) -> bool:
    return not any(slot["is_processing"] for slot in http.get("/slots").json())


def send_raw(http: httpx.Client, body: dict[str, Any], path: str = "/completion") -> socket.socket:
    """A request on a socket of its own, whose reply nobody reads."""
    raw = json.dumps(body).encode()
    sock = socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    sock.sendall(head.encode() + raw)
    return sock
