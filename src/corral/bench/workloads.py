"""The workloads: what many users do at once, and the figures that tell how a server coped."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import orjson

from corral.bench.load import BenchError, Client, RequestFailed, Sleep, Stream
from corral.bench.report import Figures, percentile, summarise
from corral.bench.text import words


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the open-loop workload ``poisson``.

    ``rate_s``: arrivals a second. ``n_requests`` 0 means eight for each user. ``prefix_share``: the part of requests,
    0 to 1, that begin with one of four shared prefixes. A request is good within both limits; a request's gap is the
    99th percentile of its own.
    """

    rate_s: float = 2.0
    n_requests: int = 0
    prefix_share: float = 0.5
    ttft_limit_ms: float = 2000.0
    itl_limit_ms: float = 250.0


@dataclass(frozen=True, slots=True)
class Load:
    """Users of one server. The same ``seed`` gives the same prompts."""

    client: Client
    users: int
    seed: int
    options: Options = field(default_factory=Options)
    sleep: Sleep = asyncio.sleep

    def text(self, n_words: int, *labels: object) -> str:
        return words(n_words, self.seed, *labels)

    async def all(self, ask: Callable[[int], Awaitable[Stream]]) -> list[Stream]:
        """``ask(user)`` for all users at once."""
        return list(await asyncio.gather(*(ask(user) for user in range(self.users))))


SAMPLED: Mapping[str, object] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


async def decode(load: Load) -> Figures:
    return await _decode(load, "decode")


async def _decode(load: Load, label: str) -> Figures:
    start_s = time.perf_counter()
    streams = await load.all(lambda user: load.client.stream(load.text(24, label, user), 64))
    return summarise(streams, time.perf_counter() - start_s)


async def sampled(load: Load) -> Figures:
    start_s = time.perf_counter()
    streams = await load.all(
        lambda user: load.client.stream(load.text(24, "sampled", user), 64, {**SAMPLED, "seed": user + 1})
    )
    return summarise(streams, time.perf_counter() - start_s)


async def aged(load: Load) -> Figures:
    fresh = await _decode(load, "fresh")
    for first in range(0, 24, 4):
        others = (load.client.stream(load.text(250, "other", first + i), 4) for i in range(4))
        await asyncio.gather(*others)
    figures = await _decode(load, "aged")
    fresh_tok_s, aged_tok_s = float(fresh["gen_tok_s"]), float(figures["gen_tok_s"])
    return {**figures, "fresh_tok_s": fresh_tok_s, "aged_ratio": round(aged_tok_s / fresh_tok_s, 3)}


async def shared(load: Load) -> Figures:
    prefix = load.text(800, "prefix")
    start_s = time.perf_counter()
    streams = await load.all(lambda user: load.client.stream(_question(load, prefix, user), 16))
    return summarise(streams, time.perf_counter() - start_s)


def _question(load: Load, prefix: str, label: object) -> str:
    return f"{prefix} QUESTION {load.text(20, 'question', label)}"


async def turns(load: Load) -> Figures:
    histories = [load.text(150, "history", user) for user in range(load.users)]
    streams: list[Stream] = []
    start_s = time.perf_counter()
    for turn in range(4):
        prompts = [f"{history} Q: {load.text(15, turn, user)} A:" for user, history in enumerate(histories)]
        replies = await asyncio.gather(*(load.client.stream(prompt, 16) for prompt in prompts))
        histories = [prompt + reply.text for prompt, reply in zip(prompts, replies, strict=True)]
        streams += replies
    return summarise(streams, time.perf_counter() - start_s)


async def mixed(load: Load) -> Figures:
    running = [asyncio.create_task(load.client.stream(load.text(24, "running", i), 160)) for i in range(2)]
    await load.sleep(1.0)
    start_s = time.perf_counter()
    arrived = []
    for user in range(load.users):
        arrived.append(asyncio.create_task(load.client.stream(load.text(1200, "long", user), 4)))
        await load.sleep(0.5)
    streams = await asyncio.gather(*running, *arrived)  # together, so that a second failure is not told apart
    streams, long = streams[: len(running)], streams[len(running) :]
    wall_s = time.perf_counter() - start_s
    return summarise(streams, wall_s, long_ttft_mean_ms=sum(stream.ttft_ms for stream in long) / len(long))


SCHEMA: Mapping[str, object] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["title", "kind", "tags", "author"],
    "properties": {
        "title": {"type": "string", "maxLength": 60},
        "kind": {"enum": ["report", "letter", "story"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "minItems": 2, "maxItems": 5},
        "author": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name", "age"],
            "properties": {
                "name": {"type": "string", "maxLength": 30},
                "age": {"type": "integer", "minimum": 1, "maximum": 120},
            },
        },
    },
}


async def schema(load: Load) -> Figures:
    prompts = ["Describe a document as JSON. " + load.text(20, "schema", user) for user in range(load.users)]
    start_s = time.perf_counter()
    free = await load.all(lambda user: load.client.stream(prompts[user], 96))
    middle_s = time.perf_counter()
    fixed = {"json_schema": SCHEMA, "ignore_eos": False, "temperature": 0.8}
    bound = await load.all(lambda user: load.client.stream(prompts[user], 96, {**fixed, "seed": user + 1}))
    wall_s = time.perf_counter() - middle_s
    return summarise(
        bound,
        wall_s,
        free_tok_s=sum(stream.n_tokens for stream in free) / (middle_s - start_s),
        schema_tok_s=sum(stream.n_tokens for stream in bound) / wall_s,
        itl_ratio=_ratio(_median_gap(free), _median_gap(bound)),
        parsed=sum(_is_json(stream.text) for stream in bound),
    )


def _median_gap(streams: list[Stream]) -> float | None:
    return percentile((gap for stream in streams for gap in stream.gaps_ms), 50)


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


async def busy(load: Load) -> Figures:
    prefix = load.text(800, "prefix")
    begun = asyncio.Event()
    running = asyncio.create_task(load.client.stream(_question(load, prefix, "first"), 400, on_first=begun))
    try:
        await _begun(running, begun)
        start_s = time.perf_counter()
        streams = await load.all(lambda user: load.client.stream(_question(load, prefix, user), 16))
        return summarise(streams, time.perf_counter() - start_s)
    finally:
        await _leave(running)


async def _begun(running: asyncio.Task[Stream], begun: asyncio.Event) -> None:
    """Wait for the first text of a stream, or for its failure."""
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait([waiting, running], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not begun.is_set():
        running.result()
        raise BenchError("the running stream ended without any text")


async def _leave(task: asyncio.Task[Stream]) -> bool:
    """Break a stream off as a client does that closes its connection. False: it had ended before. Raises as it did."""
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled() or not task.result()


async def abort(load: Load) -> Figures:
    draw = random.Random(f"{load.seed}/abort")
    begun = asyncio.Event()
    running = asyncio.create_task(load.client.stream(load.text(24, "running"), 256, on_first=begun))
    await _begun(running, begun)
    start_s = time.perf_counter()

    async def visitor(user: int) -> int:
        n_aborted = 0
        for visit in range(4):
            prompt = load.text(draw.choice((24, 400)), "visitor", user, visit)
            task = asyncio.create_task(load.client.stream(prompt, 256))
            await load.sleep(draw.uniform(0.0, 1.0))
            n_aborted += await _leave(task)
        return n_aborted

    visits = asyncio.gather(*(visitor(user) for user in range(load.users)))
    stream, n_each = await asyncio.gather(running, visits)
    end_s = time.perf_counter()
    n_busy = await load.client.settle(sleep=load.sleep)
    free_ms = None if n_busy is None else (time.perf_counter() - end_s) * 1e3
    return summarise([stream], end_s - start_s, aborted=sum(n_each), slots_busy=n_busy, slots_free_ms=free_ms)


async def fork(load: Load) -> Figures:
    start_s = time.perf_counter()
    streams = await load.client.fork(load.text(400, "fork"), 32, load.users, {**SAMPLED, "seed": 1})
    return summarise(streams, time.perf_counter() - start_s, choices=sum(bool(stream.text) for stream in streams))


async def poisson(load: Load) -> Figures:
    options = load.options
    draw = random.Random(f"{load.seed}/poisson")
    n_requests = options.n_requests or 8 * load.users
    start_s = time.perf_counter()
    asked = []
    for i in range(n_requests):
        head = load.text(300, "prefix", draw.randrange(4)) if draw.random() < options.prefix_share else ""
        asked.append(asyncio.create_task(load.client.stream(_question(load, head, i), 32)))
        await load.sleep(draw.expovariate(options.rate_s))
    offered_s = time.perf_counter() - start_s
    results = await asyncio.gather(*asked, return_exceptions=True)
    wall_s = time.perf_counter() - start_s
    streams = [_served(result) for result in results if not isinstance(result, RequestFailed)]
    n_good = sum(_is_good(stream, options) for stream in streams)
    return summarise(
        streams,
        wall_s,
        offered_req_s=n_requests / offered_s,
        goodput_req_s=n_good / wall_s,
        good_share=n_good / n_requests,
        failed=n_requests - len(streams),
    )


def _served(result: Stream | BaseException) -> Stream:
    if isinstance(result, BaseException):
        raise result
    return result


def _is_good(stream: Stream, options: Options) -> bool:
    worst_ms = percentile(stream.gaps_ms, 99) or 0.0
    return stream.ttft_ms <= options.ttft_limit_ms and worst_ms <= options.itl_limit_ms
