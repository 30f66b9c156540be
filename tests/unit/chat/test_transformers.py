"""Templates of well-known families print what Hugging Face's ``apply_chat_template`` prints."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from corral.chat.adapt import Message, typed
from corral.chat.template import ChatTemplate
from corral.errors import InvalidRequest

utils = pytest.importorskip("transformers.utils.chat_template_utils")

TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
BOS, EOS = "<s>", "</s>"
NO_SYSTEM = {"gemma-2", "loops", "smollm-3"}
TYPED = {"typed"}

SYSTEM: Message = {"role": "system", "content": "Be kind.\n  Really. "}
ASK: Message = {"role": "user", "content": ' Why <b>&"é"?\n'}
ANSWER: Message = {"role": "assistant", "content": "So.\n\n"}
THOUGHT: Message = {**ANSWER, "reasoning_content": "\nHm.\n"}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Rome é", "days": 2, "where": {"lat": 1.5}}},
        }
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "abcdef123", "name": "weather", "content": '{"sunny": true}'}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <soon> é",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}},
                "required": ["city"],
            },
        },
    }
]
TALKS: dict[str, tuple[list[Message], list[Any] | None]] = {
    "ask": ([ASK], None),
    "system": ([SYSTEM, ASK], None),
    "turns": ([SYSTEM, ASK, ANSWER, ASK], None),
    "answered": ([ASK, ANSWER], None),
    "thoughts": ([ASK, THOUGHT, ASK, THOUGHT], None),
    "tools": ([SYSTEM, ASK], TOOLS),
    "called": ([ASK, CALL, RESULT], TOOLS),
    "bad turns": ([ASK, ASK], None),
}
VARIABLES: list[dict[str, Any]] = [{}, {"enable_thinking": False, "reasoning_effort": "high"}]


def theirs(source: str, messages: list[Message], tools: list[Any] | None, add: bool, **more: Any) -> str:
    (text,), _ = utils.render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=source,
        add_generation_prompt=add,
        bos_token=BOS,
        eos_token=EOS,
        **{"date_string": date.today().strftime("%d %b %Y"), **more},
    )
    return str(text)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("talk", TALKS)
def test_the_same_prompt(path: Path, talk: str) -> None:
    messages, tools = TALKS[talk]
    if path.stem in NO_SYSTEM and messages[0]["role"] == "system":
        pytest.skip("its system text goes to the next message here")
    source = path.read_text(encoding="utf-8")
    template = ChatTemplate(source, BOS, EOS)
    given = [typed(message) for message in messages] if path.stem in TYPED else messages
    for add in (True, False):
        for variables in VARIABLES:
            try:
                expected = theirs(source, given, tools, add, **variables)
            except Exception:
                with pytest.raises(InvalidRequest):
                    template.render(messages, add_generation_prompt=add, kwargs=variables, tools=tools)
            else:
                shown = template.render(messages, add_generation_prompt=add, kwargs=variables, tools=tools)
                assert shown == expected


def test_there_are_many_templates() -> None:
    assert len(TEMPLATES) >= 40
