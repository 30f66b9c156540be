"""One client's connection: how long the head of a request may take, and the reply to what is no HTTP."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from corral.api.descriptors import Descriptors
from corral.api.errors import JSON, error_body
from corral.api.protocol import LimitedHttp
from corral.errors import CorralError, InvalidRequest, RequestTimeout

log = logging.getLogger("corral.http")


class HttpConfig(uvicorn.Config):
    """uvicorn's settings and those of ``Connection``."""

    def __init__(self, app: ASGIApp, head_s: float, descriptors: Descriptors, **settings: Any) -> None:
        """``head_s``: seconds for the head of a request. ``settings`` are uvicorn's."""
        super().__init__(app, http=Connection, **settings)
        self.head_s = head_s
        self.descriptors = descriptors


class Connection(LimitedHttp):
    """uvicorn's own closes only what is idle after a reply; this one also closes where no whole request comes.

    A head has ``head_s`` seconds, from connecting or from the first byte of a later request. A body may stop for as
    long as a connection may be idle, and what comes between a reply and the next head (the rest of a body that was
    refused, say) may take as long in all.
    """

    def __init__(
        self,
        config: HttpConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_s = config.head_s
        self._descriptors = config.descriptors
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_limit(self._head_s)
        number = transport.get_extra_info("socket").fileno()
        self._descriptors.took(number, len(self.connections), self.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_answering():
            if self._is_in_body:
                self._start_limit(self.timeout_keep_alive)
        elif self._limit is None:
            self._start_limit(self._head_s if self._is_in_head else self.timeout_keep_alive)

    def on_headers_complete(self) -> None:
        self._end_limit()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._end_limit()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called where the parser's error is handled, whose text says more than ``msg``."""
        reason = str(sys.exception() or "").strip()
        self._refuse(InvalidRequest(f"{msg.rstrip('.')}: {reason or 'it cannot be parsed'}. {self._advice()}"))

    def _advice(self) -> str:
        if self.scheme == "https":
            return "Send HTTP/1.1, and as many bytes of body as Content-Length says."
        return "Send HTTP/1.1 without TLS (http://), and as many bytes of body as Content-Length says."

    def _refuse(self, error: CorralError) -> None:
        """Say it and close; without a word where it would get into a reply that is being sent."""
        if not (self.pipeline or (self._is_answering() and self.cycle.response_started)):
            body = error_body(error)
            headers = [
                *self.server_state.default_headers,
                (b"server", b"llama.cpp"),
                (b"content-type", JSON.encode()),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            head = b"".join(b"%s: %s\r\n" % header for header in headers)
            self.transport.write(STATUS_LINE[error.code] + head + b"\r\n" + body)
        self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_limit(self, after_s: float) -> None:
        self._end_limit()
        self._limit = self.loop.call_later(after_s, self._on_limit, after_s)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _on_limit(self, after_s: float) -> None:
        self._limit = None
        if self.transport.is_closing():
            return
        peer = f"{self.client[0]}:{self.client[1]}" if self.client else "a unix socket"
        log.debug("closed the connection of %s: no complete request in %g s", peer, after_s)
        if self._is_in_head:
            self._refuse(RequestTimeout(f"the head of the request was not complete after {after_s:g} s; send it again"))
        elif self._is_in_body and self._is_answering():
            self._refuse(RequestTimeout(f"nothing more of the request's body came in {after_s:g} s; send it again"))
        else:
            self.transport.close()
