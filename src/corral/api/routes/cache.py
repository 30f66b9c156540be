"""GET /cache, POST /cache/warm, POST and DELETE /cache/pin: for operators of the prefix cache."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.pins import Prefix, pin, prefix_task, read_prefix, warm
from corral.api.routes.body import json_response, read_body, text_response, while_there
from corral.api.schemas.fields import Fields
from corral.api.service import Service, cache_key, service_of, tenant_of
from corral.errors import InvalidRequest
from corral.events import Kept
from corral.tasks import CacheAction, Task, TaskKind

Json = dict[str, object]


async def list_cache(request: Request) -> Response:
    """All prefixes that are kept, without what users wrote; with API keys those of the key that asks."""
    service = service_of(request)
    show, engine = service.server.cache_show_text, service.runtime.engine
    action = CacheAction(
        engine.new_task_id(),
        TaskKind.CACHE_LIST,
        cache_key(request, ""),
        all_tenants=show or not service.server.api_keys,
        show_tokens=show,
    )
    done = await engine.act_on_cache(action)
    snapshot = engine.snapshot
    body: Json = {
        "n_cells": snapshot.n_cells,
        "n_cells_used": snapshot.n_used,
        "ram_bytes": snapshot.snapshot_bytes,
        "disk_bytes": snapshot.disk_bytes,
    }
    return await text_response(lambda: {**body, "prefixes": [_kept_json(kept, service) for kept in done.prefixes]})


def _kept_json(kept: Kept, service: Service) -> Json:
    body: Json = {
        "kept": kept.tier,
        "place": kept.place,
        "owner": kept.owner,
        "n_tokens": kept.n_tokens,
        "n_bytes": kept.n_bytes,
        "recency": kept.recency,
        "is_busy": kept.is_busy,
        "pin": kept.pin or None,
    }
    if service.server.cache_show_text:
        body |= {"text": service.runtime.model.tokenizer.detokenize(kept.tokens, special=True)}
    return body


async def warm_cache(request: Request) -> Response:
    """Compute a prompt ahead, so that requests that begin with it find it."""
    service = service_of(request)
    prefix = await read_body(request, lambda fields: read_prefix(fields, service))
    timings = await while_there(request, warm(service, _task(request, prefix)))
    body: Json = {"n_tokens": len(prefix.tokens), "n_cached": timings.n_cached, "prompt_ms": timings.prompt_ms}
    return json_response(body)


async def pin_prefix(request: Request) -> Response:
    """Compute a prompt ahead and keep it until it is unpinned; with ``pinned: false`` and its id unpin it."""
    service = service_of(request)
    asked = await read_body(request, lambda fields: _read_pin(fields, service))
    if isinstance(asked, str):
        return await _unpin(request, asked)
    done, timings = await while_there(request, pin(service, _task(request, asked)))
    body: Json = {
        "id": done.pin,
        "pinned": True,
        "n_tokens": len(asked.tokens),
        "n_bytes": done.n_bytes,
        "n_cached": timings.n_cached,
        "prompt_ms": timings.prompt_ms,
    }
    return json_response(body)


async def delete_pin(request: Request) -> Response:
    """The prefix may be evicted again."""
    return await _unpin(request, request.path_params["pin"])


def _read_pin(fields: Fields, service: Service) -> Prefix | str:
    """A prefix to pin, or the id of a pin that is to go."""
    if fields.boolean("pinned", True):
        return read_prefix(fields, service)
    name = fields.text("id")
    if not name:
        raise InvalidRequest("to unpin, give the 'id' that POST /cache/pin answered with")
    return name


async def _unpin(request: Request, name: str) -> Response:
    service = service_of(request)
    engine = service.runtime.engine
    everybody = not service.server.api_keys
    action = CacheAction(
        engine.new_task_id(), TaskKind.CACHE_UNPIN, cache_key(request, ""), pin=name, all_tenants=everybody
    )
    await engine.act_on_cache(action)
    return json_response({"id": name, "pinned": False})


def _task(request: Request, prefix: Prefix) -> Task:
    return prefix_task(service_of(request), prefix, cache_key(request, prefix.salt), tenant_of(request))
