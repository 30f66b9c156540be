"""Which format a template's model writes: a known family, what rendering shows, or the one we describe ourselves."""

from __future__ import annotations

from dataclasses import dataclass

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Sink
from corral.chat.formats.base import CallFormat, Format, TagFormat, Thinking, random_id, short_id
from corral.chat.formats.derive import TOOLS, derive_calls
from corral.chat.formats.families import COHERE_R7B, known_format
from corral.chat.formats.json_calls import JsonCalls
from corral.chat.formats.tag_json import TagJson
from corral.chat.template import ChatTemplate
from corral.chat.tools import Tools

GENERIC = JsonCalls()
"""What a model is told to write whose template does not speak of tools."""

_THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<thought>", "</thought>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<reasoning>", "</reasoning>"),
    ("<thinking>", "</thinking>"),
)

_FENCES = (("```json", "```"), ("```", "```"))
_BY_MARK: tuple[tuple[str, CallFormat], ...] = (
    (
        "<｜tool▁calls▁begin｜>",
        TagJson(
            "<｜tool▁call▁begin｜>",
            ("<｜tool▁sep｜>", "\n"),
            ("<｜tool▁call▁end｜>",),
            ("<｜tool▁calls▁begin｜>",),
            ("<｜tool▁calls▁end｜>",),
            before_name=("function<｜tool▁sep｜>",),
            fences=_FENCES,
        ),
    ),
    (
        "<|action_start|><|plugin|>",
        JsonCalls(("<|action_start|><|plugin|>",), ("<|action_end|>",), arguments="parameters"),
    ),
    ("Write 'Action:' followed by", JsonCalls(("Action:",), (), "tool_name", "parameters", is_array=True)),
    ("Write \\'Action:\\' followed by", JsonCalls(("Action:",), (), "tool_name", "parameters", is_array=True)),
    (" functools[", JsonCalls(("functools",), (), is_array=True)),
    ("<|tool_call|>", JsonCalls(("<|tool_call|>",), ("<|/tool_call|>",), is_array=True)),
    ("<TOOLCALL>", JsonCalls(("<TOOLCALL>",), ("</TOOLCALL>",), is_array=True)),
    ("[TOOL_CALLS]", JsonCalls(("[TOOL_CALLS]",), (), id="id", is_array=True)),
)
"""Formats that templates speak of and do not print, by a mark in their text."""


@dataclass(frozen=True, slots=True)
class Either:
    """Two formats of calls: what is not in the first is tried as the second."""

    first: CallFormat
    second: CallFormat

    @property
    def opens(self) -> tuple[str, ...]:
        return (*self.first.opens, *self.second.opens)

    @property
    def bare(self) -> str:
        return self.first.bare

    def read(self, cursor: Cursor, sink: Sink, tools: Tools) -> Steps[bool]:
        if (yield from self.first.read(cursor, sink, tools)):
            return True
        cursor.undo()
        cursor.begin()
        return (yield from self.second.read(cursor, sink, tools))


def detect_format(template: ChatTemplate) -> Format:
    """The format of replies to a template's prompts."""
    source = template.source
    known = known_format(source)
    if known is not None:
        return known
    if "<|START_ACTION|>" in source:
        return COHERE_R7B
    thinking = _thinking(source)
    calls, name = _calls(template)
    if thinking and calls is not GENERIC:
        thinking = Thinking(thinking.starts, thinking.ends, ends_at_calls=True)
    noise = ("<response>", "</response>") if "your response between <response></response>" in source else ()
    new_id = short_id if "[TOOL_CALLS]" in source else random_id
    return TagFormat(name, thinking, calls, noise, _ends(calls), new_id)


def _calls(template: ChatTemplate) -> tuple[CallFormat, str]:
    calls = derive_calls(lambda messages, add: template.render(messages, add_generation_prompt=add, tools=TOOLS))
    if isinstance(calls, JsonCalls) and calls.bare and "<|python_tag|>" in template.source:
        calls = JsonCalls(("<|python_tag|>",), (), calls.name, calls.arguments, bare=calls.bare)
    if calls is not None:
        return (calls if template.caps.supports_tools or calls == GENERIC else Either(calls, GENERIC)), "derived"
    for mark, known in _BY_MARK:
        if mark in template.source:
            return (known if template.caps.supports_tools else Either(known, GENERIC)), "by-mark"
    return GENERIC, "generic"


def _ends(calls: CallFormat) -> tuple[str, ...]:
    """Marks inside and after calls."""
    if isinstance(calls, Either):
        return (*_ends(calls.first), *_ends(calls.second))
    fields = (
        "after",
        "close",
        "section_end",
        "name_end",
        "before_name",
        "id_mark",
        "id_before",
        "key_end",
        "value_end",
    )
    values = [getattr(calls, field, ()) for field in fields]
    return tuple(m for value in values for m in ((value,) if isinstance(value, str) else value) if m.strip())


def _thinking(source: str) -> Thinking | None:
    for start, end in _THOUGHTS:
        if start in source or end in source:
            return Thinking((start,), (end,))
    return None
