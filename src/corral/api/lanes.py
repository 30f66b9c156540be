"""How many bodies are worked on at a time: long ones must not keep short ones from being read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

LONG_BYTES = 1024 * 1024
N_SHORT = 4
"""Workers take the interpreter from each other, from the event loop and from the engine."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Of bodies from ``LONG_BYTES`` on one is read at a time: each may take seconds, and 100 times its size."""

    short: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(N_SHORT))
    long: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    async def work(self, n_bytes: int, read: Callable[[], T]) -> T:
        """``read`` a body of this length on a worker thread, in its turn.

        Cancelled while it waits it is never read. A worker cannot be stopped: then its place is taken until it ends.
        """
        lane = self.short if n_bytes < LONG_BYTES else self.long
        await lane.acquire()
        reading = asyncio.get_running_loop().run_in_executor(None, read)
        reading.add_done_callback(lambda _: lane.release())
        return await asyncio.shield(reading)
