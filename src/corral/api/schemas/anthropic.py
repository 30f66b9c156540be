"""The body of a Messages request, as the chat request that it stands for."""

from __future__ import annotations

import re

import orjson

from corral.api.schemas.chat import CHAT_ONLY
from corral.api.schemas.fields import Fields, Json, member_object, wrong_type
from corral.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 4096
DEFAULT_BUDGET = 10000
"""Tokens of thoughts that are switched on without a number."""

_CHANGING = re.compile(r"\bcch=[^;\s]*")
_BILLING = "x-anthropic-billing-header"
"""Clients put a header of this name into the system text; its ``cch`` changes with each request."""

_NAMES = """
model system messages tools tool_choice stop_sequences max_tokens thinking output_config output_format metadata
"""
_REPLACED = CHAT_ONLY.union(_NAMES.split())
_KINDS = {"auto": "auto", "any": "required", "none": "none"}


def read_messages_body(fields: Fields) -> Fields:
    """The same in OpenAI's chat form; sampling fields stay as they are. Raises InvalidRequest."""
    body = fields.without(_REPLACED)
    body["messages"] = [*_system(fields.value("system")), *_messages(fields)]
    body["max_tokens"] = fields.integer("max_tokens", default=DEFAULT_MAX_TOKENS, low=1)
    if stop := fields.strings("stop_sequences"):
        body["stop"] = list(stop)
    if tools := fields.objects("tools"):
        body["tools"] = [_tool(tool, f"tools.{i}") for i, tool in enumerate(tools)]
    _set_choice(body, fields)
    _set_thinking(body, fields)
    _set_format(body, fields)
    return Fields(body)


def _system(value: object) -> list[Json]:
    if value is None:
        return []
    if isinstance(value, list):
        value = "\n\n".join(_text_block(block, f"system.{i}") for i, block in enumerate(value))
    if not isinstance(value, str):
        raise wrong_type("system", "string or array", value)
    if _BILLING in value:
        value = _CHANGING.sub("cch=0", value)
    return [{"role": "system", "content": value}] if value else []


def _text_block(value: object, where: str) -> str:
    block = member_object(value, where)
    text = block.get("text")
    if block.get("type") != "text" or not isinstance(text, str):
        raise InvalidRequest(f"Field '{where}': only blocks of type 'text' with a 'text' are supported here")
    return text


def _messages(fields: Fields) -> list[Json]:
    messages = fields.objects("messages")
    if not messages:
        raise InvalidRequest("Field 'messages': at least one message is required")
    return [chat for i, message in enumerate(messages) for chat in _message(message, f"messages.{i}")]


def _message(message: Json, where: str) -> list[Json]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequest(f"Field '{where}.role': must be 'user' or 'assistant'")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise wrong_type(f"{where}.content", "string or array", content)
    blocks = [member_object(block, f"{where}.content.{i}") for i, block in enumerate(content)]
    return _of_assistant(blocks, where) if role == "assistant" else _of_user(str(role), blocks, where)


def _of_user(role: str, blocks: list[Json], where: str) -> list[Json]:
    """Results of tools are messages of their own, in the order of the blocks."""
    messages: list[Json] = []
    parts: list[Json] = []
    for i, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts.append(_part(block, f"{where}.content.{i}"))
            continue
        if parts:
            messages.append({"role": role, "content": parts})
            parts = []
        messages.append(_tool_result(block, f"{where}.content.{i}"))
    return [*messages, {"role": role, "content": parts}] if parts or not messages else messages


def _part(block: Json, where: str) -> Json:
    if block.get("type") == "image":
        return {"type": "image_url"}
    return {"type": "text", "text": _text_block(block, where)}


def _tool_result(block: Json, where: str) -> Json:
    content = block.get("content")
    if isinstance(content, list):
        content = [_part(member_object(part, f"{where}.content.{i}"), where) for i, part in enumerate(content)]
    elif content is not None and not isinstance(content, str):
        raise wrong_type(f"{where}.content", "string or array", content)
    return {"role": "tool", "tool_call_id": _name(block, "tool_use_id", where), "content": content or ""}


def _of_assistant(blocks: list[Json], where: str) -> list[Json]:
    parts: list[Json] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for i, block in enumerate(blocks):
        at = f"{where}.content.{i}"
        match block.get("type"):
            case "thinking":
                thoughts.append(Fields(block, at).text("thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block, at))
            case _:
                parts.append(_part(block, at))
    message: Json = {"role": "assistant", "content": parts or ""}
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _call(block: Json, where: str) -> Json:
    arguments = block.get("input")
    if arguments is not None and not isinstance(arguments, dict):
        raise wrong_type(f"{where}.input", "object", arguments)
    function = {"name": _name(block, "name", where), "arguments": orjson.dumps(arguments or {}).decode()}
    return {"type": "function", "id": _name(block, "id", where), "function": function}


def _name(block: Json, key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise wrong_type(f"{where}.{key}", "string", value)
    return value


def _tool(tool: Json, where: str) -> Json:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(
            f"Field '{where}': tools of type {kind!r} run on Anthropic's servers and do not exist here"
        )
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
        **({"strict": True} if tool.get("strict") is True else {}),
    }
    return {"type": "function", "function": function}


def _set_choice(body: Json, fields: Fields) -> None:
    choice = fields.object("tool_choice")
    if choice is None:
        return
    kind = choice.get("type")
    if kind == "tool":
        body["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in _KINDS:
        body["tool_choice"] = _KINDS[kind]
    else:
        raise InvalidRequest("Field 'tool_choice.type': must be 'auto', 'any', 'tool' or 'none'")
    if Fields(choice, "tool_choice").boolean("disable_parallel_tool_use"):
        body["parallel_tool_calls"] = False


def _set_thinking(body: Json, fields: Fields) -> None:
    """Whether the model thinks, and how long."""
    thinking = fields.object("thinking")
    if thinking is None:
        return
    kind = thinking.get("type")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise InvalidRequest("Field 'thinking.type': must be 'enabled', 'disabled' or 'adaptive'")
    kwargs = fields.object("chat_template_kwargs") or {}
    body["chat_template_kwargs"] = {"enable_thinking": kind != "disabled", **kwargs}
    if kind == "enabled":
        given = Fields(thinking, "thinking")
        body["thinking_budget_tokens"] = given.integer("budget_tokens", default=DEFAULT_BUDGET, low=-1)


def _set_format(body: Json, fields: Fields) -> None:
    """``output_config.format``, or ``output_format`` as it was called before: a schema that the text must match."""
    config = fields.object("output_config") or {}
    wanted = config.get("format") or fields.object("output_format")
    if wanted is None:
        return
    wanted = member_object(wanted, "output_config.format")
    if wanted.get("type") != "json_schema" or not isinstance(wanted.get("schema"), dict):
        raise InvalidRequest("Field 'output_config.format': must be {type: json_schema, schema}")
    body["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted["schema"], "strict": True}}
