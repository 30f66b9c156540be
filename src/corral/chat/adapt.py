"""Messages in the form a template can take: what its capabilities lack is made up for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

MAX_PARTS = 100_000
"""In a text that is read as JSON: nobody else is served while it is read."""

Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template prints, found by rendering samples. Names are those of ``chat_template_caps``."""

    supports_string_content: bool = False
    supports_typed_content: bool = False
    supports_system_role: bool = False
    supports_tools: bool = False
    supports_tool_calls: bool = False
    supports_parallel_tool_calls: bool = False
    supports_object_arguments: bool = False
    supports_preserve_reasoning: bool = False
    supports_reasoning_effort: bool = False

    def as_json(self) -> dict[str, bool]:
        return asdict(self)


def adapt(messages: Sequence[Message], caps: Capabilities, takes_text_arguments: bool) -> list[Message]:
    """``takes_text_arguments``: arguments of calls may be a string."""
    adapted = [_with_arguments(message, caps.supports_object_arguments, takes_text_arguments) for message in messages]
    if not caps.supports_system_role:
        adapted = _merge_system(adapted)
    if not caps.supports_string_content and caps.supports_typed_content:
        adapted = [typed(message) for message in adapted]
    return adapted


def typed(message: Message) -> Message:
    """The message with its text as a list of one part."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _with_arguments(message: Message, takes_objects: bool, takes_text: bool) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_call(call, takes_objects, takes_text) for call in calls]}


def _call(call: object, takes_objects: bool, takes_text: bool) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if takes_objects and isinstance(arguments, str):
        arguments = _object(arguments, takes_text)
    elif not takes_objects and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def with_descriptions(tool: object) -> object:
    """A tool whose parameters all have a description: Command R+ prints them, whether there are any or not."""
    function = _object_in(tool, "function")
    parameters = _object_in(function, "parameters")
    members = _object_in(parameters, "properties")
    if not members or not isinstance(tool, dict):
        return tool
    described = {
        name: {"description": "", **member} if isinstance(member, dict) else member for name, member in members.items()
    }
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": described}}}


def _object_in(value: object, key: str) -> dict[str, object]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def parse_text(text: str) -> object:
    """The JSON in a text. Raises ValueError if it is none, or too much of it."""
    if text.count("{") + text.count("[") + text.count(":") > MAX_PARTS:
        raise ValueError(f"more than {MAX_PARTS} objects, arrays and members")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _object(text: str, takes_text: bool) -> object:
    """Arguments as an object. What a model left broken must not wedge the conversation: it is shown as it is."""
    try:
        value = parse_text(text or "{}")
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    return text if takes_text else {"arguments": text}


def _merge_system(messages: list[Message]) -> list[Message]:
    """System text goes in front of the next message's text, or into a user message of its own at the end."""
    merged: list[Message] = []
    held: list[str] = []
    for message in messages:
        if message["role"] == "system":
            held.append(str(message["content"]))
            continue
        if held and isinstance(message.get("content"), str):
            message = {**message, "content": "\n".join([*held, str(message["content"])])}
            held = []
        merged.append(message)
    return [*merged, {"role": "user", "content": "\n".join(held)}] if held else merged
