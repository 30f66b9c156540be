"""JSON in and out of a route: how much is read, and where; long bodies are read off the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from corral.api.errors import JSON
from corral.api.reply import unless_gone
from corral.api.schemas.fields import Fields, parse_object, quoted
from corral.api.service import service_of, tenant_of
from corral.errors import InvalidRequest, TooLarge

T = TypeVar("T")

INLINE_BYTES = 4096
"""Longer bodies are parsed and tokenised by a worker thread: they would hold up everybody's tokens."""
SLOW = re.compile(rb"grammar|dry_|json_schema|format|regex|lark|tools|previous_response_id|\\u")
"""So are bodies with what must be compiled, which takes time, also if a name is written with escapes, and those that
need what a file holds."""


async def read_body(request: Request, read: Callable[[Fields], T]) -> T:
    """``read`` of the body's members. Raises InvalidRequest."""
    return await read_bytes(request, lambda raw: read(Fields(parse_object(raw))))


async def read_bytes(request: Request, read: Callable[[bytes], T]) -> T:
    """``read`` of the whole body. Raises InvalidRequest; Unavailable where too much of the API key's is not read yet.

    A client that leaves while its body waits for a worker costs nothing more.
    """
    lanes, tenant = service_of(request).lanes, tenant_of(request).id
    with lanes.unread.of(tenant) as count:
        raw = await _raw_body(request, count)
        if len(raw) <= INLINE_BYTES and service_of(request).reads_inline and not SLOW.search(raw):
            return read(raw)
        return await while_there(request, lanes.work(len(raw), lambda: read(raw), tenant))


async def while_there(request: Request, work: Coroutine[object, object, T]) -> T:
    """What comes of ``work``, which is cancelled if the client leaves: then InvalidRequest, which nobody reads."""
    results: list[T] = []

    async def keep() -> None:
        results.append(await work)

    if not await unless_gone(request.receive, keep()):
        raise InvalidRequest("the client left")
    return results[0]


async def answer_json(request: Request, read: Callable[[Fields], object]) -> Response:
    """The reply to a body that needs only to be read; long ones are written where they are read, too."""
    return Response(await read_body(request, lambda fields: orjson.dumps(read(fields))), media_type=JSON)


async def _raw_body(request: Request, count: Callable[[int], None]) -> bytes:
    """Raises InvalidRequest if it does not come to its end, TooLarge as soon as it is clear that it is too large.

    ``count`` gets the bytes as they come.
    """
    limit = service_of(request).max_body_bytes
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise InvalidRequest(
            f"the body is said to be compressed ({quoted(coding)}): send it as it is, as JSON in UTF-8"
        )
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > limit:
        raise TooLarge(int(told), limit)
    chunks, n_bytes = [], 0
    try:
        async for chunk in request.stream():
            n_bytes += len(chunk)
            if n_bytes > limit:
                raise TooLarge(n_bytes, limit, or_more=True)
            count(len(chunk))
            chunks.append(chunk)
    except ClientDisconnect:
        raise InvalidRequest("the client left before the body was complete") from None
    return b"".join(chunks)


def json_response(body: object) -> Response:
    return Response(orjson.dumps(body), media_type=JSON)


async def text_response(make: Callable[[], object]) -> Response:
    """The same for what holds texts of users, made of their tokens by a worker: there may be many."""
    return await asyncio.to_thread(lambda: json_response(make()))
