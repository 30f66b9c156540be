"""Servers over the simulated model: one that many tests share, and a factory for those with settings of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.api.live import client

from corral.config import ContextConfig, EngineConfig, ServerConfig
from corral.ports import AdapterInfo
from corral.runtime import Runtime

SimServer = Callable[..., httpx.Client]


@contextlib.contextmanager
def simulated(
    n_slots: int = 4,
    n_ctx: int = 2048,
    n_batch: int = 256,
    max_queue: int = 100,
    adapters: tuple[AdapterInfo, ...] = (),
    context_shift: bool = False,
) -> Iterator[Runtime]:
    context = ContextConfig(n_ctx=n_ctx, n_slots=n_slots, n_rows=n_slots + 2, n_batch=n_batch, n_ubatch=n_batch)
    engine = EngineConfig(n_slots=n_slots, max_queue=max_queue, context_shift=context_shift, audit=True)
    runtime = Runtime.simulated(context, engine, adapters=adapters)
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
