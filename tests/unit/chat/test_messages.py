"""Messages: what is accepted, what is refused and in which words."""

from __future__ import annotations

import pytest

from corral.chat.messages import read_conversation, read_messages
from corral.chat.template import ChatTemplate
from corral.errors import InvalidRequest

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (None, "'messages' is required"),
        ("hi", "Expected 'messages' to be an array"),
        ([], "must not be empty"),
        ([1], "each message must be an object"),
        ([{"content": "x"}], "needs a 'role'"),
        ([{"role": "user"}], "All non-assistant messages must contain 'content'"),
        ([{"role": "assistant"}], "must contain either 'content' or 'tool_calls'"),
        ([{"role": "user", "content": 5}], "Expected 'content' to be a string or an array"),
        ([{"role": "user", "content": ["x"]}], "each part of 'content' must be an object"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], r"unsupported content\[\]\.type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a text part needs 'text'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image input is not supported"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "audio input is not supported"),
    ],
)
def test_refusals(messages: object, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read_messages(messages)


def test_text_parts_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_messages([{"role": "user", "content": parts}])[0]["content"] == "a\nb"


def test_developer_is_system() -> None:
    assert read_messages([{"role": "developer", "content": "x"}])[0]["role"] == "system"


def conversation(messages: list[dict[str, object]], prefill: bool = True, final: bool = False, add: bool = True) -> str:
    read = read_conversation(read_messages(messages), prefill=prefill, continue_final=final, add_generation_prompt=add)
    return read.render(ChatTemplate("chatml", "", ""), {})


def test_the_assistants_last_message_is_continued() -> None:
    text = conversation([USER, {"role": "assistant", "content": "Sure, "}])
    assert text.endswith("<|im_start|>assistant\nSure, ")


def test_without_prefill_it_is_an_ordinary_message() -> None:
    text = conversation([USER, {"role": "assistant", "content": "Sure"}], prefill=False)
    assert text.endswith("<|im_start|>assistant\nSure<|im_end|>\n<|im_start|>assistant\n")


def test_continuing_on_demand() -> None:
    messages: list[dict[str, object]] = [USER, {"role": "assistant", "content": "Sure"}]
    assert conversation(messages, prefill=False, final=True, add=False).endswith("assistant\nSure")
    with pytest.raises(InvalidRequest, match="Cannot set both"):
        conversation(messages, final=True, add=True)
    with pytest.raises(InvalidRequest, match="needs a last message"):
        conversation([USER], final=True, add=False)


def test_two_assistant_messages_at_the_end_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="2 or more assistant messages"):
        conversation([USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])
