"""Running a job for one client: the answer in one piece or as a stream, and the end of both when the client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.api.errors import JSON, error_response, shape_of
from corral.api.job import Job
from corral.api.sessions import Session
from corral.engine.thread import EngineThread
from corral.errors import CorralError, ServerError
from corral.events import Chunk, Event, Failed, Finished, PromptProbs, TokenProbs

log = logging.getLogger("corral.api")

BeforeEnd = Callable[[], Awaitable[None]]
"""What has to be done once the reply is known and before the client has all of it."""

HEAVY = 10_000
"""Tokens to write, those told as likely included, that take a worker: about 20 ms."""


class Dialect(Protocol):
    """Turns the events of one job into one wire format."""

    @property
    def media_type(self) -> str:
        """Of a stream."""
        ...

    def ping(self) -> bytes:
        """What keeps a silent stream alive; b"" where the format has nothing for that."""
        ...

    def fail(self, error: CorralError) -> bytes:
        """What ends a stream that has begun and cannot go on."""
        ...

    def feed(self, events: list[Event]) -> bytes:
        """Server-sent events for these events; b"" for none. Failed is never among them."""
        ...

    def tail(self) -> bytes:
        """What ends the stream after every task has finished."""
        ...

    def whole(self, results: list[Finished]) -> object:
        """The whole reply as JSON; results by index."""
        ...


class _Reply(Response):
    """Runs a job when the server asks for the response."""

    background = None

    def __init__(self, job: Job, dialect: Dialect, engine: EngineThread, before_end: BeforeEnd | None = None) -> None:
        self._job = job
        self._dialect = dialect
        self._engine = engine
        self._before_end = before_end
        self._n_biases = len(job.params.sampling.logit_bias)

    def _weight(self, events: Sequence[Event]) -> int:
        """How much there is to write: tokens, likely ones that are told with them, and settings that are repeated."""
        weight = 0
        for event in events:
            if type(event) is Chunk:
                weight += len(event.tokens) + _n_told(event.probs)
            elif type(event) is PromptProbs:
                weight += _n_told(event.probs)
            elif type(event) is Finished:
                n_prompt = event.timings.n_cached + event.timings.n_prompt
                weight += n_prompt + len(event.tokens) + _n_told(event.probs) + _n_told(event.prompt_probs)
                weight += self._n_biases
        return weight


class WholeReply(_Reply):
    """One JSON body after the last token."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        results: list[Finished] = []
        if not await unless_gone(receive, self._collect(results)):
            return
        body = await off_loop(self._weight(results), lambda: orjson.dumps(self._dialect.whole(results)))
        if self._before_end is not None:
            await self._before_end()
        await Response(body, media_type=JSON)(scope, receive, send)

    async def _collect(self, results: list[Finished]) -> None:
        async with self._engine.stream(self._job.groups) as events:
            while batch := await events.batch():
                for event in batch:
                    if isinstance(event, Failed):
                        raise event.error
                    if isinstance(event, Finished):
                        results.append(event)
        index = {task.id: task.index for task in self._job.tasks}
        results.sort(key=lambda result: index[result.task_id])


class StreamReply(_Reply):
    """A stream of events as tokens come.

    The status line is sent with the first event, so what fails before is an ordinary error response. A request that
    waits for longer than the ping interval gets its status line with the first ping.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = _EventStream(send, self._dialect)
        try:
            if await unless_gone(receive, self._run_with_pings(stream)):
                await stream.close()
        except CorralError as error:
            if not stream.is_open:
                await error_response(error, shape_of(scope))(scope, receive, send)
                return
            await stream.fail(error)
        except Exception:
            # A fault of ours. The client must see an error, not a stream that seems to be whole.
            if not stream.is_open:
                raise
            log.exception("%s: the stream failed", self._job.id)
            await stream.fail(ServerError("internal error"))

    async def _run_with_pings(self, stream: _EventStream) -> None:
        interval_s = self._job.params.sse_ping_interval_s
        if interval_s <= 0:
            await self._run(stream)
            return
        pinger = asyncio.create_task(stream.ping(interval_s))
        try:
            await self._run(stream)
        finally:
            pinger.cancel()

    async def _run(self, stream: _EventStream) -> None:
        dialect = self._dialect
        async with self._engine.stream(self._job.groups) as events:
            while batch := await events.batch():
                failed = next((event for event in batch if type(event) is Failed), None)
                if failed is not None:
                    await self._fail(stream, batch[: batch.index(failed)], failed.error)
                await stream.write(await off_loop(self._weight(batch), lambda: dialect.feed(batch)))
        tail = dialect.tail()
        if self._before_end is not None:
            await self._before_end()
        await stream.write(tail)

    async def _fail(self, stream: _EventStream, before: list[Event], error: CorralError) -> None:
        if stream.is_open or any(type(event) is Chunk for event in before):
            await stream.write(self._dialect.feed(before))
        raise error


class SessionReply(Response):
    """What a session has and will get, from byte ``offset`` on. The session goes on when this client leaves."""

    background = None

    def __init__(self, session: Session, offset: int = 0) -> None:
        self._session = session
        self._offset = offset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._session.follow(send, self._offset))


class _EventStream:
    """An open or not yet opened stream."""

    def __init__(self, send: Send, dialect: Dialect) -> None:
        self._send = send
        self._dialect = dialect
        self._clock = asyncio.get_running_loop().time
        self._written_s = self._clock()
        self.is_open = False

    async def write(self, body: bytes) -> None:
        """Send events, the status line first. Empty ``body`` sends only that."""
        if not self.is_open:
            self.is_open = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers()})
        if body:
            self._written_s = self._clock()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def fail(self, error: CorralError) -> None:
        """End the stream with an error event."""
        await self.write(self._dialect.fail(error))
        await self.close()

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def ping(self, interval_s: float) -> None:
        """Send a sign of life whenever nothing was sent for ``interval_s``. Runs until cancelled."""
        while True:
            left_s = self._written_s + interval_s - self._clock()
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                await self._ping()

    async def _ping(self) -> None:
        await self.write(self._dialect.ping())
        self._written_s = self._clock()

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", self._dialect.media_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]


def _n_told(probs: Sequence[TokenProbs]) -> int:
    return sum(len(entry.top) for entry in probs)


async def off_loop(weight: int, write: Callable[[], bytes]) -> bytes:
    """``write``, by a worker if there is much to write: others would wait for their tokens."""
    return write() if weight < HEAVY else await asyncio.to_thread(write)


async def unless_gone(receive: Receive, work: Coroutine[object, object, None]) -> bool:
    """Do ``work`` while the client is there, whose body has come. False: it left, the work was cancelled."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.wait((task, watcher))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
