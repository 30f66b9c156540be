"""GET /docs: a page of all routes, made by the browser from openapi.json. It needs nothing from elsewhere."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
"""The browser holds the page to it: nothing is loaded from, or sent to, another host."""


async def docs(request: Request) -> Response:
    """The page; ``openapi.json`` lies beside it."""
    page = resources.files("corral.api").joinpath("pages/docs.html").read_bytes()
    return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": _POLICY})
