"""/v1/responses: answering, counting tokens, and what is kept of earlier responses."""

from __future__ import annotations

import asyncio
import logging

from starlette.requests import Request
from starlette.responses import Response

from corral.api.dialects.responses import ResponsesDialect
from corral.api.reply import BeforeEnd
from corral.api.response_store import ResponseStore, Stored
from corral.api.routes.answer import answer, chat_job, read_checked_chat
from corral.api.routes.body import json_response, read_body
from corral.api.schemas.chat import Chat, count_tokens
from corral.api.schemas.fields import Fields, Json
from corral.api.schemas.responses import Recall, ResponsesBody, read_responses_body
from corral.api.service import Service, service_of, tenant_of
from corral.errors import InvalidRequest, NotFound, NotSupported, ServerError

log = logging.getLogger("corral.api")


async def responses(request: Request) -> Response:
    """Answer a conversation; OpenAI's Responses format."""
    service, recall = service_of(request), _recall(request)

    def read(fields: Fields) -> tuple[ResponsesBody, Chat]:
        body = read_responses_body(fields, recall)
        return body, read_checked_chat(body.chat, service)

    body, asked = await read_body(request, read)
    job = chat_job(request, service, asked)
    is_kept = body.store and service.responses is not None
    dialect = ResponsesDialect(job, asked.rendered, {**body.repeated, "store": is_kept}, body.n_top)
    return answer(request, service, job, dialect, _keeper(request, body, dialect) if is_kept else None)


async def count_response_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a request has."""
    service, recall = service_of(request), _recall(request)

    def count(fields: Fields) -> int:
        return count_tokens(read_responses_body(fields, recall).chat, service)

    n_tokens = await read_body(request, count)
    return json_response({"input_tokens": n_tokens, "object": "response.input_tokens"})


async def get_response(request: Request) -> Response:
    """A response that was kept."""
    store = _store(service_of(request))
    name = str(request.path_params["id"])
    stored = await asyncio.to_thread(store.get, tenant_of(request).id, name)
    if stored is None:
        raise _unknown(name)
    return json_response(stored.reply)


async def delete_response(request: Request) -> Response:
    """Forget a response; those that went on from it stay."""
    store = _store(service_of(request))
    name = str(request.path_params["id"])
    if not await asyncio.to_thread(store.delete, tenant_of(request).id, name):
        raise _unknown(name)
    return json_response({"id": name, "object": "response", "deleted": True})


def _store(service: Service) -> ResponseStore:
    if service.responses is None:
        raise NotSupported("This server does not keep responses. Start it with `--responses-store FILE`")
    return service.responses


def _unknown(name: str) -> NotFound:
    return NotFound(f"Response with id '{name}' not found")


def _recall(request: Request) -> Recall:
    service, tenant = service_of(request), tenant_of(request)

    def recall(response_id: str) -> list[Json]:
        if service.responses is None:
            raise InvalidRequest("Field 'previous_response_id': responses are kept only with --responses-store FILE")
        stored = service.responses.get(tenant.id, response_id)
        if stored is None:
            raise InvalidRequest(f"Field 'previous_response_id': response with id '{response_id}' not found")
        return stored.items

    return recall


def _keeper(request: Request, body: ResponsesBody, dialect: ResponsesDialect) -> BeforeEnd:
    """Keeps the reply before the client has all of it: the next request may name it at once.

    A reply that cannot be kept is answered all the same.
    """
    service, tenant = service_of(request), tenant_of(request)
    store = _store(service)

    async def keep() -> None:
        output = dialect.reply["output"]
        assert isinstance(output, list)
        try:
            await asyncio.to_thread(store.put, tenant.id, Stored(dialect.reply, [*body.items, *output]))
        except ServerError as error:
            _tell_unkept(service, dialect.id, error)

    return keep


def _tell_unkept(service: Service, name: str, error: ServerError) -> None:
    n_held = service.unkept.take()
    if n_held is not None:
        others = f"; {n_held} others were not kept either since this was last said" if n_held else ""
        log.warning("%s was answered but is not kept: %s%s", name, error, others)
