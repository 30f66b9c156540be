"""Request ids: one for every HTTP request, taken from the client or made, and given back."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.errors import REQUEST_ID

_FIT = re.compile(rb"[\x21-\x7e]{1,128}")
_HEADER = b"x-request-id"

_log = logging.getLogger("corral.http")


class RequestIds:
    """ASGI around the application. A client's X-Request-Id is kept if it is 1 to 128 visible ASCII characters."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        request_id = _taken(scope) or secrets.token_hex(8).encode()
        scope[REQUEST_ID] = shown = request_id.decode()
        started_s, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (_HEADER, request_id)]
            await send(message)

        try:
            await self._inner(scope, receive, send_with_id)
        finally:
            elapsed_ms = 1000 * (time.perf_counter() - started_s)
            level = logging.WARNING if status == 500 else logging.DEBUG
            extra = {"request_id": shown}
            _log.log(level, "%s %s: %d after %.0f ms", scope["method"], scope["path"], status, elapsed_ms, extra=extra)


def _taken(scope: Scope) -> bytes:
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    return given if _FIT.fullmatch(given) else b""
