"""``corral serve``: listens at once, loads the model meanwhile, serves, drains when told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from corral.api.app import create_app
from corral.api.descriptors import raise_limit
from corral.api.pins import pin_all
from corral.api.serve import serve as serve_http
from corral.cli.access import RequestIds
from corral.cli.logs import start_logging
from corral.cli.parse import Parsed
from corral.cli.preflight import check
from corral.cli.progress import loading, say
from corral.cli.resolve import DEMO, Settings, resolve
from corral.config import ModelConfig
from corral.engine.shift import can_move
from corral.errors import LoadError
from corral.runtime import Runtime

logger = logging.getLogger("corral.cli")


_REMEDY = "--host and --port name another address, --port 0 takes any free port"


class _Interrupted(Exception):
    """A signal came while the model was loading."""


def serve(args: Parsed) -> int:
    """Serve until a signal; returns the exit code. Raises UsageError or LoadError."""
    start_logging(args)
    raise_limit()
    for note in args.notes:
        logger.warning("%s", note)
    settings = resolve(args)
    check(args, settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(Serving(settings, args).run())


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # Windows
        return None
    return uvloop.Loop  # type: ignore[no-any-return]


class Serving:
    """One run of the server. HTTP lives on this loop, loading on a worker thread, the model on its own."""

    def __init__(self, settings: Settings, args: Parsed) -> None:
        self._settings = settings
        self._drain_s = float(args["drain_s"])
        self.app = create_app(None, settings.server, settings.defaults)
        self._stop = asyncio.Event()
        self._listening = asyncio.Event()
        self._addresses: Sequence[str] = ()

    async def run(self) -> int:
        """Serve until a signal; 0 if all went well. Raises LoadError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.on_signal, number)
        http = asyncio.create_task(self._serve_http())
        try:
            done = await self._load_and_serve(http)
        finally:
            http.cancel()
            await asyncio.wait([http])
        logger.info("stopped%s", done)
        return 0

    async def _load_and_serve(self, http: asyncio.Task[None]) -> str:
        """Returns what is to be said at the end."""
        listening = asyncio.create_task(self._listening.wait())
        await asyncio.wait((http, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if http.done():
            http.result()
        try:
            runtime = await asyncio.to_thread(self._load)
        except _Interrupted:
            return ": the model was not loaded yet"
        try:
            if self._settings.defaults.n_cache_reuse and not can_move(runtime.traits):
                logger.warning("--cache-reuse is ignored: this model's memory cannot be shifted")
            self.app.ready(runtime)
            if not (self._stop.is_set() or http.done()):
                self._tell_ready(runtime)
            assert self.app.service is not None
            pinning = asyncio.create_task(pin_all(self.app.service))
            await self._until_stopped(http)
            pinning.cancel()
        finally:
            await asyncio.to_thread(runtime.close)
        return self._written(runtime)

    async def _serve_http(self) -> None:
        server = self._settings.server
        try:
            await serve_http(RequestIds(self.app), server, self._stop, self._on_listening)
        except ssl.SSLError as error:
            raise LoadError(f"cannot use {server.ssl_cert_file} with {server.ssl_key_file}: {error}") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise LoadError(f"cannot listen on {server.host}:{server.port}: {reason}; {_REMEDY}") from None

    def _on_listening(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._listening.set()
        logger.info("listening on %s, loading the model", ", ".join(addresses))

    def _load(self) -> Runtime:
        settings = self._settings
        model = settings.model if settings.model.path != DEMO else _demo(settings.model)
        with loading(model.path.name) as report:

            def on_progress(fraction: float) -> None:
                if self._stop.is_set():
                    raise _Interrupted
                report(fraction)

            return Runtime.open(model, settings.context, settings.engine, on_progress)

    def _tell_ready(self, runtime: Runtime) -> None:
        name, url = Path(runtime.model.info.path).stem, self._addresses[0] + self._settings.server.api_prefix
        size = f"{runtime.n_slots} slots, up to {runtime.n_ctx_slot} tokens each"
        say(f"{name} is ready on {url} ({size}). Try:", sys.stdout)
        say(_example(url, with_key=bool(self._settings.server.api_keys)), sys.stdout)

    def _written(self, runtime: Runtime) -> str:
        """What a stopped runtime left on disk since its start; what could not be written was warned of."""
        folder, n = self._settings.engine.cache_disk, runtime.engine.snapshot.counters.n_written
        return f": {n} {'prefix was' if n == 1 else 'prefixes were'} written to {folder}" if folder and n else ""

    async def _until_stopped(self, http: asyncio.Task[None]) -> None:
        """Wait for a signal, then for open requests, at most the drain time."""
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((http, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await asyncio.wait([http], timeout=self._drain_s)
        if http.done():
            http.result()
        else:
            logger.warning("requests were still running after %g s: dropped", self._drain_s)

    def on_signal(self, number: signal.Signals) -> None:
        """Begin to stop; the second time end the process."""
        if self._stop.is_set():
            logger.warning("stopped at once: %s", number.name)
            logging.shutdown()
            os._exit(130)
        is_loading = self.app.service is None
        rest = "the model is still loading" if is_loading else f"running requests get up to {self._drain_s:g} s"
        logger.info("stopping: %s; %s; once more to stop at once", number.name, rest)
        self._stop.set()


def _demo(model: ModelConfig) -> ModelConfig:
    from corral.llama.demo import demo_model

    return replace(model, path=demo_model())


def _example(url: str, with_key: bool) -> str:
    key = ' -H "Authorization: Bearer $KEY"' if with_key else ""
    body = '{"messages": [{"role": "user", "content": "Hello!"}]}'
    if url.startswith("unix:"):
        url = f"--unix-socket {url.removeprefix('unix:')} http://localhost"
    return f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
