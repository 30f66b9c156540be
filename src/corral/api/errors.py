"""Errors as JSON bodies and responses, in the shape of the route's wire format."""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from corral.errors import CorralError, ExceedContext, InvalidRequest, NotFound, ServerError, Unavailable

log = logging.getLogger("corral.api")

JSON = "application/json; charset=utf-8"
ERROR_SHAPE = "corral.error_shape"
"""Where the ASGI scope has the shape of the route's errors."""

REQUEST_ID = "corral.request_id"
"""Where the ASGI scope has the request's id, if what runs the application gives one."""

Shape = Callable[[CorralError], bytes]
"""An error as the body of a reply."""

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
}


def error_body(error: CorralError) -> bytes:
    """``{"error": {code, message, type, ...}}``: llama-server's and OpenAI's."""
    body = {"code": error.code, "message": error.told, "type": error.type, **error.extra}
    return orjson.dumps({"error": body})


def anthropic_error_body(error: CorralError) -> bytes:
    """``{"type": "error", "error": {type, message, ...}}``, with the type and words that Anthropic's clients know."""
    kind = _ANTHROPIC_TYPES.get(error.code, "api_error")
    if isinstance(error, Unavailable):
        kind = "overloaded_error"
    message = error.told
    if isinstance(error, ExceedContext):
        message = f"prompt is too long: {error.n_shown} tokens > {error.n_ctx} maximum"
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message, **error.extra}})


def ollama_error_body(error: CorralError) -> bytes:
    """``{"error": message}``."""
    return orjson.dumps({"error": error.told})


def shape_for(path: str) -> Shape:
    """The shape of errors under ``path``, without the prefix of all routes."""
    if path.startswith("/v1/messages"):
        return anthropic_error_body
    return ollama_error_body if path.startswith("/api/") else error_body


def shape_of(scope: Scope) -> Shape:
    """The shape of errors of a request that passed the gate."""
    shape: Shape = scope.get(ERROR_SHAPE, error_body)
    return shape


def error_response(error: CorralError, shape: Shape = error_body) -> Response:
    """The HTTP answer to a request that failed before anything was sent."""
    headers = {}
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return Response(shape(error), error.code, headers, JSON)


async def on_corral_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CorralError)
    if isinstance(error, ServerError):
        told = {"request_id": request.scope.get(REQUEST_ID, "")}
        log.error("%s %s failed: %s", request.method, request.url.path, error, extra=told)
    return error_response(error, shape_of(request.scope))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """An unknown path, or a known path with another verb."""
    assert isinstance(error, HTTPException)
    told = NotFound("File Not Found") if error.status_code in (404, 405) else InvalidRequest(str(error.detail))
    return error_response(told, shape_of(request.scope))


async def on_unexpected(request: Request, _error: Exception) -> Response:
    """A fault of ours. It is raised again after the answer, and logged by the server."""
    return error_response(ServerError("internal error"), shape_of(request.scope))
