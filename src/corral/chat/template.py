"""A model's chat template: renders conversations, and finds out by rendering what it can print."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from datetime import datetime

from corral.chat.adapt import Capabilities, Message, adapt, typed, with_descriptions
from corral.chat.builtin import BUILTIN, CHATML
from corral.chat.jinja import changes_values, new_environment, variables_of
from corral.chat.unicode import well_formed
from corral.errors import InvalidRequest, LoadError

__all__ = ["CHATML", "Capabilities", "ChatTemplate", "Message"]

_NEEDLE = "corral-needle"
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "",
        "parameters": {"type": "object", "properties": {"probe": {"type": "string"}}},
    },
}


class ChatTemplate:
    """Renders conversations. Safe to use from several threads at once.

    ``source`` is template text or the name of a built-in one. ``bos`` and ``eos`` are the texts of those tokens, "" if
    none. ``now`` gives the time that templates may print. Raises LoadError if the text is not a template.
    """

    def __init__(self, source: str, bos: str, eos: str, now: Callable[[], datetime] = datetime.now) -> None:
        self.source = BUILTIN.get(source, source)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._now = now
        try:
            environment = new_environment(self.source, now)
            self._template = environment.from_string(self.source)
            variables = variables_of(environment, self.source)
        except Exception as error:  # Jinja recurses with what is nested, and reckons with numbers of any size
            raise LoadError(f"the chat template does not compile: {error}") from error
        self._changes_values = changes_values(self.source)
        self._takes_functions = {"functions", "tools"} & variables == {"functions"}
        self._takes_text_arguments = True
        self._no_tools: list[object] | None = None
        self._wants_descriptions = False
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
            "documents": None,
            **(kwargs or {}),
            "messages": adapt(messages, self.caps, self._takes_text_arguments),
            "tools": self._shown(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        if self._takes_functions:  # Firefunction
            variables["functions"] = json.dumps(tools, ensure_ascii=False, indent=2) if tools else ""
        try:
            return well_formed(self._template.render(deepcopy(variables) if self._changes_values else variables))
        except Exception as error:  # somebody else's program: whatever it raises, it cannot render this request
            raise InvalidRequest(f"the chat template failed: {error}") from error

    def _shown(self, tools: Sequence[object] | None) -> list[object] | None:
        if not tools:
            return self._no_tools
        return list(map(with_descriptions, tools)) if self._wants_descriptions else list(tools)

    def _probe(self) -> Capabilities:
        # While probing nothing is adapted: assume everything.
        self.caps = Capabilities(*[True] * len(fields(Capabilities)))
        user: Message = {"role": "user", "content": _NEEDLE}
        system: Message = {"role": "system", "content": _NEEDLE}
        ask: Message = {"role": "user", "content": "x"}
        thought: Message = {"role": "assistant", "content": "x", "reasoning_content": _NEEDLE}
        if not self._prints([user]) and not self._prints([typed(user)]):
            self._no_tools = []  # some loop over tools, whether there are any or not
        if not self._prints([ask], "probe_tool", tools=[_TOOL]):
            self._wants_descriptions = True
            self._wants_descriptions = self._prints([ask], "probe_tool", tools=[_TOOL])
        takes_objects = self._prints_members(ask)
        takes_text = self._prints([ask, _calls(f'["{_NEEDLE}"]')])
        either: object = {} if takes_objects else "{}"
        caps = Capabilities(
            supports_string_content=self._prints([user]),
            supports_typed_content=self._prints([typed(user)]),
            supports_system_role=self._prints([system, ask]) or self._prints([typed(system), typed(ask)]),
            supports_tools=self._prints([ask], "probe_tool", tools=[_TOOL]),
            supports_tool_calls=self._prints([ask, _calls(either)], "probe_tool"),
            supports_parallel_tool_calls=self._prints([ask, _calls(either, either)], "probe_two"),
            supports_object_arguments=takes_objects,
            supports_preserve_reasoning=self._prints([ask, thought, ask], preserve_thinking=True),
            supports_reasoning_effort=self._prints([ask], reasoning_effort=_NEEDLE),
        )
        self._takes_text_arguments = takes_text
        return caps

    def _prints_members(self, ask: Message) -> bool:
        """Whether arguments given as an object are printed, and not as Python writes a dictionary."""
        given = [ask, _calls({"needle": "x"})]
        return self._prints(given, "needle") and not self._prints(given, "'needle':")

    def _prints(
        self, messages: list[Message], needle: str = _NEEDLE, tools: list[object] | None = None, **kwargs: object
    ) -> bool:
        try:
            return needle in self.render(messages, tools=tools, kwargs=kwargs)
        except InvalidRequest:
            return False


def _calls(*arguments: object) -> Message:
    names = ("probe_tool", "probe_two")
    calls = [
        {"id": f"call0000{i}", "type": "function", "function": {"name": names[i], "arguments": given}}
        for i, given in enumerate(arguments)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
