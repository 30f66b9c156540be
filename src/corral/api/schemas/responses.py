"""The body of a Responses request, as the chat request that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from corral.api.schemas.chat import CHAT_ONLY
from corral.api.schemas.fields import Fields, Json, wrong_type
from corral.api.schemas.items import read_items, with_instructions
from corral.errors import InvalidRequest

_NAMES = """
background conversation include input instructions max_output_tokens max_tool_calls messages metadata model
previous_response_id prompt prompt_cache_key reasoning safety_identifier service_tier store text tools truncation user
post_sampling_probs
"""
_REPLACED = CHAT_ONLY.union(_NAMES.split())
_ABSENT = ("conversation", "prompt")

_LOGPROBS = "message.output_text.logprobs"
"""What ``include`` names to have log-probabilities."""
MAX_TOP_LOGPROBS = 20

Recall = Callable[[str], list[Json]]
"""The items of the conversation up to a stored response, by its id. Raises InvalidRequest."""


@dataclass(frozen=True, slots=True)
class ResponsesBody:
    """A request, read. ``items`` are the whole conversation's, ``repeated`` what of the request its reply shows.

    ``n_top``: likeliest tokens to show in each place of a text, None for no log-probabilities at all.
    """

    chat: Fields
    items: list[Json]
    repeated: Json
    store: bool
    n_top: int | None = None


def read_responses_body(fields: Fields, recall: Recall) -> ResponsesBody:
    """The same in OpenAI's chat form; sampling fields stay as they are. Raises InvalidRequest."""
    _refuse_absent(fields)
    previous = fields.text("previous_response_id")
    new = _input_items(fields.value("input"))
    items = [*(recall(previous) if previous else ()), *new]
    body = fields.without(_REPLACED)
    body["messages"] = with_instructions(fields.text("instructions"), read_items(items))
    if fields.value("max_output_tokens") is not None:
        body["max_tokens"] = fields.integer("max_output_tokens", default=-1, low=1)
    if tools := _functions(fields):
        body["tools"] = tools
    if effort := Fields(fields.object("reasoning") or {}, "reasoning").text("effort"):
        body["reasoning_effort"] = effort
    if wanted := _format(fields):
        body["response_format"] = wanted
    n_top = _n_top(fields)
    if n_top is not None:
        body |= {"logprobs": True, "top_logprobs": n_top}
    return ResponsesBody(Fields(body), items, _repeated(fields, n_top), fields.boolean("store", True), n_top)


def _n_top(fields: Fields) -> int | None:
    """``top_logprobs`` counts without ``include``, too."""
    n_top = fields.integer("top_logprobs", default=0, low=0, high=MAX_TOP_LOGPROBS)
    is_asked = _LOGPROBS in (fields.strings("include") or ())
    return n_top if n_top or is_asked else None


def _refuse_absent(fields: Fields) -> None:
    for name in _ABSENT:
        if fields.value(name) is not None:
            raise InvalidRequest(f"Field '{name}': not supported; send the items as 'input'")
    if fields.boolean("background"):
        raise InvalidRequest("Field 'background': responses are not computed in the background; use 'stream'")


def _input_items(value: object) -> list[Json]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if value is None or value == []:
        raise InvalidRequest("'input' is required")
    if not isinstance(value, list):
        raise wrong_type("input", "string or array", value)
    return Fields({"input": value}).objects("input")


def _functions(fields: Fields) -> list[Json]:
    """Only functions: tools that OpenAI's servers run do not exist here, and are never called."""
    return [_function(tool) for tool in fields.objects("tools") if tool.get("type") == "function"]


def _function(tool: Json) -> Json:
    if isinstance(tool.get("function"), dict):
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _format(fields: Fields) -> Json | None:
    wanted = Fields(fields.object("text") or {}, "text").object("format")
    if wanted is None or wanted.get("type") == "text":
        return None
    if wanted.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {key: wanted.get(key) for key in ("name", "schema", "strict")}}
    return {"type": Fields(wanted, "text.format").text("type")}


def _repeated(fields: Fields, n_top: int | None) -> Json:
    return {
        "background": False,
        "instructions": fields.value("instructions"),
        "max_output_tokens": fields.value("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": fields.object("metadata") or {},
        "parallel_tool_calls": fields.boolean("parallel_tool_calls", True),
        "previous_response_id": fields.value("previous_response_id"),
        "reasoning": {"effort": None, "summary": None, **(fields.object("reasoning") or {})},
        "service_tier": "default",
        "text": {"format": {"type": "text"}, **(fields.object("text") or {})},
        "tool_choice": "auto" if fields.value("tool_choice") is None else fields.value("tool_choice"),
        "tools": fields.objects("tools"),
        "top_logprobs": n_top or 0,
        "truncation": "disabled",
        "user": fields.value("user"),
    }
