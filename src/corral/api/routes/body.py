"""Reading a request's body off the event loop when it is long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from corral.api.schemas.fields import Fields, parse_object
from corral.errors import InvalidRequest

T = TypeVar("T")

INLINE_BYTES = 4096
"""Longer bodies are parsed and tokenised by a worker thread: they would hold up everybody's tokens."""


async def read_body(request: Request, read: Callable[[Fields], T]) -> T:
    """``read`` of the body's members. Raises InvalidRequest."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise InvalidRequest("the client left before the body was complete") from None
    if len(raw) <= INLINE_BYTES:
        return read(Fields(parse_object(raw)))
    return await asyncio.to_thread(lambda: read(Fields(parse_object(raw))))
