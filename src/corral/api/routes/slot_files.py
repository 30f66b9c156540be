"""POST /slots/{id}?action=...: what a slot held goes to a file, comes back from one, or is forgotten.

Files are read and written by worker threads; the engine only hands bytes over, between two steps.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from corral.api.routes.body import json_response, read_body, while_there
from corral.api.schemas.fields import Fields, quoted, whole_number
from corral.api.schemas.params import read_salt
from corral.api.service import Service, cache_key, service_of, tenant_of
from corral.engine import slot_file
from corral.engine.slot_file import SlotFile
from corral.errors import InvalidRequest, NotSupported
from corral.events import SlotDone
from corral.ids import CacheKey, SlotId, Token
from corral.ops import SavedCheckpoint
from corral.tasks import SlotAction, TaskKind


async def slot_action(request: Request) -> Response:
    """Save, restore or erase what an idle slot last held; a busy one is waited for."""
    folder = service_of(request).server.slot_save_path
    if folder is None:
        raise NotSupported("This server does not support slots action. Start it with `--slot-save-path`")
    slot = _slot(request.path_params["id_slot"])
    match request.query_params.get("action"):
        case "save":
            return await _save(request, slot, folder)
        case "restore":
            return await _restore(request, slot, folder)
        case "erase":
            done = await _act(request, TaskKind.SLOT_ERASE, slot, cache_key(request, ""))
            return json_response({"id_slot": slot, "n_erased": done.n_tokens})
    raise InvalidRequest("Invalid action")


def _slot(text: str) -> int:
    """Numbers beyond the slots wrap around."""
    slot = whole_number(text)
    if slot is None or slot < 0:
        raise InvalidRequest(f"Invalid slot ID: {quoted(text)} (slots are numbered from 0)")
    return slot


async def _save(request: Request, slot: int, folder: Path) -> Response:
    start_s = time.monotonic()
    name, _ = await read_body(request, _read)
    path = await asyncio.to_thread(slot_file.inside, folder, name)
    done = await _act(request, TaskKind.SLOT_SAVE, slot, cache_key(request, ""))
    traits = service_of(request).runtime.traits
    n_head = len(traits.state_head)
    checkpoints = tuple(SavedCheckpoint(n, data[n_head:]) for n, data in done.checkpoints)
    file = SlotFile(done.tokens, done.data[n_head:], checkpoints, service_of(request).runtime.origin)
    n_bytes = await asyncio.to_thread(slot_file.save, path, file, traits.state_version)
    timings = {"save_ms": _since_ms(start_s)}
    body = {"id_slot": slot, "filename": name, "n_saved": done.n_tokens, "n_written": n_bytes, "timings": timings}
    return json_response(body)


async def _restore(request: Request, slot: int, folder: Path) -> Response:
    start_s = time.monotonic()
    name, salt = await read_body(request, _read)
    path = await asyncio.to_thread(slot_file.inside, folder, name)
    service = service_of(request)
    lane = service.restores[slot % service.runtime.n_slots]
    await while_there(request, lane.acquire(tenant_of(request).id))
    try:
        done, n_bytes = await _restore_from(request, slot, path, cache_key(request, salt))
    finally:
        lane.release()
    timings = {"restore_ms": _since_ms(start_s)}
    body = {"id_slot": slot, "filename": name, "n_restored": done.n_tokens, "n_read": n_bytes, "timings": timings}
    return json_response(body)


async def _restore_from(request: Request, slot: int, path: Path, key: CacheKey) -> tuple[SlotDone, int]:
    """What the file holds is in memory while a busy slot is waited for: one file of each slot, or there is no bound."""
    runtime = service_of(request).runtime
    file, n_bytes = await asyncio.to_thread(slot_file.load, path, runtime.traits, runtime.origin)
    head = runtime.traits.state_head
    checkpoints = tuple(SavedCheckpoint(n, head + data) for n, data in file.checkpoints)
    data = head + file.state
    return await _act(request, TaskKind.SLOT_RESTORE, slot, key, file.tokens, data, checkpoints), n_bytes


def _read(fields: Fields) -> tuple[str, str]:
    """The name of the file, and the salt of requests that are to meet what is restored."""
    if fields.value("filename") is None:
        raise InvalidRequest("key 'filename' not found")
    return fields.text("filename"), read_salt(fields)


async def _act(
    request: Request,
    kind: TaskKind,
    slot: int,
    key: CacheKey,
    tokens: tuple[Token, ...] = (),
    data: bytes = b"",
    checkpoints: tuple[SavedCheckpoint, ...] = (),
) -> SlotDone:
    service: Service = service_of(request)
    engine = service.runtime.engine
    number = SlotId(slot % service.runtime.n_slots)
    action = SlotAction(engine.new_task_id(), kind, number, key, tokens, data, checkpoints)
    return await while_there(request, engine.act(action))


def _since_ms(start_s: float) -> float:
    return round((time.monotonic() - start_s) * 1000, 3)
