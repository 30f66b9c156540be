"""Messages in the form that a template takes."""

from __future__ import annotations

import pytest

from corral.chat.adapt import MAX_PARTS, Capabilities, Message, adapt, parse_text

OBJECTS = Capabilities(True, True, True, supports_object_arguments=True)


def arguments_of(text: str) -> object:
    call = {"type": "function", "function": {"name": "f", "arguments": text}}
    message: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    (adapted,) = adapt([message], OBJECTS, True)
    return adapted["tool_calls"][0]["function"]["arguments"]  # type: ignore[index]


def test_arguments_become_an_object_where_they_are_one() -> None:
    assert arguments_of('{"a": [1]}') == {"a": [1]}
    assert arguments_of("") == {}
    assert arguments_of("[1]") == "[1]"
    assert arguments_of('{"a": ') == '{"a": '


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_what_is_nested_too_deep_stays_text(text: str) -> None:
    assert arguments_of(text) == text


def test_what_would_take_long_to_read_stays_text() -> None:
    most = '{"a": [' + ",".join(["[]"] * (MAX_PARTS - 3)) + "]}"
    assert arguments_of(most) == {"a": [[]] * (MAX_PARTS - 3)}
    more = '{"a": [' + ",".join(["[]"] * (MAX_PARTS - 2)) + "]}"
    assert arguments_of(more) == more
    with pytest.raises(ValueError, match="100000"):
        parse_text(more)
