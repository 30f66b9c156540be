"""Streams that outlive their client: what they sent is kept for a while, and can be read again from any offset."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from starlette.types import Message, Send

from corral.errors import InvalidRequest, Unavailable
from corral.ids import TenantId

logger = logging.getLogger("corral.sessions")

Run = Callable[[Send], Awaitable[None]]
"""Sends a whole ASGI reply."""


class SessionKey(NamedTuple):
    """A conversation of one API key."""

    tenant: TenantId
    conversation: str


class Session:
    """The reply of one request: its head, the last ``n_kept_bytes`` of its body and how many there were.

    Times are Unix seconds; ``completed_s`` is 0 until the end.
    """

    def __init__(self, run: Run, n_kept_bytes: int, on_end: Callable[[Session], None]) -> None:
        self.started_s = int(time.time())
        self.completed_s = 0
        self.head: Message | None = None
        self.n_bytes = 0
        self.is_done = False
        self.expiry: asyncio.TimerHandle | None = None
        self._kept = bytearray()
        self._n_kept_bytes = n_kept_bytes
        self._on_end = on_end
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._run(run))
        self._task.add_done_callback(self._end)

    @property
    def is_stream(self) -> bool:
        """False once it is known that the request failed before it could stream."""
        return self.head is None or self.head["status"] == 200

    @property
    def n_lost_bytes(self) -> int:
        return self.n_bytes - len(self._kept)

    def cancel(self) -> None:
        """Stop what generates; those who read come to the end. No timer holds it any longer."""
        self._task.cancel()
        if self.expiry is not None:
            self.expiry.cancel()

    async def follow(self, send: Send, offset: int = 0) -> None:
        """Send the reply on from byte ``offset`` of its body to its end.

        Raises InvalidRequest, before anything is sent, for an offset that is not kept or was never reached. A reader
        who falls behind what is kept later loses the connection: there the reply is not complete.
        """
        while self.head is None and not self.is_done:
            await self._news.wait()
        if offset > self.n_bytes:
            raise InvalidRequest(f"Invalid 'from' offset: {offset}; the stream has {self.n_bytes} bytes")
        if offset < self.n_lost_bytes:
            raise InvalidRequest(f"Stream offset lost, please restart: the first byte kept is {self.n_lost_bytes}")
        if self.head is None:
            raise Unavailable("the stream was stopped before it began")
        await send(self.head)
        while offset >= self.n_lost_bytes:
            if piece := bytes(self._kept[offset - self.n_lost_bytes :]):
                offset += len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            elif self.is_done:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            else:
                await self._news.wait()

    async def _run(self, run: Run) -> None:
        try:
            await run(self._take)
        except Exception:  # nobody awaits this task: what went wrong must be in the log, and readers must not hang
            logger.exception("a stream that can be resumed failed")

    def _end(self, _task: asyncio.Task[None]) -> None:
        self.is_done = True
        self.completed_s = int(time.time())
        self._tell()
        self._on_end(self)

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.head = message
        elif body := message.get("body", b""):
            self.n_bytes += len(body)
            self._kept += body
            del self._kept[: max(len(self._kept) - self._n_kept_bytes, 0)]
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Sessions:
    """All sessions, one for each key: a new one stops the one before. Belongs to one event loop.

    A session is forgotten ``keep_s`` after its end, or earlier where its tenant has ``n_max``; one that failed before
    it could stream at once.
    """

    def __init__(self, n_max: int = 64, n_kept_bytes: int = 4 * 1024 * 1024, keep_s: float = 300.0) -> None:
        self._by_key: dict[SessionKey, Session] = {}
        self._n_max = n_max
        self._n_kept_bytes = n_kept_bytes
        self._keep_s = keep_s

    def open(self, key: SessionKey, run: Run) -> Session:
        """Raises Unavailable if ``n_max`` sessions of the tenant are running."""
        self.drop(key)
        self._make_room(key.tenant)
        session = Session(run, self._n_kept_bytes, lambda ended: self._on_end(key, ended))
        self._by_key[key] = session
        return session

    def get(self, key: SessionKey) -> Session | None:
        return self._by_key.get(key)

    def drop(self, key: SessionKey) -> None:
        """Stop and forget a session, if there is one."""
        session = self._by_key.pop(key, None)
        if session is not None:
            session.cancel()

    def find(self, tenant: TenantId, conversations: Iterable[str]) -> list[tuple[SessionKey, Session]]:
        """Those of conversations, each of these once: a name is the id, or the id with ``::`` and a model behind."""
        by_name: dict[str, list[tuple[SessionKey, Session]]] = defaultdict(list)
        for key, session in self._by_key.items():
            if key.tenant == tenant:
                for name in {key.conversation, key.conversation.rpartition("::")[0] or key.conversation}:
                    by_name[name].append((key, session))
        return [found for name in dict.fromkeys(conversations) for found in by_name.get(name, ())]

    def _make_room(self, tenant: TenantId) -> None:
        own = [key for key in self._by_key if key.tenant == tenant]
        if len(own) < self._n_max:
            return
        ended = next((key for key in own if self._by_key[key].is_done), None)
        if ended is None:
            raise Unavailable(f"{self._n_max} streams of yours that can be resumed are running", retry_after_s=5)
        self.drop(ended)

    def _on_end(self, key: SessionKey, session: Session) -> None:
        if session.head is None or not session.is_stream:
            self._forget(key, session)
        elif self._by_key.get(key) is session:
            session.expiry = asyncio.get_running_loop().call_later(self._keep_s, self._forget, key, session)

    def _forget(self, key: SessionKey, session: Session) -> None:
        if self._by_key.get(key) is session:
            del self._by_key[key]
