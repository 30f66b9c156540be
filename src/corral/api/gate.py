"""What every request passes before its route: CORS, preflight, stopping, readiness, API key. In that order."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.errors import ERROR_SHAPE, error_response, shape_for
from corral.api.service import NO_TENANT, SERVICE, TENANT, Service, Tenant
from corral.config import ApiKey, ServerConfig
from corral.errors import AuthenticationError, Unavailable
from corral.ids import TenantId

Header = tuple[bytes, bytes]

STOPPING = "corral.stopping"
"""Where the ASGI scope says whether the server was told to stop."""
RETRY_S = 5

_HEALTH = ("/health", "/v1/health")
_PUBLIC = (*_HEALTH, "/", "/index.html")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class Gate:
    """Pure ASGI: lets requests through to ``inner``, with the service and the tenant in their scope.

    ``service`` gives what serves, or None while the model is loading.
    """

    def __init__(self, inner: ASGIApp, config: ServerConfig, service: Callable[[], Service | None]) -> None:
        self._inner = inner
        self._service = service
        self._cors = Cors(config)
        self._keys = tuple((key.key.encode(), _tenant(key)) for key in config.api_keys)
        self._public = frozenset(config.api_prefix + path for path in _PUBLIC)
        self._prefix = config.api_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers = dict(scope["headers"])
        extra = [(b"server", b"llama.cpp"), *self._cors.origin(headers)]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        await self._pass(scope, receive, send_with_headers, headers)

    async def _pass(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        if scope["method"] == "OPTIONS":
            await self._cors.preflight(send)
            return
        service = self._service()
        shape = scope[ERROR_SHAPE] = shape_for(scope["path"].removeprefix(self._prefix))
        if self._is_refused(scope):
            told = "the server is stopping: it ends what it has begun and takes nothing new"
            await error_response(Unavailable(told, RETRY_S), shape)(scope, receive, send)
            return
        if service is None:
            await error_response(Unavailable("Loading model", RETRY_S), shape)(scope, receive, send)
            return
        tenant = self._tenant(headers)
        if self._keys and tenant is None and scope["path"] not in self._public:
            await error_response(AuthenticationError("Invalid API Key"), shape)(scope, receive, send)
            return
        scope[SERVICE] = service
        scope[TENANT] = tenant or NO_TENANT
        await self._inner(scope, receive, send)

    def _is_refused(self, scope: Scope) -> bool:
        """While it stops: new work, and whether it is well. Who looks at what still runs is answered."""
        is_health = scope["path"].removeprefix(self._prefix) in _HEALTH
        return bool(scope.get(STOPPING)) and (scope["method"] == "POST" or is_health)

    def _tenant(self, headers: dict[bytes, bytes]) -> Tenant | None:
        """Whose key the request carries, if it is one of ours."""
        given = headers.get(b"authorization") or headers.get(b"x-api-key") or b""
        given = given.removeprefix(b"Bearer ").strip()
        # All keys are compared, in constant time each: how long it takes tells nothing.
        known = [tenant for key, tenant in self._keys if hmac.compare_digest(given, key)]
        return known[0] if known else None


def _tenant(key: ApiKey) -> Tenant:
    """Known by a hash, which is the same after a restart; the key itself goes no further."""
    name = hashlib.sha256(key.key.encode()).hexdigest()[:16]
    return Tenant(TenantId(name), key.weight, key.priority)


class Cors:
    """Cross-origin headers as the flags ask for them; of a comma list of origins the request's own is sent."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._listed = [origin.strip().encode() for origin in config.cors_origins.split(",")]
        credentials = b"true" if config.cors_credentials else b"false"
        self._preflight: list[Header] = [
            (b"access-control-allow-credentials", credentials),
            (b"access-control-allow-methods", config.cors_methods.encode()),
            (b"access-control-allow-headers", config.cors_headers.encode()),
            (b"content-type", b"text/html"),
            (b"content-length", b"0"),
        ]

    def origin(self, headers: dict[bytes, bytes]) -> list[Header]:
        """Allow-Origin for this request, if any."""
        origin = headers.get(b"origin")
        allowed = self._config.cors_origins
        if allowed == "localhost":
            return [self._allow(origin), (b"vary", b"Origin")] if origin and _is_local(origin) else []
        if origin and (origin in self._listed or (allowed == "*" and self._config.cors_credentials)):
            return [self._allow(origin), (b"vary", b"Origin")]
        return [] if len(self._listed) > 1 else [self._allow(allowed.encode())]

    async def preflight(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._preflight})
        await send({"type": "http.response.body", "body": b""})

    def _allow(self, origin: bytes) -> Header:
        return (b"access-control-allow-origin", origin)


def _is_local(origin: bytes) -> bool:
    try:
        return urlsplit(origin.decode("latin-1")).hostname in _LOCAL_HOSTS
    except ValueError:
        return False
