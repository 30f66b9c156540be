"""POST /completion, /v1/completions, /v1/chat/completions and their aliases."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from corral.api.dialects.chat import ChatDialect
from corral.api.dialects.completions import CompletionsDialect
from corral.api.dialects.native import NativeDialect
from corral.api.job import Job, make_job
from corral.api.reply import Dialect, StreamReply, WholeReply
from corral.api.request_log import REQUEST_ID, LoggedDialect
from corral.api.routes.body import read_body
from corral.api.schemas.chat import Chat, read_chat
from corral.api.schemas.fields import Fields
from corral.api.schemas.params import Params, read_params
from corral.api.schemas.prompt import Prompt, read_prompts
from corral.api.service import Service, cache_key, service_of, tenant_of


async def native(request: Request) -> Response:
    """Complete a prompt; llama-server's own format."""
    return await _complete(request, NativeDialect)


async def completions(request: Request) -> Response:
    """Complete a prompt; OpenAI's format."""
    return await _complete(request, CompletionsDialect)


async def chat(request: Request) -> Response:
    """Answer a conversation; OpenAI's format."""
    service = service_of(request)
    asked = await read_body(request, lambda fields: _read_chat(fields, service))
    job = _job(request, service, [asked.prompt], asked.params, asked.borders)
    return _reply(request, service, job, ChatDialect(job, asked.rendered, asked.echo))


async def _complete(request: Request, dialect: Callable[[Job], Dialect]) -> Response:
    service = service_of(request)
    prompts, params = await read_body(request, lambda fields: _read(fields, service))
    job = _job(request, service, prompts, params)
    return _reply(request, service, job, dialect(job))


def _read(fields: Fields, service: Service) -> tuple[list[Prompt], Params]:
    tokenizer = service.runtime.model.tokenizer
    prompts = read_prompts(fields, tokenizer)
    params = read_params(fields, service.defaults, service.server, tokenizer, service.runtime.n_slots)
    service.runtime.model.check_grammar(params.sampling.grammar)
    return prompts, params


def _read_chat(fields: Fields, service: Service) -> Chat:
    asked = read_chat(fields, service)
    sampling = asked.params.sampling
    service.runtime.model.check_grammar(sampling.grammar)
    if sampling.constraint is not None:
        service.runtime.model.new_matcher(sampling.constraint)
    return asked


def _job(
    request: Request, service: Service, prompts: list[Prompt], params: Params, borders: tuple[int, ...] = ()
) -> Job:
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


def _reply(request: Request, service: Service, job: Job, dialect: Dialect) -> Response:
    reply = StreamReply if job.params.stream else WholeReply
    logged = LoggedDialect(dialect, request.scope.get(REQUEST_ID, job.id))
    return reply(job, logged, service.runtime.engine)
