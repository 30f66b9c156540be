"""The places of workers that read bodies: never more at work than there are, also when clients leave."""

from __future__ import annotations

import asyncio
import threading

from corral.api.lanes import LONG_BYTES, Lane, Lanes
from corral.ids import TenantId


def test_a_worker_whose_client_left_keeps_its_place_until_it_ends() -> None:
    begun, go_on, read = threading.Event(), threading.Event(), []

    def wait() -> None:
        begun.set()
        assert go_on.wait(20)
        read.append("left")

    async def main() -> None:
        lanes = Lanes()
        left = asyncio.create_task(lanes.work(LONG_BYTES, wait))
        assert await asyncio.to_thread(begun.wait, 30)
        left.cancel()
        await asyncio.wait([left])
        waiting = asyncio.create_task(lanes.work(LONG_BYTES, lambda: read.append("next")))
        dropped = asyncio.create_task(lanes.work(LONG_BYTES, lambda: read.append("dropped")))
        assert await lanes.work(LONG_BYTES - 1, lambda: "short") == "short"
        assert not waiting.done()
        dropped.cancel()
        go_on.set()
        await waiting

    asyncio.run(main())
    assert read == ["left", "next"]


def test_an_error_frees_the_place() -> None:
    async def main() -> None:
        lanes = Lanes()
        for _ in range(3):
            results = await asyncio.gather(lanes.work(LONG_BYTES, lambda: 1 // 0), return_exceptions=True)
            assert isinstance(results[0], ZeroDivisionError)
        assert await lanes.work(LONG_BYTES, lambda: 5) == 5

    asyncio.run(main())


def test_tenants_take_turns() -> None:
    begun, go_on, read = threading.Event(), threading.Event(), []

    def wait() -> None:
        begun.set()
        assert go_on.wait(20)

    async def main() -> None:
        lanes = Lanes()

        def ask(tenant: str, n: int) -> asyncio.Task[None]:
            return asyncio.create_task(lanes.work(LONG_BYTES, lambda: read.append(f"{tenant}{n}"), TenantId(tenant)))

        first = asyncio.create_task(lanes.work(LONG_BYTES, wait, TenantId("a")))
        assert await asyncio.to_thread(begun.wait, 30)
        asked = [*(ask("a", i) for i in range(3)), ask("b", 0), ask("b", 1), ask("c", 0)]
        await asyncio.sleep(0)
        asked[1].cancel()
        await asyncio.wait([asked[1]])
        go_on.set()
        await asyncio.gather(first, *asked, return_exceptions=True)

    asyncio.run(main())
    assert read == ["a0", "b0", "c0", "b1", "a2"]


def test_a_place_that_is_given_to_one_who_leaves_goes_to_the_next() -> None:
    async def main() -> None:
        lane = Lane(1)
        await lane.acquire(TenantId("a"))
        left, waits = (asyncio.create_task(lane.acquire(TenantId(t))) for t in "ab")
        await asyncio.sleep(0)
        lane.release()
        left.cancel()
        await asyncio.wait_for(waits, 20)
        assert left.cancelled()

    asyncio.run(main())
