"""Workloads of conversations: what a server computes again when they go on, go back, or begin alike."""

from __future__ import annotations

import asyncio
import time

from corral.bench.load import Stream
from corral.bench.report import Figures, summarise
from corral.bench.wire import Message
from corral.bench.workloads import Load

N_TURNS = 8
N_CONVERSATIONS = 24
N_ROUNDS = 3


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


async def chat(load: Load) -> Figures:
    """Each user chats for eight turns, to about 4,600 tokens; then the third question is asked differently.

    ``computed_per_token``: prompt tokens computed for each distinct one. ``back_n``: those computed after going back.
    """
    start_s = time.perf_counter()
    per_user = await asyncio.gather(*(_chat(load, user) for user in range(load.users)))
    wall_s = time.perf_counter() - start_s
    streams = [stream for turns, _ in per_user for stream in turns]
    n_computed = sum(stream.n_prompt - stream.n_cached for stream in streams)
    n_distinct = sum(turns[-1].n_prompt - sum(s.n_tokens for s in turns[:-1]) for turns, _ in per_user)
    back = [stream.n_prompt - stream.n_cached for _, stream in per_user]
    return summarise(streams, wall_s, computed_per_token=n_computed / max(1, n_distinct), back_n=max(back))


async def _chat(load: Load, user: int) -> tuple[list[Stream], Stream]:
    messages: list[Message] = []
    third: list[Message] = []
    turns: list[Stream] = []
    for turn in range(N_TURNS):
        if turn == 2:
            third = list(messages)
        messages.append(_user(load.text(545, "turn", turn, user)))
        turns.append(await load.client.stream(messages, 32))
        messages.append({"role": "assistant", "content": turns[-1].text})
    return turns, await load.client.stream([*third, _user(load.text(20, "instead", user))], 16)


async def system(load: Load) -> Figures:
    """All users ask at once under one system message of about 2,300 tokens."""
    message: Message = {"role": "system", "content": load.text(2200, "system")}
    start_s = time.perf_counter()
    streams = await load.all(lambda user: load.client.stream([message, _user(load.text(20, "ask", user))], 16))
    return summarise(streams, time.perf_counter() - start_s)


async def late(load: Load) -> Figures:
    """One chat runs; all users ask, one after the other, under its system message."""
    message: Message = {"role": "system", "content": load.text(2200, "late")}
    begun = asyncio.Event()
    asked = load.client.stream([message, _user(load.text(20, "first"))], 200, on_first=begun)
    running = asyncio.create_task(asked)
    await asyncio.wait({running, asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
    start_s = time.perf_counter()

    async def ask() -> Figures:
        prompts = [[message, _user(load.text(20, "late", user))] for user in range(load.users)]
        streams = [await load.client.stream(prompt, 8) for prompt in prompts]
        return summarise(streams, time.perf_counter() - start_s)

    figures, _ = await asyncio.gather(ask(), running)
    return figures


async def rounds(load: Load) -> Figures:
    """24 conversations of about 700 tokens go on in turn, as many at once as there are users, for three rounds."""
    histories = [f"{load.text(650, 'history', i)}" for i in range(N_CONVERSATIONS)]
    streams: list[Stream] = []
    n_repeated = n_cached = 0
    held = [0] * N_CONVERSATIONS
    start_s = time.perf_counter()
    for number in range(N_ROUNDS):
        for first in range(0, N_CONVERSATIONS, load.users):
            batch = range(first, min(first + load.users, N_CONVERSATIONS))
            prompts = [f"{histories[i]} Q: {load.text(15, number, i)} A:" for i in batch]
            replies = await asyncio.gather(*(load.client.stream(prompt, 16) for prompt in prompts))
            for i, prompt, reply in zip(batch, prompts, replies, strict=True):
                n_repeated += held[i]
                n_cached += min(held[i], reply.n_cached)
                held[i] = reply.n_prompt + reply.n_tokens - 1
                histories[i] = prompt + reply.text
            streams += replies
    share = n_cached / n_repeated if n_repeated else 0.0
    return summarise(streams, time.perf_counter() - start_s, repeat_cached_share=share)
