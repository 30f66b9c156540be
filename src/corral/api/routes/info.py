"""What the server is: health, properties, models."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from corral.api.dialects.settings import public_settings_json
from corral.api.routes.body import json_response
from corral.api.schemas.fields import quoted
from corral.api.service import BUILD, Service, service_of
from corral.chat.loaded import token_text
from corral.errors import NotFound, NotSupported
from corral.tasks import Limits

Json = dict[str, object]


async def health(_request: Request) -> Response:
    """Whether the model is loaded: 503 until then."""
    return json_response({"status": "ok"})


async def get_props(request: Request) -> Response:
    """Default settings, the model and its chat template."""
    return json_response(_props(service_of(request)))


async def post_props(request: Request) -> Response:
    """Accepted with --props; changes nothing."""
    if not service_of(request).server.endpoint_props:
        raise NotSupported("This server does not support changing global properties. Start it with `--props`")
    return json_response({"success": True})


async def models(request: Request) -> Response:
    """The one model that is served, as Ollama's and OpenAI's clients list it."""
    service = service_of(request)
    return json_response({"models": [_ollama_model(service)], "object": "list", "data": [_openai_model(service)]})


async def model(request: Request) -> Response:
    """The model, under one of its names."""
    service, asked = service_of(request), request.path_params["model"]
    names = sorted({service.model, *service.server.alias})
    if asked not in names:
        raise NotFound(f"model {quoted(asked)} is not served; its name is {' or '.join(map(quoted, names))}")
    return json_response(_openai_model(service))


def _props(service: Service) -> Json:
    runtime, server, info = service.runtime, service.server, service.runtime.model.info
    return {
        "default_generation_settings": {
            "params": public_settings_json(service.defaults.sampling, Limits()),
            "n_ctx": runtime.n_ctx_slot,
        },
        "total_slots": runtime.n_slots,
        "model_alias": service.model,
        "model_ftype": info.ftype,
        "model_path": info.path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": "<__media__>",
        "endpoint_slots": server.endpoint_slots,
        "endpoint_props": server.endpoint_props,
        "endpoint_metrics": server.endpoint_metrics,
        "ui": False,
        "ui_settings": {},
        "chat_template": service.chat.template.source,
        "chat_template_caps": service.chat.tool_template.caps.as_json(),
        "bos_token": token_text(runtime.model, info.bos_token),
        "eos_token": token_text(runtime.model, info.eos_token),
        "build_info": BUILD,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }


def _ollama_model(service: Service) -> Json:
    details = {
        "parent_model": "",
        "format": "gguf",
        "family": "",
        "families": [""],
        "parameter_size": "",
        "quantization_level": "",
    }
    return {
        "name": service.model,
        "model": service.model,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": details,
    }


def _openai_model(service: Service) -> Json:
    info = service.runtime.model.info
    return {
        "id": service.model,
        "aliases": sorted(service.server.alias) or [service.model],
        "tags": sorted(service.server.tags),
        "object": "model",
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "created": int(time.time()),
        "owned_by": "llamacpp",
        "meta": {
            "vocab_type": info.vocab_type,
            "n_vocab": info.n_vocab,
            "n_ctx": service.runtime.n_ctx_slot,
            "n_ctx_train": info.n_ctx_train,
            "n_embd": info.n_embd,
            "n_params": info.n_params,
            "size": info.n_bytes,
            "ftype": info.ftype,
        },
    }
