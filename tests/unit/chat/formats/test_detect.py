"""Formats found out from templates: what a template prints for calls is read back as these calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corral.chat.adapt import Message
from corral.chat.borders import common_prefix
from corral.chat.deltas import whole_reply
from corral.chat.formats.base import Expect, Reader
from corral.chat.formats.derive import KEY_A, KEY_B, NAME, OTHER, TOOLS
from corral.chat.formats.detect import detect_format
from corral.chat.formats.families import FAMILIES
from corral.chat.template import ChatTemplate
from corral.chat.tools import read_tools

FOLDER = Path(__file__).parents[1] / "templates"
FAMILY = {
    "deepseek-v3": "derived",
    "functionary-3.2": "functionary-v3.2",
    "glm-4.5": "derived",
    "harmony": "gpt-oss",
    "hermes-2-pro": "derived",
    "kimi-k2": "kimi-k2",
    "llama-3.1": "derived",
    "mistral-nemo": "derived",
    "mistral-small": "derived",
    "nemotron": "derived",
    "qwen-2.5": "derived",
    "qwen-3": "derived",
    "qwen-3-coder": "qwen3-coder",
    "seed-oss": "derived",
    "chatml": "generic",
    "gemma-2": "generic",
    "deepseek-r1": "generic",
}
ASK: Message = {"role": "user", "content": "Q"}
ARGUMENTS = {KEY_A: 'V <1> "é"', KEY_B: "x"}


def template(name: str) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"), "<s>", "</s>")


def call(name: str, index: int) -> object:
    call_id = f"functions.{name}:{index}" if index > 5 else f"callid00{index}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}


@pytest.mark.parametrize("name", FAMILY)
def test_formats_by_template(name: str) -> None:
    assert detect_format(template(name)).name == FAMILY[name]


@pytest.mark.parametrize("name", [name for name, kind in FAMILY.items() if kind != "generic"])
@pytest.mark.parametrize("n_calls", [1, 2])
def test_printed_calls_are_read_back(name: str, n_calls: int) -> None:
    if n_calls == 2 and name in ("llama-3.1", "deepseek-v3", "harmony"):
        pytest.skip("the template prints one call")
    chat = template(name)
    format = detect_format(chat)
    first = 7 if name == "kimi-k2" else 1
    calls = [call(function, first + i) for i, function in enumerate((NAME, OTHER)[:n_calls])]
    said: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    prompt = chat.render([ASK], tools=TOOLS)
    text = chat.render([ASK, said], tools=TOOLS, add_generation_prompt=False)
    n = common_prefix(prompt, text)
    n = n if n == len(prompt) else max(text.rfind("<", 0, n), text.rfind("\n", 0, n), text.rfind("]", 0, n) + 1)
    reader = Reader(format, Expect(read_tools(TOOLS)))
    reply = whole_reply([*reader.feed(text[n:]), *reader.finish()])
    assert [(made.name, json.loads(made.arguments)) for made in reply.calls] == [
        (function, ARGUMENTS) for function in (NAME, OTHER)[:n_calls]
    ]


@pytest.mark.parametrize(
    ("marks", "name"),
    [
        ("[SYSTEM_PROMPT][TOOL_CALLS][ARGS]", "ministral-3"),
        ("{# chat_format=llm-jp-harmony-v1 #}<|channel|>", "llm-jp-harmony"),
        ("<|channel|>", "gpt-oss"),
        ("<atem:function_calls><|eom|>", "muse-glimmer"),
        (">>>all >>>${recipient}", "functionary-v3.2"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi-k2"),
        ("<|open|><|close|><|end_of_msg|>", "kimi-k3"),
        ("<role>ASSISTANT</role><arg_key>", "ling-3"),
        ("<|START_TEXT|><|START_ACTION|>", "cohere2-moe"),
        ("<|tool_list_start|><|tool_list_end|>", "lfm2"),
        ("List of tools: [", "lfm2.5"),
        ("<|role_sep|><|message_sep|>", "gigachat-v3"),
        (']<]minimax[>[<tool_call><invoke name="', "minimax-m3"),
        ("dsml_token DSML function_calls", "deepseek-dsml-function_calls"),
        ("dsml_token DSML tool_calls", "deepseek-dsml-tool_calls"),
        ("'<|tool_call>call:'", "gemma-4"),
        ('Tool usage guidelines:<function name="<param name="', "minicpm-5"),
        ("<tool_call><function=<parameter=", "qwen3-coder"),
    ],
)
def test_families_by_marks(marks: str, name: str) -> None:
    assert next(family.format.name for family in FAMILIES if family.detects(marks)) == name
