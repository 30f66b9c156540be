"""Conversations as prompts: what ``LLM.chat`` asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corral.chat.builtin import is_template
from corral.chat.conversation import read_conversation
from corral.chat.held import held
from corral.chat.jobs import ChatRequest
from corral.chat.loaded import chat_model_of
from corral.chat.messages import read_messages
from corral.chat.template import Message
from corral.chat.tools import read_tool_choice, read_tools
from corral.errors import InvalidRequest
from corral.llm.checks import wrong
from corral.llm.params import SamplingParams
from corral.llm.prompt import Asked
from corral.ports import Rollback
from corral.runtime import Runtime


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What all conversations of one call have in common; the fields are arguments of ``LLM.chat``."""

    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    parallel: bool | None = None
    kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final: bool = False


def conversations_of(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation is not a list of them. Raises InvalidRequest for what is neither."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise wrong("messages", messages, "a list of messages, or a list of such lists")
    return [messages] if not messages or isinstance(messages[0], dict) else list(messages)  # type: ignore[list-item, arg-type]


class Chats:
    """Writes conversations out by a template: the one given, or the model's."""

    def __init__(self, runtime: Runtime, settings: ChatSettings, template: str | None = None) -> None:
        """Raises InvalidRequest if the tools or the template are wrong."""
        if template and not is_template(template):
            raise wrong("chat_template", template, "Jinja or a name such as llama3")
        self._runtime = runtime
        self._settings = settings
        self._model = chat_model_of(runtime.model, template)
        self._tools = read_tools([dict(tool) for tool in settings.tools] or None)
        choice = settings.tool_choice
        self._choice = read_tool_choice(dict(choice) if isinstance(choice, Mapping) else choice, self._tools)

    def asked(self, messages: Sequence[Message], params: SamplingParams) -> Asked:
        """Raises InvalidRequest for messages that are wrong and for what cannot be held."""
        model = self._model
        request = self._request(messages, params)
        if params.grammar and request.choice.mode != "none":
            raise InvalidRequest("a grammar cannot be used with tools that may be called")
        rendered = model.render(request)
        prompt = model.tokens(rendered)
        sampling = held(params.sampling(), model, request, rendered)
        borders: tuple[int, ...] = ()
        if self._runtime.traits.rollback is not Rollback.ANY:
            borders = model.borders(rendered, request, prompt)
        thoughts = model.thought_budget(rendered, request, has_stops=bool(params.limits().stop))
        sampling = replace(sampling, thoughts=thoughts)
        return Asked(prompt, params, sampling, model.preserved(rendered), borders, rendered)

    def _request(self, messages: Sequence[Message], params: SamplingParams) -> ChatRequest:
        settings, budget = self._settings, params.thinking_token_budget
        conversation = read_conversation(
            read_messages(list(messages)),
            prefill=False,
            continue_final=settings.continue_final,
            add_generation_prompt=settings.add_generation_prompt,
        )
        can_several = self._model.tool_template.caps.supports_parallel_tool_calls
        return ChatRequest(
            conversation,
            self._tools,
            self._choice,
            parallel=can_several if settings.parallel is None else settings.parallel,
            kwargs=settings.kwargs or {},
            budget=-1 if budget is None else budget,
        )
