"""Ollama's routes, /api/...: chat, generate, and what they tell of the one model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import orjson
from starlette.requests import Request
from starlette.responses import Response

from corral.api.dialects.ollama import Form, OllamaDialect, now
from corral.api.dialects.parts import Json
from corral.api.routes.answer import answer, chat_job, make_request_job, read_checked_chat, read_checked_prompts
from corral.api.routes.body import json_response, read_body
from corral.api.schemas.chat import Chat
from corral.api.schemas.fields import Fields
from corral.api.schemas.ollama import OllamaBody, read_chat_body, read_generate_body
from corral.api.schemas.params import Params
from corral.api.schemas.prompt import Prompt
from corral.api.service import Service, service_of

API_VERSION = "0.12.0"
"""The version of Ollama whose routes these are: clients ask whether it is new enough."""
_STAYS = timedelta(days=36500)

Read = Chat | tuple[list[Prompt], Params] | OllamaBody


async def chat(request: Request) -> Response:
    """Answer a conversation; Ollama's format."""
    return await _complete(request, read_chat_body, "chat")


async def generate(request: Request) -> Response:
    """Answer one prompt; Ollama's format."""
    return await _complete(request, read_generate_body, "generate")


async def tags(request: Request) -> Response:
    """The models: one."""
    return json_response({"models": [_model(service_of(request))]})


async def running(request: Request) -> Response:
    """The models in memory: the same one."""
    service = service_of(request)
    expires = (datetime.now(UTC) + _STAYS).isoformat()
    more = {"expires_at": expires, "size_vram": 0, "context_length": service.runtime.n_ctx_slot}
    return json_response({"models": [{**_model(service), **more}]})


async def version(_request: Request) -> Response:
    """The version of Ollama that is spoken."""
    return json_response({"version": API_VERSION})


async def show(request: Request) -> Response:
    """What the model is and can do; any name stands for it."""
    service = service_of(request)
    await read_body(request, lambda fields: fields.text("model"))
    info, chat_model = service.runtime.model.info, service.chat
    # A template that knows no tools gets them described in a message.
    caps = ["completion", "tools", *(["thinking"] if chat_model.format.thinking else [])]
    family = _family(service)
    return json_response(
        {
            "modelfile": "",
            "parameters": "",
            "template": chat_model.template.source,
            "details": _details(service),
            "model_info": {
                "general.architecture": family,
                "general.parameter_count": info.n_params,
                f"{family}.context_length": info.n_ctx_train,
                f"{family}.embedding_length": info.n_embd,
            },
            "capabilities": caps,
            "modified_at": _modified_at(service),
        }
    )


async def _complete(request: Request, read: Callable[[Fields, int], OllamaBody], form: Form) -> Response:
    service = service_of(request)
    asked = await read_body(request, lambda fields: _read(read(fields, service.runtime.n_ctx_slot), service))
    if isinstance(asked, OllamaBody):
        return _loaded(service, asked, form)
    if isinstance(asked, Chat):
        job = chat_job(request, service, asked)
        return answer(request, service, job, OllamaDialect(job, asked.rendered, form))
    job = make_request_job(request, service, *asked)
    return answer(request, service, job, OllamaDialect(job, None, form))


def _read(body: OllamaBody, service: Service) -> Read:
    if body.chat is None:
        return body
    return read_checked_prompts(body.chat, service) if body.raw else read_checked_chat(body.chat, service)


def _loaded(service: Service, body: OllamaBody, form: Form) -> Response:
    """Nothing was asked: Ollama would have loaded the model."""
    empty: Json = {"message": {"role": "assistant", "content": ""}} if form == "chat" else {"response": ""}
    reply = {"model": service.model, "created_at": now(), **empty, "done": True, "done_reason": "load"}
    if not body.stream:
        return json_response(reply)
    return Response(orjson.dumps(reply) + b"\n", media_type=OllamaDialect.media_type)


def _model(service: Service) -> Json:
    """``digest`` stands for the weights."""
    info = service.runtime.model.info
    return {
        "name": service.model,
        "model": service.model,
        "modified_at": _modified_at(service),
        "size": info.n_bytes,
        "digest": hashlib.sha256((info.fingerprint or info.path).encode()).hexdigest(),
        "details": _details(service),
    }


def _details(service: Service) -> Json:
    info, family = service.runtime.model.info, _family(service)
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": _size(info.n_params),
        "quantization_level": info.ftype,
    }


def _family(service: Service) -> str:
    return str(service.runtime.model.info.meta.get("general.architecture", ""))


def _modified_at(service: Service) -> str:
    """When the server started."""
    return datetime.fromtimestamp(service.started_s, UTC).isoformat().replace("+00:00", "Z")


def _size(n_params: int) -> str:
    return f"{n_params / 1e9:.1f}B" if n_params >= 10**9 else f"{n_params / 1e6:.2f}M"
