"""The tools of a request: checked, and what their schemas say about arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from corral.chat.schema import UNKNOWN, Json, Schema
from corral.errors import InvalidRequest

MAX_DEPTH = 64
"""How deep a schema may nest: deeper ones are attacks, and template filters and grammars recurse."""

_EMPTY: Json = {"type": "object", "properties": {}}
_NONE: Json = {**_EMPTY, "additionalProperties": False}
"""What a function without parameters is held to; templates print it as they print ``_EMPTY``."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``mode`` "required" with a ``name``: that tool must be called."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function: ``definition`` as templates print it, ``parameters`` the JSON schema of its arguments.

    ``strict``: they must fit the schema to the letter, or the request fails.
    """

    name: str
    parameters: Json
    definition: Json
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """All tools of a request, by name."""

    by_name: Mapping[str, Tool]

    @property
    def definitions(self) -> list[Json]:
        return [tool.definition for tool in self.by_name.values()]

    def schema(self, name: str) -> Schema:
        """The schema of the arguments of tool ``name``."""
        tool = self.by_name.get(name)
        return Schema(tool.parameters, tool.parameters) if tool else UNKNOWN


def read_tools(value: object) -> Tools:
    """The ``tools`` of a request. Raises InvalidRequest."""
    if value is None:
        return Tools({})
    if not isinstance(value, list):
        raise InvalidRequest("Failed to parse tools: expected 'tools' to be an array")
    tools = [_read_tool(item, i) for i, item in enumerate(value)]
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        names = iter(by_name)
        twice = next(tool.name for tool in tools if tool.name != next(names, None))
        raise InvalidRequest(f"Failed to parse tools: two tools are called '{twice}'")
    return Tools(by_name)


def read_tool_choice(value: object, tools: Tools) -> ToolChoice:
    """The ``tool_choice`` of a request; without tools nothing can be called. ``allowed_tools`` is read as its mode.

    Raises InvalidRequest.
    """
    if value is None:
        return ToolChoice("auto" if tools.by_name else "none")
    if isinstance(value, str):
        return _choice_of_mode(value, tools)
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        allowed = value.get("allowed_tools", value)  # an object of its own in chats, not in Responses
        return read_tool_choice(allowed.get("mode") if isinstance(allowed, dict) else allowed, tools)
    if isinstance(value, dict):
        return _choice_of_name(value, tools)
    raise InvalidRequest("Invalid tool_choice: it must be a string or an object")


def _choice_of_mode(mode: str, tools: Tools) -> ToolChoice:
    if mode not in ("auto", "none", "required"):
        raise InvalidRequest(f"Invalid tool_choice: {mode}")
    if mode == "required" and not tools.by_name:
        raise InvalidRequest("Invalid tool_choice: required, but the request has no tools")
    return ToolChoice(mode if tools.by_name else "none")  # type: ignore[arg-type]


def _choice_of_name(value: dict[str, object], tools: Tools) -> ToolChoice:
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else value.get("name")
    if value.get("type", "function") != "function" or not isinstance(name, str):
        raise InvalidRequest("Invalid tool_choice: the object must be {type: function, function: {name}}")
    if name not in tools.by_name:
        raise InvalidRequest(f"Invalid tool_choice: no tool is called '{name}'")
    return ToolChoice("required", name)


def _read_tool(value: object, index: int) -> Tool:
    where = f"Failed to parse tools: tools[{index}]"
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object")
    if value.get("type") != "function":
        raise InvalidRequest(f"{where}: Unsupported tool type: {value.get('type')!r} (only 'function' is known)")
    function = value.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest(f"{where}: Missing tool function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{where}: the function needs a 'name'")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidRequest(f"{where}: 'parameters' of function '{name}' must be a JSON schema")
    if _is_deep(value, MAX_DEPTH):
        raise InvalidRequest(f"{where}: function '{name}' nests more than {MAX_DEPTH} levels deep")
    schema = parameters or _EMPTY
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(f"{where}: 'description' of function '{name}' must be a string")
    full = {**value, "function": {**function, "description": description or "", "parameters": schema}}
    return Tool(name, _NONE if parameters is None else schema, full, function.get("strict") is True)


def _is_deep(value: object, left: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    children = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_is_deep(child, left - 1) for child in children)
