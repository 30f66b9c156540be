"""Listening and stopping."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from tests.api.canned import CannedEngine, CannedStream, canned_runtime, says

from corral.api.app import create_app
from corral.api.schemas.defaults import Defaults
from corral.api.serve import serve
from corral.config import ServerConfig
from corral.events import Event, Started
from corral.ids import SlotId
from corral.tasks import Task


class Server:
    """``serve`` in the running loop, over an engine that starts a task and then waits for ``finish``."""

    def __init__(self, config: ServerConfig) -> None:
        self.engine = CannedEngine(self._script)
        self.runtime = canned_runtime(self.engine)
        self.stop = asyncio.Event()
        self.listening = asyncio.Event()
        self.addresses: Sequence[str] = ()
        app = create_app(self.runtime, config, Defaults())
        self.task = asyncio.create_task(serve(app, config, self.stop, self._on_listening))
        self.streams: list[CannedStream] = []
        make = self.engine.stream
        self.engine.stream = lambda groups: self._keep(make(groups))  # type: ignore[method-assign]

    def finish(self) -> None:
        self.streams[0].push(says("hi")(self.engine.tasks[0])[1:])

    def _keep(self, stream: CannedStream) -> CannedStream:
        self.streams.append(stream)
        return stream

    def _script(self, task: Task) -> list[Event]:
        return [Started(task.id, SlotId(0), 1, 0)]

    def _on_listening(self, addresses: Sequence[str]) -> None:
        self.addresses = addresses
        self.listening.set()


@contextlib.asynccontextmanager
async def open_stream(server: Server, prefix: str = ""):  # type: ignore[no-untyped-def]
    await asyncio.wait_for(server.listening.wait(), 30)
    async with (
        httpx.AsyncClient(base_url=server.addresses[0], timeout=30) as http,
        http.stream("POST", f"{prefix}/completion", json={"prompt": "x", "stream": True}) as response,
    ):
        assert response.status_code == 200
        yield response


def test_stopping_lets_open_requests_end() -> None:
    async def main() -> None:
        server = Server(ServerConfig(port=0))
        async with open_stream(server) as response:
            server.stop.set()
            server.finish()
            text = "".join([part async for part in response.aiter_text()])
            assert '"stop":true' in text
        await asyncio.wait_for(server.task, 30)
        await asyncio.wait_for(_refuses(server.addresses[0]), 30)

    asyncio.run(main())


@pytest.mark.parametrize("prefix", ["", "/p"])
def test_while_it_stops_it_says_so_and_takes_no_new_work(prefix: str) -> None:
    """A balancer sees a 503 with a reason, not a connection that is refused, as long as requests still run."""

    async def main() -> None:
        server = Server(ServerConfig(port=0, api_prefix=prefix))
        async with open_stream(server, prefix) as response:
            server.stop.set()
            async with httpx.AsyncClient(base_url=server.addresses[0] + prefix, timeout=30) as http:
                for method, path in (("GET", "/health"), ("GET", "/v1/health"), ("POST", "/completion")):
                    refused = await http.request(method, path)
                    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5"), path
                    error = refused.json()["error"]
                    assert (error["type"], "stopping" in error["message"]) == ("unavailable_error", True)
                anthropic = await http.post("/v1/messages", json={})
                assert anthropic.json()["error"]["type"] == "overloaded_error"
                assert (await http.get("/v1/models")).status_code == 200
                assert (await http.options("/completion")).status_code == 200
            assert not server.task.done()
            server.finish()
            assert '"stop":true' in "".join([part async for part in response.aiter_text()])
        await asyncio.wait_for(server.task, 30)

    asyncio.run(main())


def test_requests_that_came_late_do_not_keep_it_from_stopping() -> None:
    async def main() -> None:
        server = Server(ServerConfig(port=0))
        async with open_stream(server) as response:
            server.stop.set()
            async with httpx.AsyncClient(base_url=server.addresses[0], timeout=30) as polling:
                await polling.get("/health")
                server.finish()
                await response.aread()
                await asyncio.wait_for(server.task, 30)

    asyncio.run(main())


def test_with_nothing_to_wait_for_it_stops_at_once() -> None:
    async def main() -> None:
        server = Server(ServerConfig(port=0))
        async with open_stream(server) as response:
            server.finish()
            await response.aread()
        server.stop.set()
        await asyncio.wait_for(server.task, 30)

    asyncio.run(main())


def test_cancelling_stops_at_once() -> None:
    async def main() -> None:
        server = Server(ServerConfig(port=0))
        async with open_stream(server):
            server.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(server.task, 30)

    asyncio.run(main())


def test_several_hosts_and_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "corral.sock"

    async def main() -> None:
        server = Server(ServerConfig(host=f"127.0.0.1,{path}", port=0))
        await asyncio.wait_for(server.listening.wait(), 30)
        assert server.addresses[1] == f"unix:{path}"
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            assert (await http.get("/health")).status_code == 200
        server.stop.set()
        await asyncio.wait_for(server.task, 30)

    asyncio.run(main())
    assert not path.exists()


def test_an_address_in_use_is_an_oserror() -> None:
    async def main() -> None:
        server = Server(ServerConfig(port=0))
        await asyncio.wait_for(server.listening.wait(), 30)
        port = int(server.addresses[0].rsplit(":", 1)[1])
        with pytest.raises(OSError):
            await asyncio.wait_for(Server(ServerConfig(port=port)).task, 30)
        server.stop.set()
        await asyncio.wait_for(server.task, 30)

    asyncio.run(main())


async def _refuses(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        while True:
            try:
                await http.get("/health")
            except httpx.TransportError:
                return
            await asyncio.sleep(0.01)
