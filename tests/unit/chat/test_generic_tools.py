"""Calls and results as text, for templates that know of neither."""

from __future__ import annotations

from corral.chat.adapt import Message
from corral.chat.generic_tools import write_out_calls

ASK: Message = {"role": "user", "content": "hi"}


def result(content: str) -> Message:
    return {"role": "tool", "tool_call_id": "1", "content": content}


def test_results_in_a_row_become_one_message() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    called: Message = {"role": "assistant", "content": "x", "tool_calls": [call]}
    assert write_out_calls([ASK, called, result("1"), result("2"), ASK, result("3")]) == [
        ASK,
        {"role": "assistant", "content": 'x\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'},
        {"role": "user", "content": "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"},
        ASK,
        {"role": "user", "content": "<tool_response>\n3\n</tool_response>"},
    ]


def test_many_results_take_no_time_of_their_own() -> None:
    (written,) = write_out_calls([result("x" * 1000)] * 30_000)
    assert len(str(written["content"])) > 30_000_000
