"""Tools for templates that do not know of them: described in the system message, called in a format of ours."""

from __future__ import annotations

import json
from collections.abc import Sequence

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
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if written and written[-1].get("is_results"):
                written[-1]["content"] = f"{written[-1]['content']}\n{text}"
            else:
                written.append({"role": "user", "content": text, "is_results": True})
        elif message.get("tool_calls"):
            written.append({"role": message["role"], "content": _with_calls(message)})
        else:
            written.append(message)
    return [{key: value for key, value in message.items() if key != "is_results"} for message in written]


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
