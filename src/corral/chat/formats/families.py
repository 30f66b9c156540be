"""The families that are known by marks in their templates, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from corral.chat.cursor import Cursor, Steps
from corral.chat.deltas import Sink
from corral.chat.formats.base import Expect, Format, TagFormat, Thinking, function_id, short_id
from corral.chat.formats.channels import ChannelFormat, harmony_head, muse_head
from corral.chat.formats.gemma import QUOTE, GemmaCalls
from corral.chat.formats.json_calls import JsonCalls
from corral.chat.formats.minimax import MARK, MinimaxCalls
from corral.chat.formats.python_calls import PythonCalls
from corral.chat.formats.tag_json import TagJson
from corral.chat.formats.tagged import Tagged

THINK = Thinking()
SQUARE_THINK = Thinking(("[THINK]",), ("[/THINK]",))
COHERE_THINK = Thinking(("<|START_THINKING|>",), ("<|END_THINKING|>",))


@dataclass(frozen=True, slots=True)
class Family:
    """``has`` must all be in the template's text, ``any_of`` one of them, ``lacks`` none."""

    format: Format
    has: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()

    def detects(self, source: str) -> bool:
        return (
            all(mark in source for mark in self.has)
            and not any(mark in source for mark in self.lacks)
            and (not self.any_of or any(mark in source for mark in self.any_of))
        )


@dataclass(frozen=True, slots=True)
class FunctionaryFormat(TagFormat):
    """Functionary v3.2: the prompt ends with ``>>>``; a reply begins with ``all`` or the name of a function."""

    def program(self, cursor: Cursor, sink: Sink, expect: Expect) -> Steps[None]:
        if not expect.is_text:
            yield from self._recipient(cursor, sink, expect)
        yield from super(FunctionaryFormat, self).program(cursor, sink, expect)

    def _recipient(self, cursor: Cursor, sink: Sink, expect: Expect) -> Steps[None]:
        if (yield from cursor.accept("all\n")) or not expect.reads_calls:
            return
        calls = replace(FUNCTIONARY_CALLS, open="")
        cursor.begin()
        if (yield from calls.read(cursor, sink, expect.tools)):
            sink.border()
        else:
            cursor.undo()


FUNCTIONARY_CALLS = TagJson(">>>", ("\n",), only_known=True, begins_open=True)

GPT_OSS = ChannelFormat(
    "gpt-oss",
    Thinking(("<|channel|>analysis<|message|>",), ("<|end|>",), anywhere=True),
    begins=("<|start|>", "<|channel|>", " to="),
    ends=("<|end|>", "<|return|>", "<|call|>"),
    read_head=harmony_head,
    opener="<|channel|>final<|message|>",
    other_openers=tuple(
        f"<|channel|>final{kind}<|message|>" for kind in (" json", "<|constrain|>json", " <|constrain|>json")
    ),
)

MUSE = ChannelFormat(
    "muse-glimmer",
    Thinking((" to=self<|message|>",), ("<|eom|>",), anywhere=True),
    begins=("<|start|>", " to=", "<|message|>"),
    ends=("<|eom|>", "<|eot|>"),
    read_head=muse_head,
    opener=" to=user<|message|>",
    calls=Tagged(
        '<atem:invoke name="',
        '">',
        '<atem:parameter name="',
        '">',
        "</atem:parameter>",
        "</atem:invoke>",
        ("<atem:function_calls>",),
        ("</atem:function_calls>",),
    ),
    other_openers=("<|start|>assistant<|message|>",),
)


def _dsml(block: str) -> TagFormat:
    mark = "｜DSML｜"
    calls = Tagged(
        f'<{mark}invoke name="',
        '"',
        f'<{mark}parameter name="',
        '"',
        f"</{mark}parameter>",
        f"</{mark}invoke>",
        (f"<{mark}{block}>",),
        (f"</{mark}{block}>",),
        tag_end=">",
    )
    return TagFormat(f"deepseek-dsml-{block}", Thinking(ends_at_calls=True), calls, extra_marks=(mark,))


MINISTRAL = TagFormat(
    "ministral-3", SQUARE_THINK, TagJson("[TOOL_CALLS]", ("[ARGS]",)), extra_marks=("[ARGS]",), new_id=short_id
)

KIMI_K2 = TagFormat(
    "kimi-k2",
    Thinking(ends_at_calls=True),
    TagJson(
        "<|tool_call_begin|>",
        ("<|tool_call_argument_begin|>",),
        ("<|tool_call_end|>",),
        ("<|tool_calls_section_begin|>",),
        ("<|tool_calls_section_end|>",),
        id_pattern=r"(?P<id>(?:functions\.)?(?P<name>.+?)(?::\d+)?)",
    ),
    extra_marks=("<|tool_calls_section_end|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    new_id=function_id,
)

KIMI_K3 = TagFormat(
    "kimi-k3",
    Thinking(("<|open|>think<|sep|>",), ("<|close|>think<|sep|>", "<|open|>response<|sep|>")),
    Tagged(
        '<|open|>call tool="',
        '"',
        '<|open|>argument key="',
        '"',
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
        ("<|open|>tools<|sep|>",),
        ("<|close|>tools<|sep|>",),
        tag_end="<|sep|>",
    ),
    noise=(
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        '<|open|>message role="assistant"<|sep|>',
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
    extra_marks=("<|open|>", "<|close|>", "<|sep|>"),
    opener="<|open|>response<|sep|>",
)

GLM_CALLS = Tagged("<tool_call>", "\n", "<arg_key>", "</arg_key>", "</arg_value>", "</tool_call>", value="<arg_value>")
LING_3 = TagFormat("ling-3", Thinking(ends_at_calls=True), GLM_CALLS, noise=("<|role_end|>",))

COHERE_CALLS = JsonCalls(
    ("<|START_ACTION|>",), ("<|END_ACTION|>",), "tool_name", "parameters", "tool_call_id", is_array=True
)
COHERE_MOE = TagFormat(
    "cohere2-moe",
    replace(COHERE_THINK, ends=("<|END_THINKING|>", "<|START_TEXT|>"), ends_at_calls=True),
    COHERE_CALLS,
    noise=("<|START_TEXT|>", "<|END_TEXT|>", "<|END_OF_TURN_TOKEN|>"),
    extra_marks=("<|END_ACTION|>",),
    opener="<|START_TEXT|>",
)
COHERE_R7B = TagFormat(
    "command-r7b",
    COHERE_THINK,
    COHERE_CALLS,
    noise=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    extra_marks=("<|END_ACTION|>",),
    opener="<|START_RESPONSE|>",
)

LFM2 = TagFormat(
    "lfm2", THINK, PythonCalls(("<|tool_call_start|>",), ("<|tool_call_end|>",)), extra_marks=("<|tool_call_end|>",)
)

GIGACHAT = TagFormat(
    "gigachat-v3",
    None,
    JsonCalls(("<|message_sep|>\n\nfunction call<|role_sep|>\n",), ("<|message_sep|>",)),
    extra_marks=("<|message_sep|>", "<|role_sep|>"),
)

MINIMAX_M3 = TagFormat(
    "minimax-m3",
    Thinking(("<mm:think>",), ("</mm:think>",)),
    MinimaxCalls(),
    extra_marks=(MARK, "<tool_call>", "</tool_call>"),
)

GEMMA_4 = TagFormat(
    "gemma-4",
    Thinking(("<|channel>thought",), ("<channel|>",), anywhere=True),
    GemmaCalls(),
    extra_marks=("<|channel>", "<tool_call|>", QUOTE),
)

MINICPM_5 = TagFormat(
    "minicpm-5",
    THINK,
    Tagged('<function name="', '">', '<param name="', '">', "</param>", "</function>", cdata=True),
)

QWEN_CODER = TagFormat(
    "qwen3-coder",
    Thinking(ends_at_calls=True),
    Tagged(
        "<function=",
        ">",
        "<parameter=",
        ">",
        "</parameter>",
        "</function>",
        ("<tool_call>",),
        ("</tool_call>",),
        trims=True,
    ),
    extra_marks=("</tool_call>",),
)

FUNCTIONARY_3_2 = FunctionaryFormat("functionary-v3.2", None, FUNCTIONARY_CALLS, noise=(">>>all\n",), opener="all\n")

FAMILIES: Sequence[Family] = (
    Family(MINISTRAL, ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"), lacks=("[CALL_ID]",)),
    Family(replace(GPT_OSS, name="llm-jp-harmony"), ("chat_format=llm-jp-harmony-v1",)),
    Family(GPT_OSS, ("<|channel|>",)),
    Family(MUSE, ("<atem:function_calls>", "<|eom|>")),
    Family(FUNCTIONARY_3_2, (">>>all", ">>>${recipient}")),
    Family(KIMI_K2, ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")),
    Family(KIMI_K3, ("<|open|>", "<|close|>", "<|end_of_msg|>")),
    Family(LING_3, ("<role>ASSISTANT</role>", "<arg_key>")),
    Family(COHERE_MOE, ("<|START_TEXT|>", "<|START_ACTION|>")),
    Family(LFM2, ("<|tool_list_start|>", "<|tool_list_end|>")),
    Family(replace(LFM2, name="lfm2.5"), ("List of tools: [",), lacks=("<|tool_list_start|>",)),
    Family(GIGACHAT, ("<|role_sep|>", "<|message_sep|>"), lacks=("<|function_call|>",)),
    Family(MINIMAX_M3, (MARK, "<tool_call>", "<invoke name=")),
    Family(_dsml("function_calls"), ("dsml_token", "DSML", "function_calls")),
    Family(_dsml("tool_calls"), ("dsml_token", "DSML", "tool_calls")),
    Family(GEMMA_4, ("'<|tool_call>call:'",)),
    Family(MINICPM_5, ("Tool usage guidelines:", '<function name="', '<param name="')),
    Family(
        QWEN_CODER,
        ("<tool_call>", "<function=", "<parameter="),
        lacks=("'<tool_call><function=' ~ tool_call.name ~ '>'",),
    ),
)


def known_format(source: str) -> Format | None:
    """The family whose marks are in a template's text; None if it must be derived."""
    return next((family.format for family in FAMILIES if family.detects(source)), None)
