"""Every reply carries a request id: the client's own if it is fit for a header and a log line."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from corral.api.errors import REQUEST_ID
from corral.cli.access import RequestIds


def answered(*headers: tuple[bytes, bytes]) -> tuple[str, dict[bytes, bytes]]:
    """The id that the application saw, and the reply's headers."""
    seen: list[str] = []
    sent: list[Message] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope[REQUEST_ID])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": list(headers)}
    asyncio.run(RequestIds(application)(scope, receive, send))
    return seen[0], dict(sent[0]["headers"])


def test_an_id_is_kept_and_given_back() -> None:
    request_id, headers = answered((b"x-request-id", b"trace-17"))
    assert request_id == "trace-17"
    assert headers == {b"a": b"b", b"x-request-id": b"trace-17"}


@pytest.mark.parametrize("given", [b"", b"two words", b"x" * 129, "é".encode(), b"a\nb"])
def test_an_unfit_id_is_replaced(given: bytes) -> None:
    request_id, headers = answered((b"x-request-id", given))
    assert request_id.encode() != given
    assert headers[b"x-request-id"] == request_id.encode()


def test_made_ids_differ() -> None:
    assert answered()[0] != answered()[0]
