"""From a request that was read to its reply, for all routes that complete."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from corral.api.errors import REQUEST_ID
from corral.api.job import Job, make_job
from corral.api.reply import BeforeEnd, Dialect, SessionReply, StreamReply, WholeReply
from corral.api.request_log import LoggedDialect
from corral.api.schemas.absent import refuse_in_completion
from corral.api.schemas.amounts import check_n_probs, check_n_tasks, check_settings
from corral.api.schemas.chat import Chat, read_chat
from corral.api.schemas.echo import read_shown
from corral.api.schemas.fields import Fields
from corral.api.schemas.params import Params, read_params
from corral.api.schemas.prompt import Prompt, count_prompts, read_prompts
from corral.api.schemas.thoughts import read_tagged_budget
from corral.api.service import Service, cache_key, tenant_of
from corral.api.sessions import SessionKey
from corral.tasks import Sampling

CONVERSATION_ID = "x-conversation-id"
"""The header of requests whose streams can be resumed."""


def read_checked_chat(fields: Fields, service: Service) -> Chat:
    """Raises InvalidRequest, also for a grammar or constraint that does not work."""
    asked = read_chat(fields, service)
    check_settings(asked.params.n, asked.params)
    check_n_probs(asked.params.n, asked.params, service.runtime.n_ctx_slot)
    prepare(asked.params.sampling, asked.params.n, service)
    return asked


def prepare(sampling: Sampling, n_tasks: int, service: Service) -> None:
    """What takes long is compiled here and not on the engine's thread, which then finds it. Raises InvalidRequest."""
    service.runtime.model.prepare(sampling, n_tasks)
    if sampling.constraint is not None:
        service.runtime.model.new_matcher(sampling.constraint)


def read_checked_prompts(fields: Fields, service: Service) -> tuple[list[Prompt], Params]:
    """The same for prompts. Raises InvalidRequest."""
    runtime, tokenizer = service.runtime, service.runtime.model.tokenizer
    check_n_tasks(count_prompts(fields), 1, runtime)
    prompts = read_prompts(fields, tokenizer, runtime.n_ctx_slot)
    params = read_params(fields, service.defaults, service.server, tokenizer, runtime.n_slots)
    check_n_tasks(len(prompts), params.n, runtime)
    check_settings(len(prompts) * params.n, params)
    check_n_probs(len(prompts) * params.n, params, runtime.n_ctx_slot)
    prepare(params.sampling, len(prompts) * params.n, service)
    thoughts = read_tagged_budget(fields, service.server, tokenizer)
    return prompts, replace(params, sampling=replace(params.sampling, thoughts=thoughts))


def read_echoing_prompts(fields: Fields, service: Service) -> tuple[list[Prompt], Params]:
    """The same for prompts that may be repeated in the reply. Raises InvalidRequest."""
    prompts, params = read_checked_prompts(fields, service)
    refuse_in_completion(fields, params.n)
    return prompts, read_shown(fields, prompts, params, service.runtime.model.tokenizer)


def chat_job(request: Request, service: Service, asked: Chat) -> Job:
    return make_request_job(request, service, [asked.prompt], asked.params, asked.borders)


def make_request_job(
    request: Request, service: Service, prompts: list[Prompt], params: Params, borders: tuple[int, ...] = ()
) -> Job:
    """The tasks of a request, under the prefixes, the share and the priority of its API key."""
    return make_job(
        prompts,
        params,
        engine=service.runtime.engine,
        tokenizer=service.runtime.model.tokenizer,
        model=service.model,
        key=cache_key(request, params.cache_salt),
        tenant=tenant_of(request),
        special=service.defaults.special,
        borders=borders,
        adapters=service.adapters.chosen(params.lora),
    )


def answer(
    request: Request, service: Service, job: Job, dialect: Dialect, before_end: BeforeEnd | None = None
) -> Response:
    """The reply, which runs the job when it is sent."""
    logged = LoggedDialect(dialect, request.scope.get(REQUEST_ID, job.id))
    if not job.params.stream:
        return WholeReply(job, logged, service.runtime.engine, before_end)
    reply = StreamReply(job, logged, service.runtime.engine, before_end)
    conversation = request.headers.get(CONVERSATION_ID)
    if not conversation:
        return reply
    key = SessionKey(tenant_of(request).id, conversation)
    return SessionReply(service.sessions.open(key, lambda send: reply(request.scope, _never, send)))


async def _never() -> Message:
    """A client that never leaves."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets it")
