"""Errors as JSON bodies and responses, in llama-server's shape."""

from __future__ import annotations

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from corral.errors import CorralError, InvalidRequest, NotFound, ServerError, Unavailable

JSON = "application/json; charset=utf-8"


def error_body(error: CorralError) -> bytes:
    """``{"error": {code, message, type, ...}}``."""
    body = {"code": error.code, "message": str(error), "type": error.type, **error.extra}
    return orjson.dumps({"error": body})


def error_response(error: CorralError) -> Response:
    """The HTTP answer to a request that failed before anything was sent."""
    headers = {}
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return Response(error_body(error), error.code, headers, JSON)


async def on_corral_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, CorralError)
    return error_response(error)


async def on_http_exception(_request: Request, error: Exception) -> Response:
    """An unknown path, or a known path with another verb."""
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):
        return error_response(NotFound("File Not Found"))
    return error_response(InvalidRequest(str(error.detail)))


async def on_unexpected(_request: Request, _error: Exception) -> Response:
    """A fault of ours. It is raised again after the answer, and logged by the server."""
    return error_response(ServerError("internal error"))
