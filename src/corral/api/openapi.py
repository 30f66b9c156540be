"""The table of routes, and what the OpenAPI page says about each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from corral.api.routes import (
    adapters,
    anthropic,
    cache,
    completion,
    control,
    info,
    metrics,
    ollama,
    responses,
    slot_files,
    slots,
    streams,
    tokens,
)
from corral.api.schemas import documents as doc
from corral.api.schemas import replies as reply

EVENTS, LINES = "text/event-stream", "application/x-ndjson"

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint under one or more paths; the first is the canonical one. ``streams``: the media type of a stream."""

    method: str
    paths: tuple[str, ...]
    endpoint: Endpoint
    tag: str
    body: type[BaseModel] | None = None
    reply: type[BaseModel] | None = None
    streams: str = ""


ROUTES = (
    Route("GET", ("/health", "/v1/health"), info.health, "server", reply=reply.Healthy),
    Route("GET", ("/props",), info.get_props, "server"),
    Route("POST", ("/props",), info.post_props, "server"),
    Route("GET", ("/v1/models", "/models"), info.models, "server"),
    Route("GET", ("/v1/models/{model}", "/models/{model}"), info.model, "server"),
    Route("GET", ("/slots",), slots.slots, "server"),
    Route("POST", ("/slots/{id_slot}",), slot_files.slot_action, "server", doc.SlotFileRequest),
    Route("GET", ("/cache",), cache.list_cache, "cache"),
    Route("POST", ("/cache/warm",), cache.warm_cache, "cache", doc.PrefixRequest),
    Route("POST", ("/cache/pin",), cache.pin_prefix, "cache", doc.PinRequest),
    Route("DELETE", ("/cache/pin/{pin}",), cache.delete_pin, "cache"),
    Route("GET", ("/metrics",), metrics.metrics, "server"),
    Route(
        "POST",
        ("/completion", "/completions"),
        completion.native,
        "completion",
        doc.NativeRequest,
        reply.NativeReply,
        streams=EVENTS,
    ),
    Route(
        "POST",
        ("/v1/completions",),
        completion.completions,
        "completion",
        doc.CompletionRequest,
        reply.TextReply,
        streams=EVENTS,
    ),
    Route(
        "POST",
        ("/v1/chat/completions", "/chat/completions"),
        completion.chat,
        "chat",
        doc.ChatRequest,
        reply.ChatReply,
        streams=EVENTS,
    ),
    Route(
        "POST",
        ("/v1/chat/completions/control",),
        control.control,
        "chat",
        doc.ControlRequest,
        reply.Controlled,
    ),
    Route(
        "POST",
        ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"),
        tokens.input_tokens,
        "chat",
        doc.TemplateRequest,
        reply.InputTokens,
    ),
    Route(
        "POST",
        ("/v1/responses", "/responses"),
        responses.responses,
        "responses",
        doc.ResponsesRequest,
        reply.ResponseReply,
        streams=EVENTS,
    ),
    Route(
        "POST",
        ("/v1/responses/input_tokens", "/responses/input_tokens"),
        responses.count_response_tokens,
        "responses",
        doc.ResponsesRequest,
        reply.InputTokens,
    ),
    Route("GET", ("/v1/responses/{id}",), responses.get_response, "responses", reply=reply.ResponseReply),
    Route("DELETE", ("/v1/responses/{id}",), responses.delete_response, "responses"),
    Route(
        "POST",
        ("/v1/messages",),
        anthropic.messages,
        "messages",
        doc.MessagesRequest,
        reply.MessageReply,
        streams=EVENTS,
    ),
    Route(
        "POST",
        ("/v1/messages/count_tokens",),
        anthropic.count_message_tokens,
        "messages",
        doc.MessagesRequest,
        reply.MessageTokens,
    ),
    Route("POST", ("/api/chat",), ollama.chat, "ollama", doc.OllamaChatRequest, reply.OllamaChatReply, streams=LINES),
    Route(
        "POST",
        ("/api/generate",),
        ollama.generate,
        "ollama",
        doc.OllamaGenerateRequest,
        reply.OllamaGenerateReply,
        streams=LINES,
    ),
    Route("GET", ("/api/tags",), ollama.tags, "ollama"),
    Route("GET", ("/api/ps",), ollama.running, "ollama"),
    Route("POST", ("/api/show",), ollama.show, "ollama", doc.OllamaShowRequest),
    Route("GET", ("/api/version",), ollama.version, "ollama"),
    Route("GET", ("/v1/stream",), streams.read_stream, "streams"),
    Route("DELETE", ("/v1/stream",), streams.delete_stream, "streams"),
    Route("POST", ("/v1/streams/lookup",), streams.look_up_streams, "streams", doc.StreamLookup),
    Route("GET", ("/lora-adapters",), adapters.get_adapters, "server"),
    Route("POST", ("/lora-adapters",), adapters.post_adapters, "server", doc.AdapterScales),
    Route("POST", ("/apply-template",), tokens.apply_template, "chat", doc.TemplateRequest, reply.PromptText),
    Route("POST", ("/tokenize",), tokens.tokenize, "tokens", doc.TokenizeRequest, reply.Tokens),
    Route("POST", ("/detokenize",), tokens.detokenize, "tokens", doc.DetokenizeRequest, reply.Content),
)


_PATH_TO_NAME = str.maketrans("/-", "__", "{}")


def describe(route: Route, path: str) -> dict[str, Any]:
    """Keyword arguments of ``FastAPI.add_api_route`` besides path, endpoint and methods."""
    extra: dict[str, Any] = {}
    if route.body is not None:
        schema = route.body.model_json_schema()
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {
        "response_model": None,
        "tags": [route.tag],
        "operation_id": f"{route.method.lower()}_{path.strip('/').translate(_PATH_TO_NAME)}",
        "responses": _responses(route),
        "openapi_extra": extra,
    }


def _responses(route: Route) -> dict[int | str, dict[str, Any]]:
    success: dict[str, Any] = {"description": "OK"}
    if route.reply is not None:
        success["model"] = route.reply
    if route.streams:
        success["content"] = {route.streams: {"schema": {"type": "string"}}}
    failures = {401: "The API key is missing or wrong", 503: "Loading, or the queue is full"}
    if route.body is not None:
        failures |= {400: "The request is wrong", 413: "The body is too large"}
    errors: dict[int | str, dict[str, Any]] = {
        code: {"model": reply.ErrorReply, "description": text} for code, text in sorted(failures.items())
    }
    return {200: success, **errors}
