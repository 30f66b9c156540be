"""Owns HTTP as uvicorn reads it, with a limit to what may come before a body: uvicorn itself takes any amount."""

from __future__ import annotations

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's first line and headers, and of what frames its body; a little more is read before it is noticed."""
MAX_FRAME = 8
"""Bytes that may frame one byte of a body: in chunks of one byte there are five, and they may be sloppy."""


class LimitedHttp(HttpToolsProtocol):
    """Answers 431 to longer heads, extensions of chunks and trailers, and closes the connection."""

    _n_now = 0
    _n_head_bytes = 0
    _n_body_bytes = 0
    _n_frame_bytes = 0
    _is_in_head = False
    _is_in_body = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._n_head_bytes = True, -self._n_now

    def on_headers_complete(self) -> None:
        self._is_in_head, self._is_in_body = False, True
        self._n_body_bytes, self._n_frame_bytes = 0, -self._n_now
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # nobody reads what comes behind a body
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._n_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._n_now = len(data)  # in which a part may begin: counted from the next on
        super().data_received(data)
        if self._is_long(len(data)) and not self.transport.is_closing():
            self.transport.write(_refusal())
            self.transport.close()

    def _is_long(self, n_bytes: int) -> bool:
        """Whether these are too many, where the request that is being read still is not whole."""
        if self._is_in_head:
            self._n_head_bytes += n_bytes
            return self._n_head_bytes > MAX_HEAD_BYTES
        if self._is_in_body:
            self._n_frame_bytes += n_bytes
            return self._n_frame_bytes > MAX_HEAD_BYTES + MAX_FRAME * self._n_body_bytes
        return False


def _refusal() -> bytes:
    message = f"the request line and headers, or what frames the body, have more than {MAX_HEAD_BYTES} bytes"
    error = {"code": 431, "message": message, "type": "invalid_request_error"}
    body = orjson.dumps({"error": error})
    head = (
        b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json; charset=utf-8\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n"
    )
    return head % len(body) + body
