"""Prompts computed ahead, and kept: what POST /cache/warm, POST /cache/pin and --pin-file share."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass

from corral.api.schemas.adapters import Scales, read_scales
from corral.api.schemas.chat import read_request, render_chat
from corral.api.schemas.defaults import Defaults
from corral.api.schemas.fields import Fields
from corral.api.schemas.params import read_salt
from corral.api.schemas.prompt import Prompt, check_fits, check_form, read_prompt, within
from corral.api.service import NO_TENANT, Service, Tenant
from corral.config import ServerConfig
from corral.engine.pins import check_room, pin_name, pinned_prefix
from corral.engine.thread import TaskStream
from corral.errors import CorralError, InvalidRequest, LoadError
from corral.events import CacheDone, Failed, Finished, Timings
from corral.ids import CacheKey, TenantId
from corral.tasks import CacheAction, Limits, Sampling, Task, TaskKind

log = logging.getLogger("corral.api")


@dataclass(frozen=True, slots=True)
class Prefix:
    """What is to be computed ahead, for requests with this ``cache_salt`` and these adapters."""

    tokens: Prompt
    salt: str
    lora: Scales


def read_prefix(fields: Fields, service: Service) -> Prefix:
    """``tokens``, ``prompt`` or ``messages``, whichever is there. Raises InvalidRequest.

    Of messages the beginning of every conversation that begins with them: without the head of an answer.
    """
    tokenizer, n_ctx, named = service.runtime.model.tokenizer, service.runtime.n_ctx_slot, _named(fields)
    if named == "messages":
        _, rendered = render_chat(_without_head(fields), service)
        check_fits([rendered.text], tokenizer, n_ctx)
        tokens = within(service.chat.tokens(rendered), n_ctx)
    else:
        tokens = read_prompt(fields.value(named), tokenizer, n_ctx)
    if not tokens:
        raise InvalidRequest(f"Field '{named}': there is nothing to keep: no tokens")
    return Prefix(tokens, read_salt(fields), _read_lora(fields))


def _read_lora(fields: Fields) -> Scales:
    return read_scales(fields.array("lora") or [])


def _without_head(fields: Fields) -> Fields:
    return fields.with_default("add_generation_prompt", False)


def _named(fields: Fields) -> str:
    """The member that has the prompt. Raises InvalidRequest."""
    named = [name for name in ("tokens", "prompt", "messages") if fields.value(name) is not None]
    if len(named) != 1:
        found = " and ".join(named) or "none of them"
        raise InvalidRequest(f"one of 'tokens', 'prompt' and 'messages' is needed, but there is {found}")
    return named[0]


def prefix_task(service: Service, prefix: Prefix, key: CacheKey, tenant: Tenant) -> Task:
    """A task that computes the prefix and generates nothing, in the tenant's share and at its priority."""
    return Task(
        service.runtime.engine.new_task_id(),
        prefix.tokens,
        sampling=Sampling(temperature=0.0),
        limits=Limits(n_predict=0),
        cache_key=key,
        tenant=tenant.id,
        weight=tenant.weight,
        priority=tenant.priority,
        adapters=service.adapters.chosen(prefix.lora),
    )


async def warm(service: Service, task: Task) -> Timings:
    """Compute what is not there. Raises the error of the task."""
    async with service.runtime.engine.stream([(task,)]) as events:
        return await _timings(events)


async def _timings(events: TaskStream) -> Timings:
    async for event in events:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            return event.timings
    raise AssertionError("the stream ended without an end")


async def pin(service: Service, task: Task) -> tuple[CacheDone, Timings]:
    """Compute and keep, if there is room by then. Raises InvalidRequest or the error of the task.

    Both are asked for at once: a row that ends where the prompt does is what others that begin with it go on with.
    """
    engine = service.runtime.engine
    _check_room(service, task)
    async with engine.stream([(task,)]) as events:
        action = CacheAction(engine.new_task_id(), TaskKind.CACHE_PIN, task=task)
        kept = asyncio.ensure_future(engine.act_on_cache(action))
        try:
            timings = await _timings(events)
            return await kept, timings
        finally:
            kept.cancel()


def _check_room(service: Service, task: Task) -> None:
    """Raises InvalidRequest if the prompt could not be kept; what is pinned already can."""
    runtime, snapshot = service.runtime, service.runtime.engine.snapshot
    try:
        check_room(len(task.prompt), snapshot.pins, runtime.traits, snapshot.snapshot_limit_bytes)
    except InvalidRequest:
        name = pin_name(*pinned_prefix(task, runtime.model.adapters))
        if name not in {pin.name for pin in snapshot.pins}:
            raise


def check_pins(server: ServerConfig, defaults: Defaults) -> None:
    """What can be known of --pin-file without a model. Raises LoadError."""
    for i, body in enumerate(server.pins, 1):
        try:
            _check_prefix(Fields(body), server, defaults)
            _check_owner(Fields(body), server)
        except InvalidRequest as error:
            raise LoadError(f"pin {i}: {error}") from None


def _check_prefix(fields: Fields, server: ServerConfig, defaults: Defaults) -> None:
    """What ``read_prefix`` would refuse whatever the model is."""
    named = _named(fields)
    read_salt(fields)
    _read_lora(fields)
    fields.text("api_key")
    if named == "messages":
        read_request(_without_head(fields), server, defaults, can_several=True)
    else:
        check_form(fields.value(named))


async def pin_all(service: Service) -> None:
    """The prompts of --pin-file, one after the other; what cannot be kept is logged."""
    for i, body in enumerate(service.server.pins, 1):
        try:
            prefix, key, tenant = _of_file(Fields(body), service)
            done, _ = await pin(service, prefix_task(service, prefix, key, tenant))
            log.info("pin %d: %d tokens are kept as %s", i, len(prefix.tokens), done.pin)
        except CorralError as error:
            log.error("pin %d of --pin-file is not kept: %s", i, error)


def _of_file(fields: Fields, service: Service) -> tuple[Prefix, CacheKey, Tenant]:
    """With API keys that do not share their prefixes, ``api_key`` says whose it is."""
    prefix, key = read_prefix(fields, service), fields.text("api_key")
    if not _has_owners(service.server):
        return prefix, CacheKey(f":{prefix.salt}" if prefix.salt else ""), NO_TENANT
    _check_owner(fields, service.server)
    tenant = TenantId(hashlib.sha256(key.encode()).hexdigest()[:16])
    return prefix, CacheKey(f"{tenant}:{prefix.salt}"), Tenant(tenant)


def _has_owners(server: ServerConfig) -> bool:
    return bool(server.api_keys) and not server.shared_cache


def _check_owner(fields: Fields, server: ServerConfig) -> None:
    """Raises InvalidRequest; the message does not show what may be a key."""
    if _has_owners(server) and fields.text("api_key") not in {known.key for known in server.api_keys}:
        raise InvalidRequest("each API key has prefixes of its own: 'api_key' must be one of the server's keys")
