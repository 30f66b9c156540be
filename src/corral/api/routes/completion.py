"""POST /completion, /v1/completions, /v1/chat/completions and their aliases."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.dialects.chat import ChatDialect
from corral.api.dialects.completions import CompletionsDialect
from corral.api.dialects.native import NativeDialect
from corral.api.routes.answer import (
    answer,
    chat_job,
    make_request_job,
    read_checked_chat,
    read_checked_prompts,
    read_echoing_prompts,
)
from corral.api.routes.body import read_body
from corral.api.service import service_of


async def native(request: Request) -> Response:
    """Complete a prompt; llama-server's own format."""
    service = service_of(request)
    prompts, params = await read_body(request, lambda fields: read_checked_prompts(fields, service))
    job = make_request_job(request, service, prompts, params)
    return answer(request, service, job, NativeDialect(job))


async def completions(request: Request) -> Response:
    """Complete a prompt; OpenAI's format."""
    service = service_of(request)
    prompts, params = await read_body(request, lambda fields: read_echoing_prompts(fields, service))
    job = make_request_job(request, service, prompts, params)
    return answer(request, service, job, CompletionsDialect(job))


async def chat(request: Request) -> Response:
    """Answer a conversation; OpenAI's format."""
    service = service_of(request)
    asked = await read_body(request, lambda fields: read_checked_chat(fields, service))
    job = chat_job(request, service, asked)
    return answer(request, service, job, ChatDialect(job, asked.rendered, asked.echo))
