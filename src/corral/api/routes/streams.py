"""Streams that can be resumed: reading on, looking up, stopping."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.dialects.parts import Json
from corral.api.reply import SessionReply
from corral.api.routes.body import json_response, read_body
from corral.api.schemas.fields import quoted, whole_number
from corral.api.service import service_of, tenant_of
from corral.api.sessions import Session, SessionKey
from corral.errors import InvalidRequest, NotFound


async def read_stream(request: Request) -> Response:
    """The bytes of a stream from an offset on, then those that come."""
    key = _key(request)
    given = request.query_params.get("from", "0")
    offset = whole_number(given)
    if offset is None or offset < 0:
        raise InvalidRequest(f"Invalid 'from' offset: {quoted(given)}; it must be a number of bytes")
    session = service_of(request).sessions.get(key)
    if session is None:
        raise NotFound("Stream not found or expired")
    return SessionReply(session, offset)


async def delete_stream(request: Request) -> Response:
    """Stop a stream and what generates it."""
    service_of(request).sessions.drop(_key(request))
    return Response(status_code=204)


async def look_up_streams(request: Request) -> Response:
    """How far the streams of conversations are."""
    ids = await read_body(request, lambda fields: fields.strings("conversation_ids") or ())
    sessions, tenant = service_of(request).sessions, tenant_of(request).id
    return json_response([_told(key, session) for key, session in sessions.find(tenant, ids)])


def _key(request: Request) -> SessionKey:
    conversation = request.query_params.get("conv_id", "")
    if not conversation:
        raise InvalidRequest("Missing conversation id in path")
    return SessionKey(tenant_of(request).id, conversation)


def _told(key: SessionKey, session: Session) -> Json:
    return {
        "conversation_id": key.conversation,
        "is_done": session.is_done,
        "total_bytes": session.n_bytes,
        "started_at": session.started_s,
        "completed_at": session.completed_s,
    }
