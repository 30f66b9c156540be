"""POST /v1/messages and its count of tokens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.dialects.anthropic import AnthropicDialect
from corral.api.routes.answer import answer, chat_job, read_checked_chat
from corral.api.routes.body import json_response, read_body
from corral.api.schemas.anthropic import read_messages_body
from corral.api.schemas.chat import count_tokens
from corral.api.service import service_of


async def messages(request: Request) -> Response:
    """Answer a conversation; Anthropic's format."""
    service = service_of(request)
    asked = await read_body(request, lambda fields: read_checked_chat(read_messages_body(fields), service))
    job = chat_job(request, service, asked)
    return answer(request, service, job, AnthropicDialect(job, asked.rendered))


async def count_message_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a request has."""
    service = service_of(request)
    n_tokens = await read_body(request, lambda fields: count_tokens(read_messages_body(fields), service))
    return json_response({"input_tokens": n_tokens})
