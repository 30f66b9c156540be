"""Owns what replies are held to where there are tools: whole calls that fit them, or an answer that fits a schema."""

from __future__ import annotations

from dataclasses import dataclass

from corral.chat.formats.base import Format, TagFormat, Thinking
from corral.chat.formats.channels import MESSAGE, ChannelFormat
from corral.chat.formats.rules import SPACE, Literal, Rules, json_of
from corral.chat.formats.shapes import Shape, Shapes
from corral.chat.formats.tag_json import TagJson
from corral.chat.formats.tagged import Tagged
from corral.chat.schema import Json
from corral.chat.tools import ToolChoice, Tools
from corral.tasks import Constraint, ConstraintKind, Trigger, TriggerKind


@dataclass(frozen=True, slots=True)
class Wanted:
    """``parallel``: there may be several calls. The prompt ends within thoughts (``is_thinking``), behind them
    (``has_thought``) or within text (``is_text``). ``reply``: the schema of the text where none is called, if any."""

    choice: ToolChoice
    parallel: bool = True
    is_thinking: bool = False
    has_thought: bool = False
    is_text: bool = False
    reply: Json | None = None


def call_constraint(format: Format, tools: Tools, wanted: Wanted, literal: Literal) -> Constraint | None:
    """What generation is held to; None if nothing is, or if the format has no grammar.

    A call that must be made, or else a text that a schema wants, holds from the first token behind the thoughts; other
    calls from a mark on that begins them.
    """
    choice = wanted.choice
    if choice.mode == "none":
        return None
    rules = Rules(literal)
    named = [tools.by_name[choice.name]] if choice.name else list(tools.by_name.values())
    shapes = Shapes(rules, named, wanted.parallel and not choice.name)
    if isinstance(format, ChannelFormat):
        return _Channels(format, shapes, wanted).constraint()
    if not isinstance(format, TagFormat) or format.calls is None:
        return None
    shape = shapes.of(format.calls)
    thoughts = ("", "") if wanted.has_thought else _thoughts(format.thinking, wanted.is_thinking)
    if choice.mode == "required":
        reopens = isinstance(format.calls, TagJson) and format.calls.begins_open and wanted.is_text
        mark = literal(format.calls.opens[0]) if reopens else ""
        return Constraint(ConstraintKind.LARK, rules.text(f"{SPACE} {mark} {shape.whole}"), (), *thoughts)
    if wanted.reply is not None:
        start = f"{SPACE} {shape.whole} | {_answer(format, wanted.reply, literal)}"
        return Constraint(ConstraintKind.LARK, rules.text(start), (), *thoughts)
    return Constraint(ConstraintKind.LARK, rules.text(shape.behind), shape.triggers, *thoughts)


def answer_constraint(format: Format, wanted: Wanted, literal: Literal) -> Constraint | None:
    """What an answer that fits ``wanted.reply`` is held to where a mark stands before texts; None where none does.

    The mark is held, too: there may be other ways to begin a text, and a reply that nothing holds would go on.
    """
    if not format.opener or wanted.reply is None:
        return None
    rules = Rules(literal)
    if isinstance(format, ChannelFormat):
        return _Channels(format, Shapes(rules, [], is_many=False), wanted).answer(wanted.reply)
    thoughts = ("", "") if wanted.has_thought else _thoughts(format.thinking, wanted.is_thinking)
    return Constraint(ConstraintKind.LARK, rules.text(_answer(format, wanted.reply, literal)), (), *thoughts)


def _answer(format: Format, schema: Json, literal: Literal) -> str:
    """The terms of a text of JSON."""
    return f"{literal(format.opener) if format.opener else ''} {SPACE} {json_of(schema)}"


def _thoughts(thinking: Thinking | None, is_thinking: bool) -> tuple[str, str]:
    """``after`` and ``opener`` of a constraint."""
    if thinking is None:
        return "", ""
    return thinking.ends[0], "" if is_thinking else thinking.starts[0]


@dataclass(frozen=True, slots=True)
class _Channels:
    """Replies in messages: thoughts in any number of them, then a call or an answer."""

    format: ChannelFormat
    shapes: Shapes
    wanted: Wanted

    def constraint(self) -> Constraint:
        rules, wanted, format = self.shapes.rules, self.wanted, self.format
        shape = self._harmony() if format.calls is None else self._muse(format.calls)
        if wanted.choice.mode == "auto" and wanted.reply is None:
            thoughts = _thoughts(format.thinking, wanted.is_thinking) if format.calls else ("", "")
            return Constraint(ConstraintKind.LARK, rules.text(shape.behind), shape.triggers, *thoughts)
        end_of_text = rules.literal(format.thinking.ends[0] + format.reopener) if wanted.is_text else ""
        start = f"{end_of_text} {self._thoughts()} {shape.whole}"
        if wanted.choice.mode == "auto" and wanted.reply is not None:
            start = f"{self._thoughts()} ({shape.whole} | {self._head()} {json_of(wanted.reply)})"
        return Constraint(ConstraintKind.LARK, rules.text(start))

    def answer(self, schema: Json) -> Constraint:
        """JSON behind any thoughts."""
        start = f"{self._thoughts()} {self._head()} {json_of(schema)}"
        return Constraint(ConstraintKind.LARK, self.shapes.rules.text(start))

    def _thoughts(self) -> str:
        """Messages of thoughts; the first may be open already."""
        rules, thinking = self.shapes.rules, self.format.thinking
        rest = f"{rules.until(thinking.ends[0])} {rules.literal(self.format.reopener)}"
        name = rules.add("thoughts", f"{rules.literal(thinking.starts[0])} {rest}")
        return f"{rest if self.wanted.is_thinking else ''} {name}*"

    def _head(self) -> str:
        """What a message with an answer begins with."""
        lit = self.shapes.rules.literal
        if self.format.calls is not None:
            return f'" to=user"? {lit(MESSAGE)}'
        return f"{lit('<|channel|>final')} {self._json_mark()} {lit(MESSAGE)}"

    def _json_mark(self) -> str:
        """What tells that a message is JSON, or nothing."""
        return f"""(" json" | " "? {self.shapes.rules.literal("<|constrain|>")} "json")?"""

    def _harmony(self) -> Shape:
        rules, lit = self.shapes.rules, self.shapes.rules.literal
        channel = f"""({lit("<|channel|>")} ("commentary" | "analysis"))?"""
        head = rules.add("head", f"{channel} {self._json_mark()}")
        calls = self.shapes.choose(lambda tool: f"{lit(tool.name)} {head} {lit(MESSAGE)} {json_of(tool.parameters)}")
        behind = f'" to=functions." {calls}'
        begin = Trigger(r"(?:^|<\|start\|>assistant|<\|channel\|>[a-z]+)( to=functions\.)", TriggerKind.PATTERN)
        return Shape(f"{lit('<|channel|>commentary')} {behind}", behind, (begin,))

    def _muse(self, calls: Tagged) -> Shape:
        """Each call is a message to its function. What only begins with the mark of calls is held, too."""
        shapes, rules, lit = self.shapes, self.shapes.rules, self.shapes.rules.literal
        section, write = calls.section[0], shapes.tagged(calls)
        bodies = {tool.name: rules.add("call", write(tool)) for tool in shapes.tools}
        close = f"{SPACE} {lit(calls.section_end[0])}"
        one = rules.one_of(
            "message",
            (
                f"{lit(f' to={name}{MESSAGE}{section}')} {SPACE} {lit(calls.open)} {body} {close}"
                for name, body in bodies.items()
            ),
        )
        next_head = lit(self.format.thinking.ends[0] + self.format.reopener)
        more = f"({next_head} {one})*" if shapes.is_many else ""
        whole = rules.add("calls", f"{one} {more}")
        rest = f"{SPACE} {lit(calls.open)} ({' | '.join(bodies.values())}) {close} {more}"
        begin = rf"(?:^|<\|start\|>assistant)( to=(?:{shapes.names})<\|message\|>)"
        return Shape(whole, f"({whole} | {rest})", (Trigger(begin, TriggerKind.PATTERN), Trigger(section)))
