"""What a prompt was completed with."""

from __future__ import annotations

from dataclasses import dataclass

from corral.chat.deltas import Reply
from corral.events import Finished, StopReason, Timings, TokenProbs
from corral.ids import Token


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice for one prompt: ``prompt_index`` counts prompts, ``index`` the choices of a prompt, both from 0.

    ``finish_reason``: "stop" (end of generation or a stop string), "length", or "tool_calls" where calls of tools came.
    ``prompt_logprobs``: of each token of the prompt but the first, if they were asked for. ``reply``: of a
    conversation, its thoughts, text and calls; ``text`` is all that the model wrote.
    """

    prompt_index: int
    index: int
    text: str
    tokens: tuple[Token, ...]
    finish_reason: str
    logprobs: tuple[TokenProbs, ...]
    timings: Timings
    prompt_logprobs: tuple[TokenProbs, ...] = ()
    reply: Reply | None = None


def completion(prompt_index: int, index: int, end: Finished, parent: Finished, reply: Reply | None) -> Completion:
    """``parent``: the first choice for the same prompt, which computed it."""
    reason = "stop" if end.reason in (StopReason.EOS, StopReason.WORD) else "length"
    if reason == "stop" and reply is not None and reply.calls:
        reason = "tool_calls"
    return Completion(
        prompt_index, index, end.text, end.tokens, reason, end.probs, end.timings, parent.prompt_probs, reply
    )
