"""Listening: sockets, TLS, and the way a server stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api.connection import HttpConfig
from corral.api.descriptors import Descriptors, limit
from corral.api.gate import STOPPING
from corral.config import ServerConfig

KEEP_ALIVE_S = 60
"""How long an idle connection stays open: longer than the pools of usual clients and proxies keep theirs."""
HEAD_S = 20
"""How long a client may take for the head of a request, from connecting or from its first byte."""


class _Requests:
    """ASGI around the application: tells it in the scope that the server stops, and knows what was asked before."""

    def __init__(self, inner: ASGIApp, stop: asyncio.Event) -> None:
        self._inner = inner
        self._stop = stop
        self._n_open = 0
        self._one_ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[STOPPING] = is_late = self._stop.is_set()
        if is_late:
            await self._inner(scope, receive, send)
            return
        self._n_open += 1
        try:
            await self._inner(scope, receive, send)
        finally:
            self._n_open -= 1
            self._one_ended.set()

    async def ended(self) -> None:
        """Wait for those that came before the server was told to stop."""
        while self._n_open:
            self._one_ended.clear()
            await self._one_ended.wait()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the command line."""
        yield


async def serve(
    app: ASGIApp,
    server: ServerConfig,
    stop: asyncio.Event,
    on_listening: Callable[[Sequence[str]], None] | None = None,
) -> None:
    """Serve until ``stop`` is set: then take no new work, let open requests end, and return.

    Until these have ended it goes on listening, so that whoever asks is told. Cancelling drops open requests at once.
    ``on_listening`` gets the addresses, with the port that was picked for 0. Raises OSError if an address cannot be
    bound.
    """
    requests = _Requests(app, stop)
    uvicorn_server = _Server(_config(requests, server))
    sockets = bind(server)
    if on_listening is not None:
        on_listening([_address(sock, server) for sock in sockets])
    running = asyncio.create_task(uvicorn_server.serve(sockets=sockets))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await requests.ended()
        uvicorn_server.should_exit = True
        await asyncio.shield(running)
    except asyncio.CancelledError:
        uvicorn_server.should_exit = uvicorn_server.force_exit = True
        await running
        raise
    finally:
        stopping.cancel()
        for path in _unix_paths(server):
            path.unlink(missing_ok=True)


def bind(server: ServerConfig) -> list[socket.socket]:
    """A listening socket for each host of the comma list; one that ends in ``.sock`` is a unix socket."""
    with contextlib.ExitStack() as undo:
        sockets = []
        for host in filter(None, map(str.strip, server.host.split(","))):
            family, kind, address = _resolve(host, server.port)
            sock = undo.enter_context(socket.socket(family, kind))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(2048)
            sock.setblocking(False)
            sockets.append(sock)
        undo.pop_all()
        return sockets


def _resolve(host: str, port: int) -> tuple[int, int, str | tuple[Any, ...]]:
    if host.endswith(".sock"):
        Path(host).unlink(missing_ok=True)
        return socket.AF_UNIX, socket.SOCK_STREAM, host
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, kind, address


def _unix_paths(server: ServerConfig) -> list[Path]:
    return [Path(host.strip()) for host in server.host.split(",") if host.strip().endswith(".sock")]


def _address(sock: socket.socket, server: ServerConfig) -> str:
    name = sock.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    scheme = "https" if server.ssl_cert_file else "http"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{scheme}://{host}:{name[1]}"


def _config(app: ASGIApp, server: ServerConfig) -> HttpConfig:
    return HttpConfig(
        app,
        head_s=HEAD_S,
        descriptors=Descriptors(limit()),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        ssl_keyfile=server.ssl_key_file,
        ssl_certfile=server.ssl_cert_file,
    )
