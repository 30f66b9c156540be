"""The ASGI application: routes behind the gate, and the moment when the model is ready."""

from __future__ import annotations

import functools

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from corral.api.errors import on_corral_error, on_http_exception, on_unexpected
from corral.api.gate import Gate
from corral.api.openapi import ROUTES, describe
from corral.api.schemas.defaults import Defaults
from corral.api.service import BUILD, Service
from corral.config import ServerConfig
from corral.errors import CorralError
from corral.runtime import Runtime


class App:
    """ASGI. Answers 503 ``Loading model`` until ``ready``."""

    def __init__(self, server: ServerConfig, defaults: Defaults) -> None:
        self.service: Service | None = None
        self._server = server
        self._defaults = defaults
        self._gate = Gate(routes_of(server.api_prefix), server, lambda: self.service)

    def ready(self, runtime: Runtime) -> None:
        """Serve with this runtime from now on. Raises LoadError if it cannot: see ``Service.of``."""
        self.service = Service.of(runtime, self._server, self._defaults)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gate(scope, receive, send)


def create_app(runtime: Runtime | None, server: ServerConfig, defaults: Defaults) -> App:
    """The application over a runtime, or over none yet: see ``App.ready``."""
    app = App(server, defaults)
    if runtime is not None:
        app.ready(runtime)
    return app


@functools.cache
def routes_of(prefix: str) -> FastAPI:
    """All routes under ``prefix``; ``App`` puts the gate before them. They know no server: that comes in the scope."""
    api = FastAPI(
        title="corral",
        version=BUILD,
        description="llama-server's routes over one shared model.",
        docs_url=f"{prefix}/docs",
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        openapi_url=f"{prefix}/openapi.json",
        redirect_slashes=False,
        exception_handlers={
            CorralError: on_corral_error,
            HTTPException: on_http_exception,
            Exception: on_unexpected,
        },
    )
    for route in ROUTES:
        for path in route.paths:
            pattern = prefix + path.replace("{model}", "{model:path}")  # names may have slashes
            api.add_api_route(pattern, route.endpoint, methods=[route.method], **describe(route, path))
            if route.method == "GET":
                api.add_route(pattern, route.endpoint, methods=["HEAD"], include_in_schema=False)
    return api
