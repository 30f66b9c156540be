"""The places of workers that read bodies: never more at work than there are, also when clients leave."""

from __future__ import annotations

import asyncio
import threading

from corral.api.lanes import LONG_BYTES, Lanes


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
