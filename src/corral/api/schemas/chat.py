"""The body of a chat request: messages, template settings and the fields of every completion."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corral.api.schemas.absent import refuse_in_chat
from corral.api.schemas.defaults import Defaults
from corral.api.schemas.fields import Fields, check_size, type_name
from corral.api.schemas.params import Params, read_params
from corral.api.schemas.prompt import Prompt, check_fits, within
from corral.api.schemas.thoughts import has_tags, read_budget_message, read_chat_budget, read_tagged_budget
from corral.api.service import Service
from corral.chat.conversation import Conversation, Part, read_conversation
from corral.chat.held import held
from corral.chat.jobs import ChatRequest, ReasoningFormat, Rendered
from corral.chat.messages import read_messages
from corral.chat.tools import read_tool_choice, read_tools
from corral.config import ServerConfig
from corral.errors import InvalidRequest
from corral.ports import Rollback
from corral.tasks import ThoughtBudget

MAX_KWARGS = 1000
"""Variables for a template."""

N_PROBS = 20
"""How many top tokens ``logprobs: true`` shows without ``top_logprobs``."""

_CHAT_NAMES = """
add_generation_prompt continue_final_message echo functions logprobs max_completion_tokens n n_cmpl n_predict n_probs
response_format stop top_logprobs
"""
CHAT_ONLY = frozenset(_CHAT_NAMES.split())
"""Fields that dialects besides OpenAI's chat do not have, or have by another name."""

_FORMATS: dict[str, ReasoningFormat] = {
    "none": "none",
    "auto": "auto",
    "deepseek": "deepseek",
    "deepseek-legacy": "deepseek-legacy",
}


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat request, read. ``echo``: text to repeat at the head of the reply. ``borders``: as in ``tasks.Task``."""

    prompt: Prompt
    params: Params
    rendered: Rendered
    echo: str = ""
    borders: tuple[int, ...] = ()


def read_chat(fields: Fields, service: Service) -> Chat:
    """Raises InvalidRequest."""
    runtime, tokenizer = service.runtime, service.runtime.model.tokenizer
    request, rendered = render_chat(fields, service)
    check_fits([rendered.text], tokenizer, runtime.n_ctx_slot)
    n_probs = _n_probs(fields)
    params = read_params(fields, service.defaults, service.server, tokenizer, runtime.n_slots)
    if n_probs is not None:
        params = replace(params, sampling=replace(params.sampling, n_probs=min(n_probs, tokenizer.n_vocab)))
    params = replace(params, preserved_tokens=params.preserved_tokens | service.chat.preserved(rendered))
    thoughts = _thoughts(fields, request, rendered, service, has_stops=bool(params.limits.stop))
    sampling = held(params.sampling, service.chat, request, rendered, service.defaults.sampling.constraint)
    params = replace(params, sampling=replace(sampling, thoughts=thoughts))
    echo = request.conversation.prefix if fields.boolean("echo") else ""
    prompt = within(service.chat.tokens(rendered), runtime.n_ctx_slot)
    return Chat(prompt, params, rendered, echo, _borders(request, rendered, prompt, service))


def _thoughts(
    fields: Fields, request: ChatRequest, rendered: Rendered, service: Service, *, has_stops: bool
) -> ThoughtBudget | None:
    """Between the marks of the model's format, or where it has none between those that the body names."""
    if rendered.format.thinking is None and has_tags(fields):
        return read_tagged_budget(fields, service.server, service.runtime.model.tokenizer)
    return service.chat.thought_budget(rendered, request, has_stops=has_stops)


def render_chat(fields: Fields, service: Service) -> tuple[ChatRequest, Rendered]:
    """The request and its prompt. Raises InvalidRequest."""
    can_several = service.chat.tool_template.caps.supports_parallel_tool_calls
    request = read_request(fields, service.server, service.defaults, can_several)
    return request, service.chat.render(request)


def count_tokens(fields: Fields, service: Service) -> int:
    """The length of a chat request's prompt. Raises InvalidRequest."""
    return len(service.chat.tokens(render_chat(fields, service)[1]))


def read_request(fields: Fields, server: ServerConfig, defaults: Defaults, can_several: bool) -> ChatRequest:
    """What a body asks, whatever the model is but for ``can_several`` calls in a reply. Raises InvalidRequest."""
    refuse_in_chat(fields)
    tools = read_tools(fields.value("tools"))
    choice = read_tool_choice(fields.value("tool_choice"), tools)
    if choice.mode != "none" and fields.value("grammar") is not None:
        raise InvalidRequest("Cannot use custom grammar constraints with tools.")
    messages = read_messages(fields.value("messages"))
    return ChatRequest(
        conversation=_conversation(fields, messages, defaults),
        tools=tools,
        choice=choice,
        parallel=fields.boolean("parallel_tool_calls", can_several),
        kwargs=_template_kwargs(fields, server),
        reasoning=_reasoning_format(fields, server.reasoning_format),
        budget=read_chat_budget(fields, server),
        budget_message=read_budget_message(fields, server),
        can_end=fields.boolean("reasoning_control"),
        parses=not server.skip_chat_parsing,
        reads_calls=fields.boolean("parse_tool_calls", True),
        trusts_text=server.parse_special_user_text,
    )


def _conversation(fields: Fields, messages: list[dict[str, object]], defaults: Defaults) -> Conversation:
    return read_conversation(
        messages,
        prefill=defaults.prefill_assistant,
        continue_final=_continue_final(fields),
        add_generation_prompt=fields.boolean("add_generation_prompt", True),
    )


def _borders(request: ChatRequest, rendered: Rendered, prompt: Prompt, service: Service) -> tuple[int, ...]:
    """Only where memory needs checkpoints: to find them the template runs twice more."""
    if service.runtime.traits.rollback is Rollback.ANY:
        return ()
    return service.chat.borders(rendered, request, prompt)


def _continue_final(fields: Fields) -> bool | Part:
    """``continue_final_message``: true, or the name of the part to go on with."""
    value = fields.value("continue_final_message")
    if value == "content" or value == "reasoning_content":
        return value
    return fields.boolean("continue_final_message")


def _reasoning_format(fields: Fields, default: str) -> ReasoningFormat:
    name = fields.text("reasoning_format", default)
    if name not in _FORMATS:
        raise InvalidRequest(f"Unknown reasoning format: {name} (known: {', '.join(_FORMATS)})")
    return _FORMATS[name]


def _template_kwargs(fields: Fields, server: ServerConfig) -> dict[str, object]:
    """Variables for the template: the server's, over them the request's, over these its ``reasoning_effort``."""
    kwargs: dict[str, object] = {"enable_thinking": server.reasoning != "off"}
    _set_effort(kwargs, server.reasoning_effort)
    own = fields.object("chat_template_kwargs") or {}
    check_size("chat_template_kwargs", len(own), MAX_KWARGS, "members")
    for given in (server.chat_template_kwargs, own):
        kwargs.update((name, value) for name, value in given.items() if name != "enable_thinking" or value is not None)
    _set_effort(kwargs, fields.text("reasoning_effort"))
    if isinstance(kwargs.get("reasoning_effort"), str):
        kwargs.setdefault("reasoning_strength", kwargs["reasoning_effort"])
    if not isinstance(kwargs["enable_thinking"], bool):
        kind = type_name(kwargs["enable_thinking"])
        raise InvalidRequest(f'invalid type for "enable_thinking" (expected boolean, got {kind})')
    keeps = kwargs.setdefault("preserve_reasoning", server.reasoning_preserve)
    if isinstance(keeps, bool):
        for name, value in (("preserve_thinking", keeps), *((name, not keeps) for name in _DROPS)):
            kwargs.setdefault(name, value)
    return kwargs


def _set_effort(kwargs: dict[str, object], effort: str) -> None:
    """The effort ``none`` switches thinking off, an empty one changes nothing."""
    if effort == "none":
        kwargs["enable_thinking"] = False
        kwargs.pop("reasoning_effort", None)
    elif effort:
        kwargs["reasoning_effort"] = effort


_DROPS = ("clear_thinking", "truncate_history_thinking", "drop_thinking")
"""What templates call it if thoughts of earlier turns are left out."""


def _n_probs(fields: Fields) -> int | None:
    """OpenAI's ``logprobs`` (boolean) and ``top_logprobs``; None if neither decides. The token itself always shows."""
    wanted = fields.value("logprobs") is True
    top = fields.value("top_logprobs")
    if top is not None and not wanted:
        raise InvalidRequest("top_logprobs requires logprobs to be set to true")
    return max(fields.integer("top_logprobs", default=N_PROBS, low=0), 1) if wanted else None
