"""Calls of a conversation have ids that the family's template takes, whoever gave them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from corral.chat.adapt import Message
from corral.chat.formats.base import function_id, random_id, short_id
from corral.chat.formats.ids import with_ids


def call(name: str, call_id: str | None) -> dict[str, Any]:
    given = {} if call_id is None else {"id": call_id}
    return {**given, "type": "function", "function": {"name": name, "arguments": "{}"}}


def result(call_id: str | None) -> Message:
    return {"role": "tool", "content": "x", **({} if call_id is None else {"tool_call_id": call_id})}


def turn(*ids: str | None) -> list[Message]:
    """Calls with these ids and their results, in the other order if they have ids."""
    calls = {"role": "assistant", "content": "", "tool_calls": [call(f"f{i}", one) for i, one in enumerate(ids)]}
    return [calls, *map(result, ids if None in ids else reversed(ids))]


def ids_of(messages: list[Message]) -> tuple[list[str], list[Any]]:
    calls: Any = messages[0]["tool_calls"]
    return [one["id"] for one in calls], [message["tool_call_id"] for message in messages[1:]]


@pytest.mark.parametrize("given", [("call_abcdef0123456789", "toolu_x"), ("", ""), (None, None), ("a b", "é")])
def test_mistral_has_nine_letters_and_digits(given: tuple[str | None, ...]) -> None:
    calls, results = ids_of(with_ids(turn(*given), short_id))
    assert all(len(one) == 9 and one.isascii() and one.isalnum() for one in calls)
    assert len(set(calls)) == 2 and sorted(results) == sorted(calls)
    assert ids_of(with_ids(turn(*given), short_id)) == (calls, results), "the same prompt each time"


def test_results_stay_with_their_calls() -> None:
    calls, results = ids_of(with_ids(turn("call_1", "call_2"), short_id))
    assert results == calls[::-1]
    calls, results = ids_of(with_ids(turn(None, None), short_id))
    assert results == calls


def test_kimi_has_the_function_and_a_number() -> None:
    assert ids_of(with_ids(turn("call_1", "call_2"), function_id))[0] == ["functions.f0:0", "functions.f1:1"]


def test_ids_of_the_right_form_stay() -> None:
    for new_id, given in ((short_id, "abcDEF123"), (function_id, "functions.f0:7"), (random_id, "anything at all")):
        messages = turn(given)
        assert with_ids(messages, new_id) == messages


def test_every_call_has_an_id() -> None:
    """Ollama's have none, and some templates fail without."""
    calls, results = ids_of(with_ids(turn(None, None), random_id))
    assert calls == results == ["call_0", "call_1"]


def test_a_result_without_a_call_has_an_id() -> None:
    for given in (None, "call_1"):
        (message,) = with_ids([result(given)], short_id)
        assert len(str(message["tool_call_id"])) == 9


def test_results_in_another_order_than_their_calls_take_no_longer() -> None:
    """Each result is found at once, not by way of all calls that are open: that took half a minute."""
    n = 20_000
    calls = [{"id": str(i), "function": {"name": "f"}} for i in range(n)]
    told: list[Message] = [{"role": "assistant", "tool_calls": calls}, *(result(str(i)) for i in reversed(range(n)))]
    start_s = time.thread_time()
    assert len(with_ids(told, random_id)) == n + 1
    assert time.thread_time() - start_s < 3
