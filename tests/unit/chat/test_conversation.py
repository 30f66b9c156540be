"""Which last messages are continued."""

from __future__ import annotations

from typing import Any

import pytest

from corral.chat.conversation import Conversation, read_conversation
from corral.chat.messages import read_messages
from corral.errors import InvalidRequest

USER = {"role": "user", "content": "hi"}


def conversation(
    messages: list[dict[str, Any]], prefill: bool = True, final: Any = False, add: bool = True
) -> Conversation:
    return read_conversation(read_messages(messages), prefill=prefill, continue_final=final, add_generation_prompt=add)


def test_the_assistants_last_message_is_continued() -> None:
    read = conversation([USER, {"role": "assistant", "content": "Sure, "}])
    assert read.prefix == "Sure, " and read.messages == (USER,) and read.add_generation_prompt


def test_without_prefill_it_is_an_ordinary_message() -> None:
    assert conversation([USER, {"role": "assistant", "content": "Sure"}], prefill=False).continued is None


def test_thoughts_without_text_are_continued_as_thoughts() -> None:
    thought = {"role": "assistant", "reasoning_content": "hm"}
    assert conversation([USER, thought]).part == "reasoning_content"
    assert conversation([USER, {**thought, "content": "So"}]).part == "content"
    named = conversation([USER, {**thought, "content": "So"}], final="reasoning_content", add=False)
    assert named.part == "reasoning_content" and named.prefix == ""


def test_continuing_on_demand() -> None:
    messages: list[dict[str, Any]] = [USER, {"role": "assistant", "content": "Sure"}]
    assert conversation(messages, prefill=False, final=True, add=False).prefix == "Sure"
    with pytest.raises(InvalidRequest, match="Cannot set both"):
        conversation(messages, final=True, add=True)
    with pytest.raises(InvalidRequest, match="needs a last message"):
        conversation([USER], final=True, add=False)


def test_two_assistant_messages_at_the_end_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="2 or more assistant messages"):
        conversation([USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])


def test_a_message_that_calls_is_not_continued() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        conversation([USER, {"role": "assistant", "tool_calls": [call]}])
