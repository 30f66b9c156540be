"""JSON in and out of a route; long bodies are read off the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from corral.api.errors import JSON
from corral.api.schemas.fields import Fields, parse_object
from corral.errors import InvalidRequest

T = TypeVar("T")

INLINE_BYTES = 4096
"""Longer bodies are parsed and tokenised by a worker thread: they would hold up everybody's tokens."""
SLOW = re.compile(rb"grammar|json_schema|format|regex|lark|tools|previous_response_id|\\u")
"""So are bodies with what must be compiled, which takes time, also if a name is written with escapes, and those that
need what a file holds."""


async def read_body(request: Request, read: Callable[[Fields], T]) -> T:
    """``read`` of the body's members. Raises InvalidRequest."""
    raw = await raw_body(request)
    if len(raw) <= INLINE_BYTES and not SLOW.search(raw):
        return read(Fields(parse_object(raw)))
    return await asyncio.to_thread(lambda: read(Fields(parse_object(raw))))


async def raw_body(request: Request) -> bytes:
    """Raises InvalidRequest if it does not come to its end."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise InvalidRequest("the client left before the body was complete") from None


def json_response(body: object) -> Response:
    return Response(orjson.dumps(body), media_type=JSON)
