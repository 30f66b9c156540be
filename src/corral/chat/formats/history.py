"""Messages as the templates of some families want them, where that is not the usual form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.chat.adapt import Message, parse_text


def adjust_history(messages: Sequence[Message], source: str, format_name: str) -> list[Message]:
    """``source`` is the template's text."""
    if "<|channel|>" not in source:
        messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
    if "You have access to the following functions in JSONSchema format" in source:
        messages = [{**m, "content": str(m["content"]).strip()} for m in messages]
    adjust = _BY_FORMAT.get(format_name)
    return adjust(messages) if adjust else list(messages)


def _thinking_member(messages: Sequence[Message]) -> list[Message]:
    return [{**m, "thinking": m["reasoning_content"]} if m.get("reasoning_content") else m for m in messages]


def _harmony(messages: Sequence[Message]) -> list[Message]:
    """Thoughts and text beside calls would be two of the same channel."""
    return [
        {key: value for key, value in m.items() if key != "content"} if m.get("thinking") and m.get("tool_calls") else m
        for m in _thinking_member(messages)
    ]


def _thinking_parts(messages: Sequence[Message]) -> list[Message]:
    """Ministral: thoughts are a part of the content."""
    return [_parted(m) if m["role"] in ("system", "assistant") else m for m in messages]


def _parted(message: Message) -> Message:
    parts: list[object] = []
    if message.get("reasoning_content"):
        parts.append({"type": "thinking", "thinking": message["reasoning_content"]})
    if message["content"] or not parts:
        parts.append({"type": "text", "text": message["content"]})
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return {**rest, "content": parts}


def _tool_responses(messages: Sequence[Message]) -> list[Message]:
    """Gemma 4: results stand in the message that called, and so does the text that follows."""
    turned: list[Message] = []
    for message in messages:
        caller = turned[-1] if turned and turned[-1].get("tool_calls") else None
        if caller is not None and message["role"] == "tool" and not caller.get("content"):
            caller["tool_responses"] = responses = _list(caller.get("tool_responses"))
            responses.append(_response(message, caller))
        elif caller is not None and _is_text(message) and caller.get("tool_responses") and not caller.get("content"):
            caller["content"] = message["content"]
        elif message.get("tool_calls"):
            turned.append({**message, "content": ""})
        else:
            turned.append(message)
    return turned


def _is_text(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls") and bool(message["content"])


def _response(result: Message, caller: Message) -> object:
    calls, index = _list(caller["tool_calls"]), len(_list(caller.get("tool_responses")))
    call = calls[index] if index < len(calls) else None
    name = call["function"]["name"] if isinstance(call, dict) else result.get("tool_call_id", "")
    try:
        response = parse_text(str(result["content"]))
    except ValueError:
        response = result["content"]
    return {"name": name, "response": response}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


_BY_FORMAT: dict[str, Callable[[Sequence[Message]], list[Message]]] = {
    "gpt-oss": _harmony,
    "llm-jp-harmony": _harmony,
    "lfm2": _thinking_member,
    "lfm2.5": _thinking_member,
    "ministral-3": _thinking_parts,
    "gemma-4": _tool_responses,
}
