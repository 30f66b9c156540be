"""Owns what replies are held to where there are tools: whole calls that fit them, or an answer that fits a schema."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corral.chat.formats.base import Format, TagFormat
from corral.chat.formats.channels import MESSAGE, ChannelFormat
from corral.chat.formats.rules import SPACE, Literal, Rules, json_of
from corral.chat.formats.shapes import Shape, Shapes
from corral.chat.formats.tag_json import TagJson
from corral.chat.formats.tagged import Tagged
from corral.chat.schema import Json
from corral.chat.tools import ToolChoice, Tools
from corral.tasks import Constraint, ConstraintKind, Trigger, TriggerKind

NO_TRIGGERS: tuple[Trigger, ...] = ()


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
    text, triggers = f"{SPACE} {shape.whole}", NO_TRIGGERS
    if choice.mode == "required":
        reopens = isinstance(format.calls, TagJson) and format.calls.begins_open and wanted.is_text
        text = f"{SPACE} {literal(format.calls.opens[0]) if reopens else ''} {shape.whole}"
    elif wanted.reply is not None:
        text += f" | {_mark(format, literal)} {SPACE} {json_of(wanted.reply)}"
    else:
        text, triggers = shape.behind, shape.triggers
    return _behind_thoughts(Constraint(ConstraintKind.LARK, rules.text(text), triggers), format, wanted)


def answer_constraint(own: Constraint, format: Format, wanted: Wanted, literal: Literal) -> Constraint:
    """``own``, held behind thoughts and behind the mark that stands before texts.

    The mark is held, too: there may be other ways to begin a text, and a reply that nothing holds would go on. What
    begins with a trigger needs no mark but those that are known.
    """
    if wanted.is_text or own.after:
        return own
    if not format.opener:
        return _behind_thoughts(own, format, wanted)
    if own.triggers:
        return replace(own, after=format.opener, or_after=format.other_openers)
    rules = Rules(literal)
    space = SPACE if own.kind is ConstraintKind.JSON_SCHEMA else ""
    if isinstance(format, ChannelFormat):
        head = _Channels(format, Shapes(rules, [], is_many=False), wanted).head()
        return replace(own, head=rules.text(f"{head} {space} @answer"))
    head = f"{_mark(format, literal)} {space} @answer"
    return _behind_thoughts(replace(own, head=rules.text(head)), format, wanted)


def _mark(format: Format, literal: Literal) -> str:
    """The terms of the mark before a text. If it ends thoughts, too, it may have come."""
    if not format.opener:
        return ""
    ends_thoughts = format.thinking is not None and format.opener in format.thinking.ends
    return f"({literal(format.opener)}){'?' if ends_thoughts else ''}"


def _behind_thoughts(constraint: Constraint, format: Format, wanted: Wanted) -> Constraint:
    thinking = format.thinking
    if thinking is None or wanted.has_thought:
        return constraint
    opener = "" if wanted.is_thinking else thinking.starts[0]
    return replace(constraint, after=thinking.ends[0], or_after=thinking.ends[1:], opener=opener)


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
            held = Constraint(ConstraintKind.LARK, rules.text(shape.behind), shape.triggers)
            return _behind_thoughts(held, format, wanted) if format.calls else held
        end_of_text = rules.literal(format.thinking.ends[0] + format.reopener) if wanted.is_text else ""
        start = f"{end_of_text} {self._thoughts()} {shape.whole}"
        if wanted.choice.mode == "auto" and wanted.reply is not None:
            start = f"{self._thoughts()} ({shape.whole} | {self._head()} {json_of(wanted.reply)})"
        return Constraint(ConstraintKind.LARK, rules.text(start))

    def head(self) -> str:
        """The terms of any thoughts and of what a message with an answer begins with."""
        return f"{self._thoughts()} {self._head()}"

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
