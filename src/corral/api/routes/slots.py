"""GET /slots: what each slot is doing, without what users wrote."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.dialects.settings import public_settings_json, settings_json
from corral.api.routes.body import json_response, text_response
from corral.api.service import service_of
from corral.engine.state import SlotSnapshot
from corral.errors import NotSupported, Unavailable
from corral.ports import Tokenizer

Json = dict[str, object]


async def slots(request: Request) -> Response:
    """All slots; with ``?fail_on_no_slot=1`` 503 if none is idle."""
    service = service_of(request)
    if not service.server.endpoint_slots:
        raise NotSupported("This server does not support slots endpoint. Start it without `--no-slots`")
    snapshot = service.runtime.engine.snapshot
    if request.query_params.get("fail_on_no_slot") and snapshot.n_busy == len(snapshot.slots):
        raise Unavailable("no slot available")
    if not service.server.slots_debug:
        return json_response([slot_json(slot) for slot in snapshot.slots])
    tokenizer = service.runtime.model.tokenizer
    return await text_response(lambda: [slot_json(slot, tokenizer) for slot in snapshot.slots])


def slot_json(slot: SlotSnapshot, tokenizer: Tokenizer | None = None) -> Json:
    """One slot; with a tokenizer also the texts."""
    body: Json = {
        "id": slot.id,
        "n_ctx": slot.n_ctx,
        "speculative": False,
        "is_processing": slot.is_processing,
        "state": slot.state.value,
        "kept": slot.kept,
    }
    return {**body, **_task_json(slot, tokenizer)} if slot.task is not None else body


def _task_json(slot: SlotSnapshot, tokenizer: Tokenizer | None) -> Json:
    task = slot.task
    assert task is not None
    busy = slot.is_processing
    settings = public_settings_json if tokenizer is None else settings_json
    body: Json = {
        "id_task": task.id,
        "priority": task.priority,
        "n_prompt_tokens": slot.n_tokens,
        "n_prompt_tokens_processed": slot.n_prompt_processed if busy else 0,
        "n_prompt_tokens_cache": slot.n_prompt_cached if busy else 0,
        "params": settings(
            task.sampling,
            task.limits,
            n_keep=task.n_keep,
            n_discard=task.n_discard,
            stream=task.stream,
            timings_per_token=task.timings_per_token,
            lora=task.lora,
        ),
        "next_token": [
            {
                "has_next_token": busy,
                "has_new_line": slot.has_new_line,
                "n_remain": slot.n_remain if busy else -1,
                "n_decoded": slot.n_decoded if busy else 0,
            }
        ],
    }
    if tokenizer is not None:
        body |= {"prompt": tokenizer.detokenize(task.prompt, special=True), "generated": slot.generated}
    return body
