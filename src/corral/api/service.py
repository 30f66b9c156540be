"""What a route works with: the runtime, the settings and what is derived from both once."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version

from starlette.requests import Request

from corral.api.lanes import Lane, Lanes
from corral.api.response_store import ResponseStore
from corral.api.schemas.adapters import Scales
from corral.api.schemas.defaults import Defaults
from corral.api.seldom import Seldom
from corral.api.sessions import Sessions
from corral.chat.jobs import ChatModel
from corral.chat.loaded import chat_model_of
from corral.config import MIB, ServerConfig
from corral.engine.state import Counters
from corral.errors import InvalidRequest, LoadError
from corral.ids import AdapterId, AdapterSet, CacheKey, TenantId, adapter_set
from corral.runtime import Runtime
from corral.tasks import NOBODY

SERVICE = "corral.service"
TENANT = "corral.tenant"
MIN_BODY_BYTES, BODY_BYTES_PER_TOKEN = 8 * MIB, 16
BUILD = f"corral-{version('corral')}"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who asks: an API key by its hash, with what its requests are due. Nobody in particular without keys."""

    id: TenantId = NOBODY
    weight: float = 1.0
    priority: int = 0


NO_TENANT = Tenant()


@dataclass(slots=True)
class Scrapes:
    """The counters at the last metrics scrape, for the gauges that tell rates since then."""

    last: Counters = field(default_factory=Counters)

    def advance(self, now: Counters) -> Counters:
        """Remember ``now``; returns what was remembered before."""
        before, self.last = self.last, now
        return before


@dataclass(slots=True)
class DefaultAdapters:
    """The scales of adapters for requests that name none; POST /lora-adapters changes them."""

    scales: dict[AdapterId, float]

    def chosen(self, named: Scales) -> AdapterSet:
        """The adapters of a request: those it names, or else these."""
        return adapter_set(dict(named) or self.scales)


@dataclass(frozen=True, slots=True)
class Service:
    """A runtime that is ready, as the routes see it. ``model`` is the name that replies carry.

    ``restores``: of each slot, who may hold a slot file in memory until the slot is idle.
    """

    runtime: Runtime
    server: ServerConfig
    defaults: Defaults
    chat: ChatModel
    model: str
    started_s: float
    adapters: DefaultAdapters
    lanes: Lanes = field(default_factory=Lanes)
    restores: dict[int, Lane] = field(default_factory=lambda: defaultdict(lambda: Lane(1)))
    responses: ResponseStore | None = None
    unkept: Seldom = field(default_factory=Seldom)
    sessions: Sessions = field(default_factory=Sessions)
    scrapes: Scrapes = field(default_factory=Scrapes)

    @property
    def reads_inline(self) -> bool:
        """Whether a request that names nothing slow is read at once: not where every request has to be compiled."""
        return not self.defaults.sampling.grammar and self.defaults.sampling.dry_multiplier == 0

    @property
    def max_body_bytes(self) -> int:
        """Of a request. Room for a prompt that fills a slot's context, however it is written, and more."""
        return self.server.max_body_bytes or max(MIN_BODY_BYTES, BODY_BYTES_PER_TOKEN * self.runtime.n_ctx_slot)

    @staticmethod
    def of(runtime: Runtime, server: ServerConfig, defaults: Defaults) -> Service:
        """Derive what routes need.

        Raises LoadError if the chat template does not compile, the default sampling does not suit the model, or the
        file for responses cannot be used.
        """
        try:
            runtime.check_sampling(defaults.sampling)
        except InvalidRequest as error:
            raise LoadError(f"the sampling flags do not suit this model: {error}") from None
        info = runtime.model.info
        model = min(server.alias) if server.alias else info.path or info.name
        adapters = DefaultAdapters({adapter.id: adapter.scale for adapter in runtime.model.adapters})
        chat, responses = chat_model_of(runtime.model, server.chat_template), _response_store(server)
        return Service(runtime, server, defaults, chat, model, time.time(), adapters, responses=responses)


def _response_store(server: ServerConfig) -> ResponseStore | None:
    """Raises LoadError."""
    if server.responses_store is None:
        return None
    store = ResponseStore(server.responses_store, server.responses_store_max)
    store.open()
    return store


def service_of(request: Request) -> Service:
    service = request.scope[SERVICE]
    assert isinstance(service, Service)
    return service


def tenant_of(request: Request) -> Tenant:
    tenant = request.scope[TENANT]
    assert isinstance(tenant, Tenant)
    return tenant


def cache_key(request: Request, salt: str) -> CacheKey:
    """Whose prefixes a request may meet: those of its API key, unless keys share theirs, and of its own salt."""
    tenant = "" if service_of(request).server.shared_cache else tenant_of(request).id
    return CacheKey(f"{tenant}:{salt}" if tenant or salt else "")
