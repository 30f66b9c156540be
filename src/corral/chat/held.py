"""What the reply to a conversation is held to: what was asked for, behind its thoughts, or what its tools need."""

from __future__ import annotations

from dataclasses import replace

from corral.chat.jobs import ChatModel, ChatRequest, Rendered
from corral.errors import InvalidRequest
from corral.tasks import Constraint, ConstraintKind, Sampling


def held(
    sampling: Sampling, model: ChatModel, request: ChatRequest, rendered: Rendered, default: Constraint | None = None
) -> Sampling:
    """``sampling`` with its constraint as it acts on the reply; ``default``: what gives way to tools.

    A schema goes with tools: the reply is calls, or an answer that fits it. Raises InvalidRequest for other two things
    at once, and for tools that cannot be held.
    """
    own = sampling.constraint
    is_reply = own is not None and own.kind is ConstraintKind.JSON_SCHEMA and not own.triggers
    for_tools = model.constraint(rendered, request, own if is_reply else None)
    if for_tools is None:
        if own is None:
            return _freed(sampling, model, rendered)
        return replace(sampling, constraint=model.answer(own, rendered))
    if own is not None and not is_reply and own != default:
        raise InvalidRequest(f"Cannot use {own.kind} with tools that may be called; a response_format goes with them")
    return replace(sampling, constraint=for_tools)


def _freed(sampling: Sampling, model: ChatModel, rendered: Rendered) -> Sampling:
    """A grammar leaves thoughts alone, too, unless it speaks of their marks: then it is about them."""
    thinking = rendered.format.thinking
    if not sampling.grammar or (thinking and any(end in sampling.grammar for end in thinking.ends)):
        return sampling
    whole = Constraint(ConstraintKind.GBNF, sampling.grammar)
    constraint = model.answer(whole, rendered)
    return sampling if constraint == whole else replace(sampling, grammar="", constraint=constraint)
