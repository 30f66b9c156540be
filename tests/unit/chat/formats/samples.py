"""What models of each family write, and what a client must get of it."""

from __future__ import annotations

from dataclasses import dataclass

from corral.chat.deltas import Call, Reply
from corral.chat.formats.base import Format, TagFormat, Thinking
from corral.chat.formats.detect import Either
from corral.chat.formats.families import (
    COHERE_MOE,
    COHERE_R7B,
    FAMILIES,
    FUNCTIONARY_3_2,
    GEMMA_4,
    GIGACHAT,
    GLM_CALLS,
    GPT_OSS,
    KIMI_K2,
    KIMI_K3,
    LFM2,
    LING_3,
    MINICPM_5,
    MINIMAX_M3,
    MINISTRAL,
    MUSE,
    QWEN_CODER,
)
from corral.chat.formats.json_calls import JsonCalls
from corral.chat.formats.tag_json import TagJson
from corral.chat.tools import Tools, read_tools

GLM = TagFormat("glm-4.5", Thinking(ends_at_calls=True), GLM_CALLS)
"""As it is derived."""

TOOLS: Tools = read_tools(
    [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "days": {"type": "integer"},
                        "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
                        "tags": {"type": "array", "items": {"type": "string"}},
                        "any": {},
                    },
                },
            },
        },
        {"type": "function", "function": {"name": "now"}},
    ]
)

TWO = TagFormat("glm-or-generic", None, Either(GLM_CALLS, JsonCalls()))
HERMES = TagFormat("hermes", Thinking(ends_at_calls=True), JsonCalls())
LLAMA_3 = TagFormat("llama-3", None, JsonCalls(("<|python_tag|>",), (), arguments="parameters", bare="[{"))
NEMO = TagFormat("mistral-nemo", None, JsonCalls(("[TOOL_CALLS]",), (), id="id", is_array=True))
SMALL = TagFormat("mistral-small", None, TagJson("[TOOL_CALLS]", ("[ARGS]",), id_mark=("[CALL_ID]",)))
APERTUS = TagFormat(
    "apertus", None, JsonCalls(("<|tools_prefix|>",), ("<|tools_suffix|>",), is_array=True, name_is_key=True)
)
SOLAR = TagFormat(
    "solar",
    None,
    TagJson(
        "<|tool_call:begin|>",
        ("<|tool_call:args|>",),
        ("<|tool_call:end|>",),
        ("<|tool_calls|>",),
        ("<|calls|>",),
        id_before=("<|tool_call:name|>",),
    ),
)
DEEPSEEK = TagFormat(
    "deepseek-r1",
    Thinking(ends_at_calls=True),
    TagJson(
        "<｜tool▁call▁begin｜>",
        ("<｜tool▁sep｜>", "\n"),
        ("<｜tool▁call▁end｜>",),
        ("<｜tool▁calls▁begin｜>",),
        ("<｜tool▁calls▁end｜>",),
        before_name=("function<｜tool▁sep｜>",),
        fences=(("```json", "```"), ("```", "```")),
    ),
)


def family(name: str) -> Format:
    return next(one.format for one in FAMILIES if one.format.name == name)


@dataclass(frozen=True)
class Sample:
    """``calls`` are (name, arguments) or (name, arguments, id)."""

    format: Format
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, ...], ...] = ()
    is_thinking: bool = False

    @property
    def reply(self) -> Reply:
        calls = tuple(
            Call(call[2] if len(call) > 2 else new_id(i, call[0]), call[0], call[1])
            for i, call in enumerate(self.calls)
        )
        return Reply(self.content, self.reasoning, calls)


def new_id(index: int, _name: str) -> str:
    return f"id-{index}"


ROME = ("weather", '{"city": "Rome"}')
N = "]<]minimax[>["
D = "｜DSML｜"

SAMPLES = [
    Sample(HERMES, "Hello <b>world</b>\n", "Hello <b>world</b>\n"),
    Sample(HERMES, "<think>\nHm.\n</think>\n\nHi", "Hi", "Hm."),
    Sample(HERMES, "Hm.\n</think>\n\nHi", "Hi", "Hm.", is_thinking=True),
    Sample(HERMES, "Hm, no end", "", "Hm, no end", is_thinking=True),
    Sample(HERMES, "</think>\n\nHi", "Hi"),
    Sample(HERMES, "The tag <think> is one, </think> another", "The tag <think> is one, </think> another"),
    Sample(
        HERMES,
        'I ask.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        "I ask.",
        calls=(ROME,),
    ),
    Sample(
        HERMES,
        '<think>Two.</think><tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>\n'
        '<tool_call>\n{"arguments": {"city": "}{\\""}, "name": "weather"}\n</tool_call> Done',
        "Done",
        "Two.",
        (ROME, ("weather", '{"city": "}{\\""}')),
    ),
    Sample(
        HERMES,
        'Hm<tool_call>{"name": "now"}</tool_call>',
        "",
        "Hm",
        (("now", "{}"),),
        is_thinking=True,
    ),
    Sample(
        HERMES,
        '<tool_call>{"type": "function", "function": {"name": "now", "arguments": "{\\"a\\": 1}"}}</tool_call>',
        calls=(("now", '{"a": 1}'),),
    ),
    Sample(HERMES, "<tool_call>\nnot JSON\n</tool_call>", "<tool_call>\nnot JSON\n</tool_call>"),
    Sample(HERMES, '<tool_call>{"name": "weather", "argu', '<tool_call>{"name": "weather", "argu'),
    Sample(
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {"city": "Ro',
        calls=(("weather", '{"city": "Ro'),),
    ),
    Sample(TWO, '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>', calls=(ROME,)),
    Sample(TWO, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value></tool_call>", calls=(ROME,)),
    Sample(LLAMA_3, '{"name": "weather", "parameters": {"city": "Rome"}}', calls=(ROME,)),
    Sample(LLAMA_3, '<|python_tag|>{"name": "weather", "parameters": {"city": "Rome"}}', calls=(ROME,)),
    Sample(LLAMA_3, '{"name": "Bob", "age": 5}', '{"name": "Bob", "age": 5}'),
    Sample(
        NEMO,
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}, "id": "abcdef123"}, '
        '{"name": "now", "arguments": {}, "id": "abcdef124"}]',
        calls=((*ROME, "abcdef123"), ("now", "{}", "abcdef124")),
    ),
    Sample(SMALL, 'So[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Rome"}', "So", calls=((*ROME, "abc123def"),)),
    Sample(SMALL, "See [TOOL_CALLS] there", "See [TOOL_CALLS] there"),
    Sample(
        MINISTRAL,
        '[THINK]Hm.[/THINK]Ok[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]now[ARGS]{}',
        "Ok",
        "Hm.",
        (ROME, ("now", "{}")),
    ),
    Sample(
        APERTUS,
        '<|tools_prefix|>[{"weather": {"city": "Rome"}}, {"now": {}}]<|tools_suffix|>',
        calls=(ROME, ("now", "{}")),
    ),
    Sample(
        SOLAR,
        '<|tool_calls|><|tool_call:begin|>x1<|tool_call:name|>weather<|tool_call:args|>{"city": "Rome"}'
        "<|tool_call:end|><|tool_call:begin|>x2<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        calls=((*ROME, "x1"), ("now", "{}", "x2")),
    ),
    Sample(
        DEEPSEEK,
        "Hm.</think>Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Rome"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "Ok",
        "Hm.",
        (ROME, ("now", "{}")),
        is_thinking=True,
    ),
    Sample(
        family("deepseek-dsml-function_calls"),
        f'Hm.</think>Ok\n\n<{D}function_calls>\n<{D}invoke name="weather">\n<{D}parameter name="city" string="true">'
        f'Rome "x"</{D}parameter>\n<{D}parameter name="days" string="false">2</{D}parameter>\n</{D}invoke>\n'
        f'<{D}invoke name="now">\n</{D}invoke>\n</{D}function_calls>',
        "Ok",
        "Hm.",
        (("weather", '{"city": "Rome \\"x\\"", "days": 2}'), ("now", "{}")),
        is_thinking=True,
    ),
    Sample(
        KIMI_K2,
        "Hm<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "",
        "Hm",
        ((*ROME, "functions.weather:0"), ("now", "{}", "functions.now:1")),
        is_thinking=True,
    ),
    Sample(
        KIMI_K3,
        "Hm<|close|>think<|sep|><|open|>response<|sep|>Ok<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Rome'
        '<|close|>argument<|sep|><|open|>argument key="days" type="integer"<|sep|>2<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
        "Ok",
        "Hm",
        (("weather", '{"city": "Rome", "days": 2}'),),
        is_thinking=True,
    ),
    Sample(
        LING_3,
        "Hm</think>Ok<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call><|role_end|>",
        "Ok",
        "Hm",
        (("weather", '{"city": "Rome", "days": 2}'),),
        is_thinking=True,
    ),
    Sample(GLM, "<think>a</think>\n<tool_call>now\n</tool_call>", "", "a", (("now", "{}"),)),
    Sample(
        COHERE_MOE,
        'Hm<|END_THINKING|><|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "weather", "parameters": '
        '{"city": "Rome"}},\n{"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        "",
        "Hm",
        ((*ROME, "0"), ("now", "{}", "1")),
        is_thinking=True,
    ),
    Sample(COHERE_MOE, "<|START_THINKING|>Hm<|END_THINKING|><|START_TEXT|>Hello<|END_TEXT|>", "Hello", "Hm"),
    Sample(COHERE_R7B, "<|START_THINKING|>Hm<|END_THINKING|><|START_RESPONSE|>Hello<|END_RESPONSE|>", "Hello", "Hm"),
    Sample(
        LFM2,
        'Ok<|tool_call_start|>[weather(city="Ro, me)", days=2, tags=[\'a\', "b"], any=True), now()]<|tool_call_end|>',
        "Ok",
        calls=(("weather", '{"city": "Ro, me)", "days": 2, "tags": ["a", "b"], "any": true}'), ("now", "{}")),
    ),
    Sample(
        GIGACHAT,
        'Ok<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": {"city": "Rome"}}',
        "Ok",
        calls=(ROME,),
    ),
    Sample(
        MINIMAX_M3,
        f'<mm:think>Hm</mm:think>Ok{N}<tool_call>\n{N}<invoke name="weather">{N}<city>Ro<b>me{N}</city>{N}<days>2'
        f"{N}</days>{N}<where>{N}<lat>1.5{N}</lat>{N}</where>{N}<tags>{N}<item>1{N}</item>{N}</tags>{N}</invoke>\n"
        f'{N}<invoke name="now">{N}</invoke>\n{N}</tool_call>',
        "Ok",
        "Hm",
        (
            ("weather", '{"city": "Ro<b>me", "days": 2, "where": {"lat": 1.5}, "tags": ["1"]}'),
            ("now", "{}"),
        ),
    ),
    Sample(
        GEMMA_4,
        '<|channel>thought\nHm<channel|>Ok<|tool_call>call:weather{city:<|"|>Ro"me<|"|>,days:2,where:{lat:1.5},tags:'
        '[<|"|>a<|"|>]}<tool_call|><|tool_call>call:now{}<tool_call|>',
        "Ok",
        "Hm",
        (("weather", '{"city": "Ro\\"me", "days": 2, "where": {"lat": 1.5}, "tags": ["a"]}'), ("now", "{}")),
    ),
    Sample(GEMMA_4, "Hi<|channel>thought\nHm<channel|> there", "Hi there", "Hm"),
    Sample(
        MINICPM_5,
        '<think>Hm</think>Ok <function name="weather"><param name="city"><![CDATA[a </param> b]]></param>'
        '<param name="days">2</param></function>',
        "Ok",
        "Hm",
        (("weather", '{"city": "a </param> b", "days": 2}'),),
    ),
    Sample(
        QWEN_CODER,
        "Hm\n</think>\n\nOk\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n<parameter=any>\nTrue\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "Ok",
        "Hm",
        (("weather", '{"city": "New\\nYork", "days": 2, "any": "True"}'), ("now", "{}")),
        is_thinking=True,
    ),
    Sample(QWEN_CODER, "<function=weather>\n<parameter=city>\nRo", calls=(("weather", '{"city": "Ro'),)),
    Sample(
        FUNCTIONARY_3_2,
        'all\nOk>>>weather\n{"city": "Rome"}>>>now\n{}',
        "Ok",
        calls=(ROME, ("now", "{}")),
    ),
    Sample(FUNCTIONARY_3_2, 'weather\n{"city": "Rome"}', calls=(ROME,)),
    Sample(FUNCTIONARY_3_2, "all\na >>> b", "a >>> b"),
    Sample(
        GPT_OSS,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city": "Rome"}<|call|>',
        "",
        "Hm.",
        (ROME,),
    ),
    Sample(
        GPT_OSS,
        "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.now<|channel|>commentary"
        " json<|message|>{}",
        "Let me see.",
        calls=(("now", "{}"),),
    ),
    Sample(
        GPT_OSS,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello <b>",
        "Hello <b>",
        "Hm.",
    ),
    Sample(GPT_OSS, "just text", "just text"),
    Sample(
        MUSE,
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=tool<|message|><atem:function_calls>\n"
        '<atem:invoke name="weather">\n<atem:parameter name="city">Rome</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Bye<|eot|>",
        "Bye",
        "Hm.",
        (ROME,),
    ),
]
