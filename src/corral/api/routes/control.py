"""POST /v1/chat/completions/control: acting on a reply that is being generated."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.routes.body import json_response, read_body
from corral.api.schemas.fields import Fields, Json, quoted
from corral.api.service import service_of, tenant_of
from corral.errors import InvalidRequest
from corral.tasks import ControlAction

_FORMS = ("resp_", "msg_")
"""What the ids of Responses and Messages begin with; the rest is the same."""


async def control(request: Request) -> Response:
    """End the thoughts of a running reply, which the same API key asked for with ``reasoning_control``."""
    engine = service_of(request).runtime.engine
    reply_id = await read_body(request, _read_id)
    done = await engine.control(ControlAction(engine.new_task_id(), reply_id, tenant_of(request).id))
    body: Json = {"success": not done.fault}
    return json_response({**body, "message": done.fault} if done.fault else body)


def _read_id(fields: Fields) -> str:
    """The reply's id as tasks know it."""
    name = fields.text("id")
    if not name:
        raise InvalidRequest("missing completion id")
    if (action := fields.text("action")) != "reasoning_end":
        raise InvalidRequest(f"unknown control action: {quoted(action)} (known: 'reasoning_end')")
    form = next((form for form in _FORMS if name.startswith(form)), "")
    return f"chatcmpl-{name.removeprefix(form)}" if form else name
