"""Tools for templates that do not know of them: described in the system message, called in a format of ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

from corral.chat.schema import Json
from corral.chat.template import Message


def describe_tools(messages: Sequence[Message], definitions: Sequence[Json]) -> list[Message]:
    """The messages with a system message that tells of the tools and of how they are called."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in definitions)
    text = (
        f"You may call functions. These are given, one a line, as JSON:\n{lines}\n\n"
        "To call a function, write its name and arguments as JSON between these marks, once for each call:\n"
        '<tool_call>\n{"name": "function name", "arguments": {"argument": "value"}}\n</tool_call>'
    )
    first = messages[0] if messages else None
    if first is not None and first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def write_out_calls(messages: Sequence[Message]) -> list[Message]:
    """Calls and their results as text, for templates that print neither. Results in a row become one message."""
    written: list[Message] = []
    for is_result, row in groupby(messages, lambda message: message["role"] == "tool"):
        if is_result:
            results = (f"<tool_response>\n{message['content']}\n</tool_response>" for message in row)
            written.append({"role": "user", "content": "\n".join(results)})
        else:
            written += (_written(message) for message in row)
    return written


def _written(message: Message) -> Message:
    return {"role": message["role"], "content": _with_calls(message)} if message.get("tool_calls") else message


def _with_calls(message: Message) -> str:
    calls = message["tool_calls"]
    assert isinstance(calls, list)
    parts = [str(message["content"])] if message["content"] else []
    for call in calls:
        function = call["function"]
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        parts.append(f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {text}}}\n</tool_call>')
    return "\n".join(parts)
