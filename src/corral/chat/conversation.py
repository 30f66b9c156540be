"""Whether a conversation is answered or its last message goes on, and at which part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from corral.chat.adapt import Message
from corral.errors import InvalidRequest

Part = Literal["content", "reasoning_content"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages before the reply. ``continued``: the message that the reply goes on with, at ``part``.

    ``is_named``: the request names the part, so that it is no use without it.
    """

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    continued: Message | None = None
    part: Part = "content"
    is_named: bool = True

    @property
    def prefix(self) -> str:
        """The text that the reply continues."""
        return str(self.continued["content"]) if self.continued and self.part == "content" else ""


def read_conversation(
    messages: Sequence[Message], *, prefill: bool, continue_final: bool | Part, add_generation_prompt: bool
) -> Conversation:
    """``prefill`` continues the last message whenever it is the assistant's. Raises InvalidRequest."""
    last = messages[-1]
    if continue_final and add_generation_prompt:
        raise InvalidRequest("Cannot set both add_generation_prompt and continue_final_message to true.")
    if continue_final and last["role"] != "assistant":
        raise InvalidRequest("continue_final_message needs a last message with role 'assistant'.")
    if last["role"] != "assistant" or not (prefill or continue_final):
        return Conversation(tuple(messages), add_generation_prompt)
    if len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise InvalidRequest("Cannot have 2 or more assistant messages at the end of the list.")
    if last.get("tool_calls"):
        raise InvalidRequest("A message with tool_calls cannot be continued.")
    part = _part(last, continue_final)
    return Conversation(tuple(messages[:-1]), True, last, part, is_named=isinstance(continue_final, str))


def _part(last: Message, asked: bool | Part) -> Part:
    if isinstance(asked, str):
        return asked
    return "reasoning_content" if last.get("reasoning_content") and not last["content"] else "content"
