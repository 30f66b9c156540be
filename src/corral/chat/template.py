"""A model's chat template: Jinja2 in a sandbox, with the globals and filters that Hugging Face templates expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from corral.errors import InvalidRequest, LoadError

Message = dict[str, object]

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""What is used where a model has no template of its own."""

_NEEDLE = "corral-needle"
_TOOL = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template prints, found by rendering samples. Names are those of ``chat_template_caps``."""

    supports_string_content: bool = False
    supports_typed_content: bool = False
    supports_system_role: bool = False
    supports_tools: bool = False
    supports_tool_calls: bool = False
    supports_parallel_tool_calls: bool = False
    supports_object_arguments: bool = False
    supports_preserve_reasoning: bool = False
    supports_reasoning_effort: bool = False

    def as_json(self) -> dict[str, bool]:
        return asdict(self)


class ChatTemplate:
    """Renders conversations. Safe to use from several threads at once.

    ``source`` is template text or the name ``chatml``. ``bos`` and ``eos`` are the texts of those tokens, "" if none.
    ``now`` gives the time that templates may print. Raises LoadError if the text is not a template.
    """

    def __init__(self, source: str, bos: str, eos: str, now: Callable[[], datetime] = datetime.now) -> None:
        self.source = CHATML if source == "chatml" else source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._now = now
        try:
            self._template = _environment(now).from_string(self.source)
        except TemplateError as error:
            raise LoadError(f"the chat template does not compile: {error}") from error
        self.caps = self._probe()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, object] | None = None,
        tools: Sequence[object] | None = None,
    ) -> str:
        """The prompt's text. ``kwargs`` are further variables. Raises InvalidRequest if the template refuses."""
        now = self._now()
        variables: dict[str, object] = {
            **self._tokens,
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
            **(kwargs or {}),
            "messages": self._adapt(messages),
            "add_generation_prompt": add_generation_prompt,
        }
        if tools:
            variables["tools"] = tools
        try:
            return self._template.render(variables)
        except Exception as error:  # somebody else's program: whatever it raises, it cannot render this request
            raise InvalidRequest(f"the chat template failed: {error}") from error

    def _adapt(self, messages: Sequence[Message]) -> list[Message]:
        adapted = list(messages)
        if not self.caps.supports_system_role:
            adapted = _merge_system(adapted)
        if not self.caps.supports_string_content and self.caps.supports_typed_content:
            adapted = [_typed(message) for message in adapted]
        return adapted

    def _probe(self) -> Capabilities:
        # While probing nothing is adapted: assume everything.
        self.caps = Capabilities(*[True] * len(fields(Capabilities)))
        user: Message = {"role": "user", "content": _NEEDLE}
        ask: Message = {"role": "user", "content": "x"}
        thought: Message = {"role": "assistant", "content": "x", "reasoning_content": _NEEDLE}
        return Capabilities(
            supports_string_content=self._prints([user]),
            supports_typed_content=self._prints([_typed(user)]),
            supports_system_role=self._prints([{"role": "system", "content": _NEEDLE}, ask]),
            supports_tools=self._prints([ask], "probe_tool", tools=[_TOOL]),
            supports_tool_calls=self._prints([ask, _calls("{}")], "probe_tool"),
            supports_parallel_tool_calls=self._prints([ask, _calls("{}", _NEEDLE)]),
            supports_object_arguments=self._prints([ask, _calls({"needle": "x"})], '"needle":'),
            supports_preserve_reasoning=self._prints([ask, thought, ask], preserve_thinking=True),
            supports_reasoning_effort=self._prints([ask], reasoning_effort=_NEEDLE),
        )

    def _prints(
        self, messages: list[Message], needle: str = _NEEDLE, tools: list[object] | None = None, **kwargs: object
    ) -> bool:
        try:
            return needle in self.render(messages, tools=tools, kwargs=kwargs)
        except InvalidRequest:
            return False


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _typed(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _calls(*arguments: object) -> Message:
    calls = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": "probe_tool", "arguments": given}}
        for i, given in enumerate(arguments)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _merge_system(messages: list[Message]) -> list[Message]:
    """System text goes in front of the next message's text, or into a user message of its own at the end."""
    merged: list[Message] = []
    held: list[str] = []
    for message in messages:
        if message["role"] == "system":
            held.append(str(message["content"]))
            continue
        if held and isinstance(message.get("content"), str):
            message = {**message, "content": "\n".join([*held, str(message["content"])])}
            held = []
        merged.append(message)
    return [*merged, {"role": "user", "content": "\n".join(held)}] if held else merged
