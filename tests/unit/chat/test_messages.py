"""Messages: what is accepted, what is refused and in which words."""

from __future__ import annotations

import pytest

from corral.chat.messages import read_messages
from corral.errors import InvalidRequest


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
        (
            [{"role": "user", "content": [{"type": "hologram"}]}],
            r"unsupported content\[\]\.type: 'hologram', in content\[0\]",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], r"a text part needs a string as 'text', but content\[0\]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image input is not supported"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "audio input is not supported"),
        ([{"role": "assistant", "content": "x", "reasoning_content": 5}], "'reasoning_content' must be a string"),
        ([{"role": "assistant", "tool_calls": {"a": 1}}], "'tool_calls' must be an array"),
        ([{"role": "assistant", "tool_calls": [1]}], r"tool_calls\[0\] must be an object with a 'function'"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], r"tool_calls\[0\].function needs a 'name'"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
            "arguments must be a string or an object",
        ),
    ],
)
def test_refusals(messages: object, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read_messages(messages)


@pytest.mark.parametrize("wrong", [5, {"role": "user"}, {"role": "user", "content": 5}, {"content": "x"}])
def test_a_refusal_names_the_place(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match=r"\(messages\[2\]\)$"):
        read_messages([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, wrong])


def test_text_parts_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_messages([{"role": "user", "content": parts}])[0]["content"] == "a\nb"


def test_calls_and_thoughts_of_the_history() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    assert read_messages([message]) == [{**message, "content": ""}]
    assert "tool_calls" not in read_messages([{"role": "assistant", "content": "x", "tool_calls": None}])[0]


@pytest.mark.parametrize("role", ["user", "tool", "system", "assistant"])
def test_content_that_is_null_is_empty(role: str) -> None:
    """As in llama-server, where only content that is missing is a fault."""
    assert read_messages([{"role": role, "content": None, "tool_calls": []}]) == [{"role": role, "content": ""}]
