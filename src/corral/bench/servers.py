"""Server processes: started on free loopback ports, waited for, and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from corral.bench.load import BenchError


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serve(command: Sequence[str], log: Path, ready_s: float = 120.0) -> AsyncIterator[str]:
    """Run ``command --host 127.0.0.1 --port P`` until the block ends; gives its URL once ``/health`` says 200.

    Its output goes to ``log``. Raises BenchError if it cannot start or is not ready within ``ready_s``.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("ab") as output:
        try:
            # A session of its own: a wrapper's children end with it.
            process = await asyncio.create_subprocess_exec(
                *command, "--host", "127.0.0.1", "--port", str(port), stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise BenchError(f"cannot start {command[0]}: {error}") from error
    try:
        await _ready(process, url, log, ready_s)
        yield url
    finally:
        await _stop(process)


async def _ready(process: Process, url: str, log: Path, ready_s: float) -> None:
    deadline_s = asyncio.get_running_loop().time() + ready_s
    async with aiohttp.ClientSession() as session:
        while not await _healthy(session, url):
            if process.returncode is not None:
                raise BenchError(f"the server ended with {process.returncode} before it was ready; see {log}")
            if asyncio.get_running_loop().time() > deadline_s:
                raise BenchError(f"the server was not ready within {ready_s:g} s; see {log}")
            await asyncio.sleep(0.1)


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=5)) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _stop(process: Process) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            await asyncio.wait_for(process.wait(), 10.0)
            break
        except TimeoutError:
            continue
