"""How many bodies are worked on at a time, and whose next: long ones must not keep short ones from being read."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from corral.config import MIB
from corral.errors import Unavailable
from corral.ids import TenantId
from corral.tasks import NOBODY

T = TypeVar("T")

LONG_BYTES = 1024 * 1024
MAX_UNREAD_BYTES = 512 * MIB
"""Of one tenant, besides one body, which is as long as a body may be."""
N_SHORT = 4
"""Workers take the interpreter from each other, from the event loop and from the engine."""


class Lane:
    """So many places, taken by tenants in turn: one that sends a thousand bodies keeps nobody else waiting for them.

    Of one tenant first come, first served. Belongs to one event loop.
    """

    def __init__(self, n_places: int) -> None:
        self._n_free = n_places
        self._waiting: dict[TenantId, deque[asyncio.Future[None]]] = {}

    async def acquire(self, tenant: TenantId) -> None:
        """Take a place. Cancelled while it waits, it takes none."""
        if self._n_free:
            self._n_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the place was given in the same round of the loop
                self.release()
            raise

    def release(self) -> None:
        """Give a place to the next, or back."""
        while self._waiting:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._n_free += 1


class Bodies:
    """Bytes of bodies that have come and are not read yet: of each tenant at most ``n_max``."""

    def __init__(self, n_max: int) -> None:
        self._n_max = n_max
        self._n_bytes: Counter[TenantId] = Counter()

    @contextmanager
    def of(self, tenant: TenantId) -> Iterator[Callable[[int], None]]:
        """Within it the given function counts bytes of one body in; it raises Unavailable if they are too many."""
        n_own = 0

        def add(n_bytes: int) -> None:
            nonlocal n_own
            n_others = self._n_bytes[tenant] - n_own
            if n_others and n_others + n_own + n_bytes > self._n_max:
                told = f"bodies of yours that are not read yet take {n_others >> 20} MiB; try again later"
                raise Unavailable(told, retry_after_s=5)
            n_own += n_bytes
            self._n_bytes[tenant] += n_bytes

        try:
            yield add
        finally:
            self._n_bytes[tenant] -= n_own
            if not self._n_bytes[tenant]:
                del self._n_bytes[tenant]


@dataclass(frozen=True, slots=True)
class Lanes:
    """Of bodies from ``LONG_BYTES`` on one is read at a time: each may take seconds, and 100 times its size."""

    short: Lane = field(default_factory=lambda: Lane(N_SHORT))
    long: Lane = field(default_factory=lambda: Lane(1))
    unread: Bodies = field(default_factory=lambda: Bodies(MAX_UNREAD_BYTES))

    async def work(self, n_bytes: int, read: Callable[[], T], tenant: TenantId = NOBODY) -> T:
        """``read`` a body of this length on a worker thread, in its tenant's turn.

        Cancelled while it waits it is never read. A worker cannot be stopped: then its place is taken until it ends.
        """
        lane = self.short if n_bytes < LONG_BYTES else self.long
        await lane.acquire(tenant)
        reading = asyncio.get_running_loop().run_in_executor(None, read)
        reading.add_done_callback(lambda _: lane.release())
        return await asyncio.shield(reading)
