"""Bodies of Ollama's /api/chat and /api/generate, as the requests that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

from corral.api.schemas.fields import Fields, Json, wrong_type
from corral.errors import InvalidRequest

_OPTIONS = {"num_keep": "n_keep"} | {
    name: name
    for name in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "seed",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "stop",
    )
}
_OWN = (
    "cache_prompt",
    "cache_salt",
    "chat_template_kwargs",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "id_slot",
    "json_schema",
    "lark",
    "lora",
    "preserved_tokens",
    "priority",
    "reasoning_budget_end_tags",
    "reasoning_budget_message",
    "reasoning_budget_start_tag",
    "reasoning_budget_tokens",
    "regex",
)
_ABSENT = ("suffix", "template", "context")
_EFFORTS = ("low", "medium", "high", "max")


@dataclass(frozen=True, slots=True)
class OllamaBody:
    """A request, read. ``chat`` None: it only asks for the model to be there. ``raw``: ``chat`` holds a prompt."""

    chat: Fields | None
    stream: bool
    raw: bool = False


def read_chat_body(fields: Fields, n_ctx: int) -> OllamaBody:
    """POST /api/chat in OpenAI's form. Raises InvalidRequest."""
    stream = fields.boolean("stream", True)
    messages = [_message(message, f"messages.{i}") for i, message in enumerate(fields.objects("messages"))]
    if not messages:
        return OllamaBody(None, stream)
    body = _settings(fields, n_ctx, stream)
    body["messages"] = messages
    if tools := fields.array("tools"):
        body["tools"] = [{"type": "function", **tool} if isinstance(tool, dict) else tool for tool in tools]
    return OllamaBody(Fields(body), stream)


def read_generate_body(fields: Fields, n_ctx: int) -> OllamaBody:
    """POST /api/generate as a chat with one question, or with ``raw`` as a prompt. Raises InvalidRequest."""
    for name in _ABSENT:
        if fields.value(name):
            raise InvalidRequest(f"Field '{name}': not supported")
    _refuse_images(fields, "images")
    stream, prompt = fields.boolean("stream", True), fields.text("prompt")
    if not prompt:
        return OllamaBody(None, stream)
    body = _settings(fields, n_ctx, stream)
    if fields.boolean("raw"):
        return OllamaBody(Fields({**body, "prompt": prompt}), stream, raw=True)
    system = fields.text("system")
    head = [{"role": "system", "content": system}] if system else []
    body["messages"] = [*head, {"role": "user", "content": prompt}]
    return OllamaBody(Fields(body), stream)


def _message(message: Json, where: str) -> Json:
    fields = Fields(message, where)
    _refuse_images(fields, f"{where}.images")
    role = message.get("role")
    chat: Json = {"role": role, "content": fields.text("content")}
    if thinking := fields.text("thinking"):
        chat["reasoning_content"] = thinking
    if calls := fields.objects("tool_calls"):
        chat["tool_calls"] = calls
    if name := fields.text("tool_name"):
        chat["name"] = name
    if not isinstance(role, str):
        raise wrong_type(f"{where}.role", "string", role)
    return chat


def _refuse_images(fields: Fields, where: str) -> None:
    if fields.array("images"):
        raise InvalidRequest(f"Field '{where}': image input is not supported")


def _settings(fields: Fields, n_ctx: int, stream: bool) -> Json:
    body: Json = {"stream": stream, **_sampling(Fields(fields.object("options") or {}, "options"), n_ctx)}
    body |= {name: fields.value(name) for name in _OWN if fields.value(name) is not None}
    body |= {name: fields.value(name) for name in ("logprobs", "top_logprobs") if fields.value(name)}
    _set_format(body, fields.value("format"))
    _set_thinking(body, fields)
    return body


def _sampling(options: Fields, n_ctx: int) -> Json:
    """Options that only say how the model is loaded do not count."""
    found = {ours: options.value(name) for name, ours in _OPTIONS.items() if options.value(name) is not None}
    if options.value("num_predict") is not None:
        found["n_predict"] = max(options.integer("num_predict", default=-1, low=-2), -1)
    if options.value("repeat_last_n") is not None:
        n_last = options.integer("repeat_last_n", default=-1, low=-1)
        found["repeat_last_n"] = n_ctx if n_last == -1 else n_last
    return found


def _set_format(body: Json, wanted: object) -> None:
    if wanted is None or wanted == "":
        return
    if isinstance(wanted, dict):
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted}}
    elif wanted == "json":
        body["response_format"] = {"type": "json_object"}
    else:
        raise InvalidRequest("Field 'format': must be 'json' or a JSON schema")


def _set_thinking(body: Json, fields: Fields) -> None:
    think = fields.value("think")
    if think is None:
        return
    if isinstance(think, bool):
        body["chat_template_kwargs"] = {"enable_thinking": think, **(fields.object("chat_template_kwargs") or {})}
    elif isinstance(think, str) and think in _EFFORTS:
        body["reasoning_effort"] = think
    else:
        raise InvalidRequest(f"Field 'think': must be true, false or one of {', '.join(_EFFORTS)}")
