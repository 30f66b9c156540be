"""From a chat request to a prompt, and to what the reply has to be read as."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from corral.chat.adapt import Message
from corral.chat.borders import text_borders, token_borders
from corral.chat.conversation import Conversation
from corral.chat.formats.base import Expect, Format, Reader, TagFormat
from corral.chat.formats.detect import detect_format
from corral.chat.formats.grammar import Wanted, answer_constraint
from corral.chat.formats.history import adjust_history
from corral.chat.formats.ids import with_ids
from corral.chat.generic_tools import describe_tools, write_out_calls
from corral.chat.guard import Guard, Guarded, control_texts
from corral.chat.holder import CallHolder, NewMatcher
from corral.chat.template import ChatTemplate
from corral.chat.tools import ToolChoice, Tools
from corral.errors import InvalidRequest
from corral.ids import Token
from corral.ports import ModelInfo, Tokenizer
from corral.tasks import Constraint, ThoughtBudget

ReasoningFormat = Literal["none", "auto", "deepseek", "deepseek-legacy"]

NO_TOOLS = Tools({})
NO_CHOICE = ToolChoice("none")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request, checked. ``kwargs`` are variables for the template.

    After ``budget`` tokens (< 0: any number) thoughts are ended, by ``budget_message`` and the format's mark, or when
    that is asked for if they ``can_end`` so. Without ``parses`` the whole reply is text, without ``reads_calls`` calls
    are. With ``trusts_text`` control tokens in texts of users are control tokens.
    """

    conversation: Conversation
    tools: Tools = NO_TOOLS
    choice: ToolChoice = NO_CHOICE
    parallel: bool = True
    kwargs: Mapping[str, object] = field(default_factory=dict)
    reasoning: ReasoningFormat = "auto"
    budget: int = -1
    budget_message: str = ""
    can_end: bool = False
    parses: bool = True
    reads_calls: bool = True
    trusts_text: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether thoughts may be ended before the model ends them."""
        return self.budget >= 0 or self.can_end


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt's text, which may hold ``guarded.mark``, and how the reply to it is to be read.

    ``thoughts``: those at its end that the reply goes on with.
    """

    marked: str
    guarded: Guarded
    messages: list[Message]
    expect: Expect
    format: Format
    legacy: bool = False
    thoughts: str = ""

    @property
    def text(self) -> str:
        return self.guarded.clean(self.marked)

    @property
    def is_plain(self) -> bool:
        return self.format.is_plain(self.expect) and not self.legacy

    def reader(self, *, streams: bool = True) -> Reader:
        """A reader of one reply. "deepseek-legacy" leaves thoughts in the text of streams."""
        expect = self.expect
        if self.legacy and not streams:
            expect = replace(expect, keeps_thoughts=False)
        return Reader(self.format, expect)


class ChatModel:
    """A model's template, the format of its replies, and its control tokens. Safe to use from several threads.

    ``tool_template`` is used where a request has tools, if there is one. ``new_matcher`` compiles constraints, so as to
    find those of tools that do not compile for this vocabulary.
    """

    def __init__(
        self,
        template: ChatTemplate,
        info: ModelInfo,
        tokenizer: Tokenizer,
        tool_template: ChatTemplate | None = None,
        new_matcher: NewMatcher | None = None,
    ) -> None:
        self.template = template
        self.tool_template = tool_template or template
        self.format = detect_format(self.tool_template)
        self._plain_format = self.format if tool_template is None else detect_format(template)
        self._info = info
        self._tokenizer = tokenizer
        self._holder = CallHolder(self._literal, new_matcher)
        thinking = self.format.thinking
        thoughts = (*thinking.starts, *thinking.ends) if thinking else ()
        self._guard = Guard(control_texts(tokenizer), thoughts)

    def render(self, request: ChatRequest) -> Rendered:
        """Raises InvalidRequest."""
        template, format = self._of(request)
        conversation = request.conversation
        messages = list(conversation.messages)
        offered = _offered(request)
        if offered and not template.caps.supports_tools:
            messages = describe_tools(messages, offered)
        if not template.caps.supports_tool_calls:
            messages = write_out_calls(messages)
        messages = adjust_history(with_ids(messages, format.new_id), template.source, format.name)
        guarded = self._guarded([*messages, *_continued(conversation)], offered, request)
        if conversation.continued is not None:
            *messages, last = guarded.messages
        else:
            messages, last = guarded.messages, {}
        text = template.render(
            messages,
            add_generation_prompt=conversation.add_generation_prompt,
            kwargs=request.kwargs,
            tools=guarded.tools if template.caps.supports_tools else None,
        )
        text, is_thinking = _go_on(text, format, conversation, last)
        if is_thinking and conversation.continued is None and request.kwargs.get("enable_thinking") is False:
            text, is_thinking = text + _think_marks(text, format)[1], False  # the template cannot leave them out
        thoughts = str(last.get("reasoning_content", "")) if is_thinking else ""
        reads_calls = request.parses and request.reads_calls and request.choice.mode != "none"
        expect = Expect(
            request.tools,
            reads_calls=reads_calls,
            keeps_thoughts=not request.parses or request.reasoning in ("none", "deepseek-legacy"),
            is_thinking=is_thinking,
            is_text=conversation.continued is not None and not is_thinking,
            is_limited=request.is_limited,
            must_call=reads_calls and request.choice.mode == "required",
        )
        is_legacy = request.reasoning == "deepseek-legacy"
        return Rendered(text, guarded, messages, expect, format, is_legacy, guarded.clean(thoughts))

    def render_part(self, rendered: Rendered, messages: Sequence[Message], request: ChatRequest) -> str:
        """Fewer messages of the same conversation, rendered alike. Raises InvalidRequest."""
        template, _ = self._of(request)
        tools = rendered.guarded.tools if template.caps.supports_tools else None
        text = template.render(messages, add_generation_prompt=False, kwargs=request.kwargs, tools=tools)
        return rendered.guarded.clean(text)

    def tokens(self, rendered: Rendered) -> tuple[Token, ...]:
        return self._guard.tokens(rendered.marked, rendered.guarded.mark, self._info, self._tokenizer)

    def borders(self, rendered: Rendered, request: ChatRequest, prompt: Sequence[Token]) -> tuple[int, ...]:
        """As in ``tasks.Task``. The template runs twice more."""
        text = rendered.text
        positions = text_borders(text, rendered.messages, lambda part: self.render_part(rendered, part, request))
        return token_borders(prompt, text, positions, self._tokenizer)

    def preserved(self, rendered: Rendered) -> frozenset[Token]:
        """Control tokens that are marks of the format: the reader must see them. Without one, those around thoughts."""
        format, thinking = rendered.format, rendered.format.thinking
        around = (*thinking.starts, *thinking.ends) if thinking else ()
        found = map(self._tokens, around if rendered.is_plain else format.marks)
        return frozenset(tokens[0] for tokens in found if len(tokens) == 1)

    def thought_budget(
        self, rendered: Rendered, request: ChatRequest, *, has_stops: bool = False
    ) -> ThoughtBudget | None:
        """None where there are no thoughts, or nothing depends on them: no budget, no order to end, no stop string."""
        thinking = rendered.format.thinking
        is_watched = request.is_limited or (has_stops and request.parses)
        if thinking is None or not is_watched:
            return None
        return ThoughtBudget(
            request.budget,
            thinking.starts,
            (*thinking.ends, *_calls_that_end_thoughts(rendered)),
            (*self._tokens(request.budget_message), *self._tokens(thinking.ends[0])),
            n_open=len(self._tokens(rendered.thoughts)) if rendered.expect.is_thinking else -1,
            anywhere=thinking.anywhere,
            can_end=request.can_end,
        )

    def _tokens(self, text: str) -> list[Token]:
        return self._tokenizer.tokenize(text, add_special=False, parse_special=True)

    def constraint(self, rendered: Rendered, request: ChatRequest, own: Constraint | None = None) -> Constraint | None:
        """What the reply is held to by tools that may or must be called; None: nothing.

        ``own`` is the schema that the request wants of an answer that calls nothing; no other kind is one. Raises
        InvalidRequest.
        """
        if request.choice.mode == "none" or (own is not None and rendered.expect.is_text):
            return None  # an answer comes, or goes on
        reply = None if own is None else self._holder.reply(own)
        wanted = replace(_wanted(rendered), choice=request.choice, parallel=request.parallel, reply=reply)
        return self._holder.constraint(rendered.format, request.tools, wanted)

    def answer(self, own: Constraint, rendered: Rendered) -> Constraint:
        """``own`` as it acts on a reply that is a text: behind thoughts and the mark before texts."""
        return answer_constraint(own, rendered.format, _wanted(rendered), self._literal)

    def _literal(self, text: str) -> str:
        """A text as terms of a lark grammar: strings, and control tokens by their numbers."""
        terms = []
        for part, is_control in self._guard.pieces(text):
            if is_control:
                (token,) = self._tokenizer.tokenize(part, add_special=False, parse_special=True)
                terms.append(f"<[{token}]>")
            else:
                terms.append(json.dumps(part, ensure_ascii=False))
        return " ".join(terms)

    def _of(self, request: ChatRequest) -> tuple[ChatTemplate, Format]:
        if request.tools.by_name:
            return self.tool_template, self.format
        return self.template, self._plain_format

    def _guarded(self, messages: Sequence[Message], tools: Sequence[object], request: ChatRequest) -> Guarded:
        if request.trusts_text:
            return Guarded(list(messages), list(tools))
        return self._guard.protect(messages, tools)


def _wanted(rendered: Rendered) -> Wanted:
    """An answer, as the prompt begins it."""
    expect, thinking = rendered.expect, rendered.format.thinking
    has_thought = thinking is not None and rendered.text.rstrip().endswith(thinking.ends)
    return Wanted(NO_CHOICE, True, expect.is_thinking, has_thought, expect.is_text)


def _offered(request: ChatRequest) -> list[Mapping[str, object]]:
    """The tools that the model is told of: all of them even where none may be called, as the history may name them."""
    return request.tools.definitions


def _calls_that_end_thoughts(rendered: Rendered) -> tuple[str, ...]:
    format, thinking = rendered.format, rendered.format.thinking
    if not isinstance(format, TagFormat) or format.calls is None or not rendered.expect.reads_calls:
        return ()
    return format.calls.opens if thinking and thinking.ends_at_calls else ()


def _continued(conversation: Conversation) -> tuple[Message, ...]:
    return (conversation.continued,) if conversation.continued is not None else ()


def _go_on(text: str, format: Format, conversation: Conversation, last: Message) -> tuple[str, bool]:
    """The prompt with what of the reply is there already, and whether it ends within thoughts."""
    thinking = format.thinking
    is_open = thinking is not None and text.rstrip().endswith(thinking.starts)
    start, end = _think_marks(text, format) if thinking else ("", "")
    thoughts = str(last.get("reasoning_content", "")) if thinking else ""
    if conversation.continued is not None and conversation.part == "reasoning_content":
        if thinking is None and not conversation.is_named:
            return text, False  # nor are such thoughts shown anywhere else
        if thinking is None:
            raise InvalidRequest("Field 'continue_final_message': this model's template has no reasoning_content")
        text, is_open = text + ("" if is_open else start) + thoughts, True
    elif thoughts:
        text, is_open = text + ("" if is_open else start) + thoughts + end, False
    elif is_open and conversation.continued is not None:
        text, is_open = text + end, False
    if conversation.continued is not None and conversation.part == "content":
        text += format.opener + str(last["content"])
    return text, is_open


def _think_marks(text: str, format: Format) -> tuple[str, str]:
    """The marks around thoughts with the line breaks that go with them."""
    thinking = format.thinking
    assert thinking is not None
    lines = text.endswith("\n") and (text.rstrip().endswith(thinking.starts) or thinking.starts == ("<think>",))
    start = thinking.starts[0] + ("\n" if lines else "")
    end = f"\n{thinking.ends[0]}\n\n" if lines else thinking.ends[0]
    return start, end + format.reopener
