"""The names of the workloads, with the figures that count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from corral.bench import chats
from corral.bench.report import Figures
from corral.bench.workloads import (
    Load,
    abort,
    aged,
    busy,
    decode,
    fork,
    mixed,
    poisson,
    sampled,
    schema,
    shared,
    turns,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """``headline`` are the figures that count. ``n_slots(users)`` is what a server should have for it.

    ``fresh``: the server must have just started. ``api``: the wire it is asked over unless told otherwise.
    """

    name: str
    help: str
    run: Callable[[Load], Awaitable[Figures]]
    headline: tuple[str, ...]
    n_slots: Callable[[int], int] = lambda users: max(4, users)
    fresh: bool = False
    api: str = "native"


def _and(n_more: int) -> Callable[[int], int]:
    return lambda users: max(4, users + n_more)


WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("decode", "short unique prompts, 64 tokens each", decode, ("gen_tok_s",)),
        Workload("sampled", "decode with temperature, top-k, top-p, min-p", sampled, ("gen_tok_s",)),
        Workload("aged", "decode after 24 other conversations", aged, ("aged_ratio", "gen_tok_s"), fresh=True),
        Workload("shared", "one cold prompt of about 800 tokens in common", shared, ("wall_s",)),
        Workload(
            "turns",
            "four interleaved turns of more users than slots",
            turns,
            ("wall_s", "ttft_p50_ms"),
            lambda users: max(1, users // 2),
        ),
        Workload(
            "mixed", "long prompts arrive beside two streams", mixed, ("itl_p99_ms", "long_ttft_mean_ms"), _and(2)
        ),
        Workload("schema", "free text, then under a JSON schema", schema, ("itl_ratio", "parsed")),
        Workload("busy", "the prefix of a running stream, asked by others", busy, ("ttft_p50_ms",), _and(1)),
        Workload(
            "abort", "clients vanish beside a running stream", abort, ("itl_max_ms", "slots_busy", "aborted"), _and(1)
        ),
        Workload("fork", "one request for as many choices as users", fork, ("wall_s", "gen_tok_s")),
        Workload(
            "chat",
            "a chat of eight turns, then another third turn",
            chats.chat,
            ("computed_per_token", "back_n"),
            api="chat",
        ),
        Workload("system", "one long system message, all at once", chats.system, ("wall_s",), api="chat"),
        Workload(
            "late",
            "the system message of a running chat, asked by others",
            chats.late,
            ("ttft_p50_ms",),
            _and(1),
            api="chat",
        ),
        Workload(
            "rounds", "three rounds of 24 conversations", chats.rounds, ("repeat_cached_share", "wall_s"), fresh=True
        ),
        Workload("poisson", "random arrivals, some with a shared prefix", poisson, ("goodput_req_s", "good_share")),
    )
}
