"""A server that streams as the native and the OpenAI routes do, without a model."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class Imitation:
    """Records what it is asked. ``wait_s`` goes before each piece. ``n_max``: the most pieces of a stream."""

    wait_s: float = 0.0
    n_max: int = 3
    text: str = "word "
    status: int = 200
    break_after: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    n_open: int = 0
    n_stuck: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/completion", self._native)
        app.router.add_post("/v1/completions", self._oai)
        app.router.add_post("/v1/chat/completions", self._oai)
        app.router.add_get("/slots", self._slots)
        app.router.add_get("/health", self._health)
        return app

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        server = TestServer(self.app())
        await server.start_server()
        try:
            yield str(server.make_url("/"))
        finally:
            await server.close()

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _slots(self, request: web.Request) -> web.Response:
        busy = self.n_open + self.n_stuck
        return web.json_response([{"id": i, "is_processing": i < busy} for i in range(4)])

    async def _begin(self, request: web.Request) -> tuple[dict[str, Any], web.StreamResponse]:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.status != 200:
            raise web.HTTPServiceUnavailable(text='{"error":{"message":"the queue is full"}}')
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        return body, reply

    async def _native(self, request: web.Request) -> web.StreamResponse:
        body, reply = await self._begin(request)
        n = min(body["n_predict"], self.n_max)
        self.n_open += 1
        try:
            for i in range(n):
                await asyncio.sleep(self.wait_s)
                if i == self.break_after:
                    await self._send(reply, {"error": {"message": "it broke", "code": 500}})
                    return reply
                for index in range(body.get("n_cmpl", 1)):
                    await self._send(reply, {"index": index, "content": self.text, "stop": False})
            for index in range(body.get("n_cmpl", 1)):
                end = {"index": index, "content": "", "stop": True, "tokens_predicted": n, "tokens_evaluated": 7}
                await self._send(reply, {**end, "timings": {"cache_n": 5}})
        finally:
            self.n_open -= 1
        return reply

    async def _oai(self, request: web.Request) -> web.StreamResponse:
        body, reply = await self._begin(request)
        n = min(body["max_tokens"], self.n_max)
        for _ in range(n):
            piece = {"text": self.text, "delta": {"content": self.text}}
            await self._send(reply, {"choices": [{"index": 0, **piece, "finish_reason": None}]})
        await self._send(reply, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        usage = {"prompt_tokens": 7, "completion_tokens": n + 1, "prompt_tokens_details": {"cached_tokens": 5}}
        await self._send(reply, {"choices": [], "usage": usage})
        await reply.write(b"data: [DONE]\n\n")
        return reply

    async def _send(self, reply: web.StreamResponse, event: dict[str, Any]) -> None:
        await reply.write(b": ping\n\ndata: " + json.dumps(event).encode() + b"\n\n")


@pytest.fixture
def imitation() -> Imitation:
    return Imitation()


def main() -> None:
    """Serve as a process of its own; takes llama-server's --host and --port and passes over the rest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    args, rest = parser.parse_known_args()
    print("flags", *rest, flush=True)
    web.run_app(Imitation().app(), host=args.host, port=args.port, print=None)


if __name__ == "__main__":
    main()
