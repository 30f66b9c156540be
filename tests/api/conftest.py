"""Servers over the simulated model, shared or with settings of their own, and one that says what it is told to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.api.canned import SERVER, TEMPLATE, CannedEngine, canned_runtime, says
from tests.api.live import client

from corral.config import ContextConfig, EngineConfig, ServerConfig
from corral.ports import AdapterInfo
from corral.runtime import Runtime
from corral.sim.clock import VirtualClock
from corral.sim.model import SimSpec
from corral.sim.shape import Kind

SimServer = Callable[..., httpx.Client]


@contextlib.contextmanager
def simulated(
    n_slots: int = 4,
    n_ctx: int = 2048,
    n_batch: int = 256,
    max_queue: int = 100,
    adapters: tuple[AdapterInfo, ...] = (),
    kind: Kind = Kind.ATTENTION,
    unified: bool = True,
    clock: VirtualClock | None = None,
    **settings: Any,
) -> Iterator[Runtime]:
    """``settings`` are further ones of ``EngineConfig``. A sliding window is of 16 tokens.

    Time is virtual: what the engine decides does not depend on how busy the machine is.
    """
    n_rows = n_slots + 2 * unified
    context = ContextConfig(n_ctx, n_slots, n_rows, n_batch=n_batch, n_ubatch=n_batch, kv_unified=unified)
    engine = EngineConfig(n_slots=n_slots, max_queue=max_queue, audit=True, **settings)
    spec = SimSpec(adapters=adapters, kind=kind, window=16 if kind.has_window else 0)
    runtime = Runtime.simulated(context, engine, spec, clock or VirtualClock())
    try:
        yield runtime
    finally:
        runtime.close()


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    """A server with default settings; tests that use it leave it idle."""
    server = ServerConfig(port=0, alias=("sim",), endpoint_metrics=True)
    with simulated() as runtime, client(runtime, server) as shared:
        yield shared


@pytest.fixture
def serve_sim() -> Iterator[SimServer]:
    """Makes a server over a fresh simulated model; keyword arguments as of ``simulated`` and ``ServerConfig``."""
    with contextlib.ExitStack() as stack:

        def make(server: ServerConfig | None = None, **shape: Any) -> httpx.Client:
            runtime = stack.enter_context(simulated(**shape))
            return stack.enter_context(client(runtime, server or ServerConfig(port=0, alias=("sim",))))

        yield make


@pytest.fixture(scope="module")
def engine() -> CannedEngine:
    return CannedEngine(says("hi"))


@pytest.fixture(scope="module")
def server(engine: CannedEngine) -> Iterator[httpx.Client]:
    with client(canned_runtime(engine), replace(SERVER, chat_template=TEMPLATE)) as http:
        yield http
