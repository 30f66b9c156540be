"""The messages of a chat request: checked, and brought into one form."""

from __future__ import annotations

from corral.chat.adapt import Message
from corral.errors import InvalidRequest

_MEDIA = {"image_url": "image", "input_audio": "audio", "input_video": "video", "video_url": "video"}
_FAULT = "Failed to parse messages:"
MAX_SHOWN = 80
"""Characters of a wrong text that a message repeats."""


def read_messages(value: object) -> list[Message]:
    """The list of messages, each with its content as text. Raises InvalidRequest."""
    if value is None:
        raise InvalidRequest("'messages' is required")
    if not isinstance(value, list):
        raise InvalidRequest("Expected 'messages' to be an array")
    if not value:
        raise InvalidRequest("'messages' must not be empty")
    return [_read_at(message, i) for i, message in enumerate(value)]


def _read_at(message: object, index: int) -> Message:
    """Faults have llama-server's words, and the place behind them."""
    try:
        return _read_message(message)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error} (messages[{index}])") from None


def _read_message(value: object) -> Message:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{_FAULT} each message must be an object")
    role = value.get("role")
    if not isinstance(role, str):
        raise InvalidRequest(f"{_FAULT} each message needs a 'role'")
    content = value.get("content")
    if "content" not in value and role != "assistant":
        raise InvalidRequest("All non-assistant messages must contain 'content'")
    if "content" not in value and not (value.get("tool_calls") or value.get("reasoning_content")):
        raise InvalidRequest("Assistant message must contain either 'content' or 'tool_calls'!")
    message = {key: item for key, item in value.items() if item is not None}
    message["content"] = _text(content, "\n\n" if role == "assistant" else "\n")
    if not isinstance(message.get("reasoning_content", ""), str):
        raise InvalidRequest(f"{_FAULT} 'reasoning_content' must be a string")
    calls = _read_calls(message.pop("tool_calls", None))
    return {**message, "tool_calls": calls} if calls else message


def _read_calls(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{_FAULT} 'tool_calls' must be an array")
    return [_read_call(call, i) for i, call in enumerate(value)]


def _read_call(call: object, index: int) -> object:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidRequest(f"{_FAULT} tool_calls[{index}] must be an object with a 'function'")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise InvalidRequest(f"{_FAULT} tool_calls[{index}].function needs a 'name'")
    if not isinstance(arguments, str | dict | None):
        raise InvalidRequest(f"{_FAULT} tool_calls[{index}].function.arguments must be a string or an object")
    return {**call, "type": "function", "function": {**function, "arguments": "" if arguments is None else arguments}}


def _text(content: object, joint: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidRequest("Expected 'content' to be a string or an array")
    return joint.join(_part(part, i) for i, part in enumerate(content))


def _part(part: object, index: int) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{_FAULT} each part of 'content' must be an object, but content[{index}] is not")
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        raise InvalidRequest(
            f"{_MEDIA[kind]} input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
        )
    text = part.get("text")
    if kind not in ("text", "input_text", "output_text"):
        raise InvalidRequest(f"unsupported content[].type: {str(kind)[:MAX_SHOWN]!r}, in content[{index}]")
    if not isinstance(text, str):
        raise InvalidRequest(f"{_FAULT} a text part needs a string as 'text', but content[{index}] has none")
    return text
