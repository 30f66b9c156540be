"""The client: asks a server for streams and notes when each piece of text arrived."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import aiohttp
import orjson

from corral.bench.wire import WIRES, Piece, Prompt, Wire

Sleep = Callable[[float], Awaitable[None]]
Options = Mapping[str, object]
NO_OPTIONS: Options = MappingProxyType({})


class BenchError(Exception):
    """A measurement that cannot be made; the message says why."""


class RequestFailed(BenchError):
    """A server refused a request or broke it off."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished completion. Times are seconds of one monotonic clock; ``stamps_s`` has one for each piece of text.

    ``n_tokens`` is the server's count, or the number of pieces where it gives none.
    """

    sent_s: float
    stamps_s: tuple[float, ...]
    ended_s: float
    n_tokens: int
    text: str
    n_prompt: int = 0
    n_cached: int = 0

    @property
    def ttft_ms(self) -> float:
        """Time to the first text; the whole time if there was none."""
        return ((self.stamps_s[0] if self.stamps_s else self.ended_s) - self.sent_s) * 1e3

    @property
    def gaps_ms(self) -> list[float]:
        """Times between pieces of text."""
        return [(b - a) * 1e3 for a, b in pairwise(self.stamps_s)]

    @property
    def total_ms(self) -> float:
        return (self.ended_s - self.sent_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None with fewer than two."""
        return (self.total_ms - self.ttft_ms) / (self.n_tokens - 1) if self.n_tokens > 1 else None


@dataclass(slots=True)
class _Choice:
    """What has arrived of one completion so far."""

    stamps_s: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    last: Piece | None = None
    ended_s: float | None = None

    def add(self, piece: Piece, at_s: float) -> None:
        if piece.text:
            self.stamps_s.append(at_s)
            self.texts.append(piece.text)
        if piece.end:
            self.last, self.ended_s = piece, at_s

    def stream(self, sent_s: float, end_s: float, usage: Piece | None) -> Stream:
        counts = usage or self.last or Piece(None)
        return Stream(
            sent_s,
            tuple(self.stamps_s),
            end_s if self.ended_s is None else self.ended_s,
            len(self.stamps_s) if counts.n_tokens is None else counts.n_tokens,
            "".join(self.texts),
            counts.n_prompt or 0,
            counts.n_cached or 0,
        )


class Client:
    """Asks one server. Use ``connect``; one connection for each request, as many as wanted."""

    def __init__(self, url: str, wire: Wire, session: aiohttp.ClientSession) -> None:
        self.url = url.rstrip("/")
        self._wire = wire
        self._session = session

    def over(self, api: str) -> Client:
        """The same server, asked over the wire ``api``, a key of ``WIRES``."""
        return Client(self.url, WIRES[api], self._session)

    async def stream(
        self, prompt: Prompt, n_predict: int, options: Options = NO_OPTIONS, on_first: asyncio.Event | None = None
    ) -> Stream:
        """One completion of ``n_predict`` tokens, greedy unless ``options`` (request fields) say otherwise.

        ``on_first`` is set when the first text arrives. Raises RequestFailed.
        """
        (only,) = await self.fork(prompt, n_predict, 1, options, on_first)
        return only

    async def fork(
        self,
        prompt: Prompt,
        n_predict: int,
        n: int,
        options: Options = NO_OPTIONS,
        on_first: asyncio.Event | None = None,
    ) -> list[Stream]:
        """``n`` completions of one prompt in one request. Raises RequestFailed."""
        choices = [_Choice() for _ in range(n)]
        usage: Piece | None = None
        sent_s = time.perf_counter()
        async for piece in self._pieces(self._wire.body(prompt, n_predict, n, options)):
            if piece.index is None:
                usage = piece if n == 1 else None
            elif piece.index < n:
                choices[piece.index].add(piece, time.perf_counter())
                if on_first is not None and piece.text:
                    on_first.set()
        end_s = time.perf_counter()
        return [choice.stream(sent_s, end_s, usage) for choice in choices]

    async def _pieces(self, body: dict[str, object]) -> AsyncIterator[Piece]:
        try:
            async with self._session.post(
                self.url + self._wire.path, data=orjson.dumps(body), headers={"Content-Type": "application/json"}
            ) as reply:
                if reply.status != 200:
                    raise RequestFailed(f"{self.url}: {reply.status}: {(await reply.text())[:300]}")
                async for line in reply.content:
                    for piece in self._read(line):
                        yield piece
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise RequestFailed(f"{self.url}: no URL such as http://127.0.0.1:8080") from error
        except aiohttp.ClientConnectorError as error:
            raise RequestFailed(f"{self.url}: cannot connect: {_reason(error)}; is a server there?") from error
        except aiohttp.ClientError as error:
            raise RequestFailed(f"{self.url}: {error}") from error
        except TimeoutError as error:
            raise RequestFailed(f"{self.url}: no answer in time") from error

    def _read(self, line: bytes) -> list[Piece]:
        name, _, data = line.partition(b":")
        data = data.strip()
        if name not in (b"data", b"error") or data == b"[DONE]":
            return []
        event: Mapping[str, Any] = orjson.loads(data)
        if name == b"error" or "error" in event:
            raise RequestFailed(f"{self.url}: {data.decode()[:300]}")
        return self._wire.read(event)

    async def n_busy(self) -> int | None:
        """Slots at work now, from ``GET /slots``; None where the server does not say."""
        try:
            async with self._session.get(self.url + "/slots") as reply:
                if reply.status != 200:
                    return None
                return sum(bool(slot.get("is_processing")) for slot in orjson.loads(await reply.read()))
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
            return None

    async def settle(self, limit_s: float = 5.0, sleep: Sleep = asyncio.sleep) -> int | None:
        """Wait until no slot works, at most about ``limit_s``; the slots still busy, None where unknown."""
        n_busy = await self.n_busy()
        n_left = int(limit_s / 0.02)
        while n_busy and n_left:
            await sleep(0.02)
            n_busy = await self.n_busy()
            n_left -= 1
        return n_busy


@asynccontextmanager
async def connect(url: str, api: str = "native", api_key: str = "", timeout_s: float = 600.0) -> AsyncIterator[Client]:
    """A client of ``url``. ``api`` is a key of ``WIRES``."""
    # A server may close a kept connection just as the next POST goes out; a new one for each request cannot lose it.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        yield Client(url, WIRES[api], session)


def _reason(error: aiohttp.ClientConnectorError) -> str:
    number = error.errno
    return os.strerror(number) if number and number > 0 else error.strerror or str(error)
