"""Items of a Responses conversation, as messages of a chat."""

from __future__ import annotations

from corral.api.schemas.fields import Json, member_object, wrong_type
from corral.errors import InvalidRequest

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_IMAGE = "input_image"
CALL_PREFIX = "call_"
"""Before the ids of calls in Responses."""


def with_instructions(instructions: str, messages: list[Json]) -> list[Json]:
    """Instructions and the system messages at the head become one: templates take no more."""
    texts = [instructions] if instructions else []
    n = 0
    while n < len(messages) and messages[n]["role"] == "system":
        texts.append(str(messages[n]["content"]))
        n += 1
    head: list[Json] = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    return [*head, *messages[n:]]


def read_items(items: list[Json]) -> list[Json]:
    """What the assistant thought, said and called in a row is one message. Raises InvalidRequest."""
    messages = _Messages()
    for i, item in enumerate(items):
        messages.add(item, f"input.{i}")
    return messages.done()


class _Messages:
    def __init__(self) -> None:
        self._done: list[Json] = []
        self._own: Json = {}

    def done(self) -> list[Json]:
        if self._own:
            self._done.append({"role": "assistant", "content": "", **self._own})
            self._own = {}
        return self._done

    def add(self, item: Json, where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._add_message(item, where)
            case "reasoning":
                self._add_thoughts(item, where)
            case "function_call":
                calls = self._own.setdefault("tool_calls", [])
                assert isinstance(calls, list)
                calls.append(_call(item, where))
            case "function_call_output":
                content = _content(item.get("output"), f"{where}.output")
                call_id = _call_id(item, where)
                self.done().append({"role": "tool", "tool_call_id": call_id, "content": content})
            case kind:
                raise InvalidRequest(f"Field '{where}': items of type {kind!r} are not supported")

    def _add_message(self, item: Json, where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidRequest(f"Field '{where}.role': must be one of {', '.join(_ROLES)}")
        content = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.done().append({"role": _ROLES[role], "content": content})
            return
        if "content" in self._own:
            self.done()
        self._own["content"] = content

    def _add_thoughts(self, item: Json, where: str) -> None:
        parts = item.get("content") or item.get("summary") or []
        thoughts = _content(parts, f"{where}.content")
        if "content" in self._own or "tool_calls" in self._own:
            self.done()
        if thoughts:
            self._own["reasoning_content"] = thoughts


def _content(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(where, "string or array", value)
    texts = [_part(member_object(part, f"{where}.{i}"), f"{where}.{i}") for i, part in enumerate(value)]
    return "\n\n".join(texts)


def _part(part: Json, where: str) -> str:
    kind = part.get("type")
    if kind == _IMAGE:
        raise InvalidRequest(f"Field '{where}': image input is not supported")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind not in (*_TEXTS, "refusal") or not isinstance(text, str):
        raise InvalidRequest(f"Field '{where}': only parts of text are supported, but its type is {kind!r}")
    return text


def _call(item: Json, where: str) -> Json:
    function = {"name": _text(item, "name", where), "arguments": _text(item, "arguments", where)}
    return {"type": "function", "id": _call_id(item, where), "function": function}


def _call_id(item: Json, where: str) -> str:
    """As the model knows it: replies put a prefix before it."""
    return _text(item, "call_id", where).removeprefix(CALL_PREFIX)


def _text(item: Json, key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise wrong_type(f"{where}.{key}", "string", value)
    return value
