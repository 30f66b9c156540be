"""The body of a chat request: messages, template settings and the fields of every completion."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corral.api.schemas.fields import Fields
from corral.api.schemas.params import Params, read_params
from corral.api.schemas.prompt import Prompt
from corral.api.service import Service
from corral.chat.borders import text_borders, token_borders
from corral.chat.messages import Conversation, read_conversation, read_messages
from corral.errors import InvalidRequest
from corral.ports import ModelInfo, Rollback, Tokenizer

N_PROBS = 20
"""How many top tokens ``logprobs: true`` shows without ``top_logprobs``."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat request, read. ``echo``: text to repeat at the head of the reply. ``borders``: as in ``tasks.Task``."""

    prompt: Prompt
    params: Params
    echo: str = ""
    borders: tuple[int, ...] = ()


def read_chat(fields: Fields, service: Service) -> Chat:
    """Raises InvalidRequest."""
    runtime, tokenizer = service.runtime, service.runtime.model.tokenizer
    conversation, text = render_chat(fields, service)
    n_probs = _n_probs(fields)
    params = read_params(fields, service.defaults, service.server, tokenizer, runtime.n_slots)
    if n_probs is not None:
        params = replace(params, sampling=replace(params.sampling, n_probs=n_probs))
    echo = conversation.prefix if fields.boolean("echo") else ""
    prompt = chat_tokens(text, runtime.model.info, tokenizer)
    return Chat(prompt, params, echo, _borders(conversation, prompt, text, fields, service))


def render_chat(fields: Fields, service: Service) -> tuple[Conversation, str]:
    """The conversation and its prompt text. Raises InvalidRequest."""
    _refuse_tools(fields)
    messages = read_messages(fields.value("messages"))
    continue_final = _continue_final(fields)
    conversation = read_conversation(
        messages,
        prefill=service.defaults.prefill_assistant,
        continue_final=continue_final,
        add_generation_prompt=fields.boolean("add_generation_prompt", True),
    )
    return conversation, conversation.render(service.template, _template_kwargs(fields, service))


def chat_tokens(text: str, info: ModelInfo, tokenizer: Tokenizer) -> Prompt:
    """A rendered prompt as tokens; a beginning-of-text token that the template printed is not doubled."""
    if info.add_bos and info.bos_token is not None:
        text = text.removeprefix(tokenizer.piece(info.bos_token, special=True).decode("utf-8", "replace"))
    return tuple(tokenizer.tokenize(text, add_special=True, parse_special=True))


def _borders(
    conversation: Conversation, prompt: Prompt, text: str, fields: Fields, service: Service
) -> tuple[int, ...]:
    """Only where memory needs checkpoints: to find them the template runs twice more."""
    if service.runtime.traits.rollback is Rollback.ANY:
        return ()
    positions = text_borders(text, conversation.messages, service.template, _template_kwargs(fields, service))
    return token_borders(prompt, text, positions, service.runtime.model.tokenizer)


def _refuse_tools(fields: Fields) -> None:
    choice = fields.value("tool_choice")
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        raise InvalidRequest(f"Invalid tool_choice: {choice}")
    if fields.array("tools") or fields.array("functions"):
        raise InvalidRequest("Field 'tools': tool calls are not supported yet")


def _continue_final(fields: Fields) -> bool:
    """``continue_final_message``: true, or the name of the part to go on with."""
    value = fields.value("continue_final_message")
    if value == "reasoning_content":
        raise InvalidRequest("Field 'continue_final_message': continuing reasoning_content is not supported yet")
    return value == "content" or fields.boolean("continue_final_message")


def _template_kwargs(fields: Fields, service: Service) -> dict[str, object]:
    kwargs: dict[str, object] = {"enable_thinking": True, **service.server.chat_template_kwargs}
    kwargs.update(fields.object("chat_template_kwargs") or {})
    effort = fields.text("reasoning_effort")
    if effort == "none":
        kwargs["enable_thinking"] = False
    elif effort:
        kwargs.setdefault("reasoning_effort", effort)
    if not isinstance(kwargs["enable_thinking"], bool):
        raise InvalidRequest('invalid type for "enable_thinking" (expected boolean, got string)')
    return kwargs


def _n_probs(fields: Fields) -> int | None:
    """OpenAI's ``logprobs`` (boolean) and ``top_logprobs``; None if neither decides. The token itself always shows."""
    wanted = fields.value("logprobs") is True
    top = fields.value("top_logprobs")
    if top is not None and not wanted:
        raise InvalidRequest("top_logprobs requires logprobs to be set to true")
    return max(fields.integer("top_logprobs", default=N_PROBS, low=0), 1) if wanted else None
