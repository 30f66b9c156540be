"""Owns the ids of calls in a conversation: in the form that a family's template wants, whoever gave them."""

from __future__ import annotations

import hashlib
import re
import string
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corral.chat.adapt import Message
from corral.chat.deltas import NewId
from corral.chat.formats.base import function_id, short_id

_LETTERS = string.digits + string.ascii_letters


@dataclass(frozen=True, slots=True)
class _Form:
    """What ids look like, and how one is made of another one, a function's name and the number of the call."""

    pattern: re.Pattern[str]
    make: Callable[[str, str, int], str]


def _digest(given: str, name: str, index: int) -> str:
    """Nine letters and digits, always the same for one id: a prompt that is sent again must be the same."""
    number = int.from_bytes(hashlib.sha256((given or f"{index}:{name}").encode()).digest()[:8])
    return "".join(_LETTERS[number // len(_LETTERS) ** i % len(_LETTERS)] for i in range(9))


_FORMS: dict[NewId, _Form] = {
    short_id: _Form(re.compile(r"[A-Za-z0-9]{9}"), _digest),
    function_id: _Form(re.compile(r"functions\..+:\d+"), lambda _, name, index: function_id(index, name)),
}
_ANY = _Form(re.compile(r"(?s:.+)"), lambda _given, _name, index: f"call_{index}")


def with_ids(messages: Sequence[Message], new_id: NewId) -> list[Message]:
    """Calls and results with ids of the family's form: any, if it has none. Results without one follow their calls."""
    ids = _Ids(_FORMS.get(new_id, _ANY))
    return [ids.renamed(message) for message in messages]


@dataclass(slots=True)
class _Ids:
    """``known``: the new ids by the old ones; ``open``: those of calls that have no result yet."""

    form: _Form
    known: dict[str, str] = field(default_factory=dict)
    open: OrderedDict[str, None] = field(default_factory=OrderedDict)
    n_calls: int = 0

    def renamed(self, message: Message) -> Message:
        if message["role"] == "tool":
            return {**message, "tool_call_id": self._result(message)}
        calls = message.get("tool_calls")
        return {**message, "tool_calls": [self._call(call) for call in calls]} if isinstance(calls, list) else message

    def _call(self, call: dict[str, object]) -> dict[str, object]:
        given, function = str(call.get("id") or ""), call["function"]
        assert isinstance(function, dict)
        new = self._new(given, str(function["name"]))
        self.n_calls += 1
        self.known[given] = new
        self.open[new] = None
        return {**call, "id": new}

    def _result(self, message: Message) -> str:
        given = str(message.get("tool_call_id") or "")
        if given:
            new = self.known.get(given) or self._new(given, str(message.get("name") or "tool"))
        else:
            new = next(iter(self.open), None) or self._new("", "tool")
        self.open.pop(new, None)
        return new

    def _new(self, given: str, name: str) -> str:
        return given if self.form.pattern.fullmatch(given) else self.form.make(given, name, self.n_calls)
