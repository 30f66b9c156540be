"""GET and POST /lora-adapters: which are loaded, and with which scales requests are answered that name none."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.routes.body import json_response, read_bytes
from corral.api.schemas.adapters import read_scales
from corral.api.schemas.fields import parse_json
from corral.api.service import Service, service_of
from corral.engine.adapted import unknown_adapter
from corral.errors import InvalidRequest
from corral.ids import AdapterId
from corral.ports import AdapterInfo

Json = dict[str, object]


async def get_adapters(request: Request) -> Response:
    """All adapters and their scales now."""
    service = service_of(request)
    return json_response([_adapter_json(adapter, service) for adapter in service.runtime.model.adapters])


async def post_adapters(request: Request) -> Response:
    """Set the scales for requests to come; adapters that are not named get 0. Running tasks keep theirs."""
    service = service_of(request)
    n_loaded = len(service.runtime.model.adapters)
    service.adapters.scales = await read_bytes(request, lambda raw: _read_scales(raw, n_loaded))
    return json_response({"success": True})


def _read_scales(raw: bytes, n_loaded: int) -> dict[AdapterId, float]:
    body = parse_json(raw)
    if not isinstance(body, list):
        raise InvalidRequest("Request body must be an array")
    scales = dict(read_scales(body))
    for adapter in scales:
        if not 0 <= adapter < n_loaded:
            raise InvalidRequest(unknown_adapter(adapter, n_loaded))
    return scales


def _adapter_json(adapter: AdapterInfo, service: Service) -> Json:
    shown: Json = {
        "id": adapter.id,
        "path": adapter.path,
        "scale": service.adapters.scales.get(adapter.id, 0.0),
        "task_name": adapter.task_name,
        "prompt_prefix": adapter.prompt_prefix,
    }
    if adapter.invocation:
        text = service.runtime.model.tokenizer.detokenize(adapter.invocation, special=True)
        shown |= {"alora_invocation_string": text, "alora_invocation_tokens": adapter.invocation}
    return shown
