"""A call format found out by rendering: what a template prints for a call, compared with what it prints for text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from corral.chat.borders import common_prefix
from corral.chat.formats.base import CallFormat
from corral.chat.formats.json_calls import JsonCalls
from corral.chat.formats.tag_json import TagJson
from corral.chat.formats.tagged import Tagged
from corral.chat.template import Message
from corral.errors import InvalidRequest

NAME, OTHER = "first_probe_fn", "second_probe_fn"
KEY_A, KEY_B = "argument_one", "argument_two"
VALUE_A, VALUE_B = "VALUEONE", "VALUETWO"
ID_A, ID_B = "callid001", "callid002"
TEXT, QUESTION = "ANSWERTEXT", "QUESTIONTEXT"

Render = Callable[[Sequence[Message], bool], str]
"""Messages and whether to add the generation prompt, to text; the tools are those of this module."""

TOOLS: list[object] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "a probe",
            "parameters": {
                "type": "object",
                "properties": {KEY_A: {"type": "string"}, KEY_B: {"type": "string"}},
                "required": [KEY_A, KEY_B],
            },
        },
    }
    for name in (NAME, OTHER)
]


_MARK = re.compile(r"<[^<>]*>|\[[A-Z_/ ]+\]")
_OPEN_MARK = re.compile(r"(?:[<\[][^<>\[\]]*)?$")
_THINK_MARK = re.compile(r"think|thought|reason", re.IGNORECASE)


def derive_calls(render: Render) -> CallFormat | None:
    """The format of a template that prints calls; None if none of the known shapes fits."""
    for as_object in (True, False):
        one = _reply(render, [_call(NAME, ID_A, as_object)])
        if one is not None and all(word in one for word in (NAME, VALUE_A, VALUE_B)):
            return _json_calls(one) or _tag_json(one) or _tagged(one)
    return None


def _reply(render: Render, calls: list[object]) -> str | None:
    """What a template prints for a reply of calls, without what surrounds every reply."""
    ask: Message = {"role": "user", "content": QUESTION}
    try:
        before = render([ask], True)
        text = render([ask, {"role": "assistant", "content": TEXT}], False)
        called = render([ask, {"role": "assistant", "content": "", "tool_calls": calls}], False)
    except InvalidRequest:
        return None
    n_before = common_prefix(before, called)
    if n_before < len(before):
        # Two different marks may begin alike: no mark is cut in two.
        n_before -= len(_OPEN_MARK.search(called[:n_before])[0])  # type: ignore[index]
    end = text[text.rindex(TEXT) + len(TEXT) :] if TEXT in text else ""
    return called[n_before:].removesuffix(end)


def _call(name: str, call_id: str, as_object: bool) -> object:
    arguments = {KEY_A: VALUE_A, KEY_B: VALUE_B}
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments if as_object else json.dumps(arguments)},
    }


def _json_calls(one: str) -> CallFormat | None:
    found = _object_with(one, NAME)
    if found is None:
        return None
    start, end, value = found
    before, after = one[:start].rstrip(), one[end:].lstrip()
    is_array = before.endswith("[")
    if is_array:
        before, after = before[:-1].rstrip(), after.removeprefix("]").lstrip()
    opens = _last_marks(before) or before.strip()
    closes = _MARK.match(after)
    return JsonCalls(
        before=("".join(opens),) if opens else (),
        after=(closes[0],) if closes else (),
        bare="" if opens else "[{",
        is_array=is_array,
        **_keys(value),  # type: ignore[arg-type]
    )


def _last_marks(text: str) -> list[str]:
    """The marks at the end of a text, with nothing but white space around them; none around thoughts."""
    found: list[str] = []
    while match := re.search(rf"({_MARK.pattern})\s*$", text):
        if _THINK_MARK.search(match[1]):
            break
        found.insert(0, match[1])
        text = text[: match.start()]
    return found


def _object_with(text: str, name: str) -> tuple[int, int, dict[str, object]] | None:
    """The outermost JSON object that holds a call of ``name``: its span and value."""
    for match in re.finditer(r"\{", text):
        try:
            value, end = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            continue
        if isinstance(value, dict) and _keys(value) and name in json.dumps(value):
            return match.start(), end, value
    return None


def _keys(value: dict[str, object]) -> dict[str, object]:
    """Under which keys name, arguments and id stand; empty if there is no name."""
    inner = value.get("function")
    members = {**value, **inner} if isinstance(inner, dict) else value
    names = [key for key, item in members.items() if item in (NAME, OTHER)]
    ids = [key for key, item in members.items() if item in (ID_A, ID_B)]
    arguments = [key for key, item in members.items() if item != inner and KEY_A in json.dumps(item)]
    if names and arguments:
        return {"name": names[0], "arguments": arguments[0], "id": ids[0] if ids else ""}
    if list(value) in ([NAME], [OTHER]) and KEY_A in json.dumps(value):
        return {"name_is_key": True}
    return {}


def _tag_json(one: str) -> CallFormat | None:
    name_at = one.index(NAME)
    for match in re.finditer(r"\{", one[name_at:]):
        start = name_at + match.start()
        try:
            value, end = json.JSONDecoder().raw_decode(one, start)
        except ValueError:
            continue
        if isinstance(value, dict) and KEY_A in value:
            return _tag_json_of(one[:name_at], one[name_at + len(NAME) : start], one[end:])
    return None


def _tag_json_of(head: str, middle: str, rest: str) -> CallFormat | None:
    """``head`` stands before the name, ``middle`` between name and arguments, ``rest`` behind them."""
    id_before, id_after = "", ""
    if ID_A in head:
        head, _, id_before = head.rpartition(ID_A)
    if ID_A in middle:
        id_after, _, middle = middle.partition(ID_A)
    fence = "```" in middle
    if fence:
        middle, rest = middle[: middle.index("```")], rest.replace("```", "", 1)
    kind = re.search(r"function<[^<>]*>$", head)  # DeepSeek's kind of tool: newer models leave it out
    section, open_mark = _section(head[: kind.start()] if kind else head)
    if not open_mark or not middle:
        return None
    closes = _MARK.findall(rest)
    return TagJson(
        open=open_mark,
        name_end=(middle.strip() or "\n",),
        close=tuple(closes[:1]),
        section=section,
        section_end=tuple(closes[1:2]),
        before_name=(kind[0],) if kind else (),
        fences=(("```json", "```"), ("```", "```")) if fence else (),
        id_mark=tuple(filter(None, [id_after.strip()])),
        id_before=tuple(filter(None, [id_before.strip()])),
    )


def _section(head: str) -> tuple[tuple[str, ...], str]:
    """Marks of a section of calls, and the mark, maybe open, that a name follows."""
    tail = _OPEN_MARK.search(head)
    open_mark = tail[0] if tail else ""
    marks = _last_marks(head.removesuffix(open_mark))
    if not open_mark and marks:
        open_mark = marks.pop()
    return (("".join(marks),) if marks else ()), open_mark


def _tagged(one: str) -> CallFormat | None:
    spots = [one.find(word) for word in (NAME, KEY_A, VALUE_A, KEY_B, VALUE_B)]
    if -1 in spots or spots != sorted(spots):
        return None
    name_at, a_at, value_at, b_at, last_at = spots
    to_key = one[name_at + len(NAME) : a_at]
    to_value = one[a_at + len(KEY_A) : value_at]
    between = one[value_at + len(VALUE_A) : b_at]
    n_same = common_prefix(to_key[::-1], between[::-1])
    key = between[len(between) - n_same :]
    key = key[key.rindex("<") :] if "<" in key else ""
    section, open_mark = _section(one[:name_at])
    if not key or not open_mark or ">" not in to_value:
        return None
    value_end = between[: between.rindex(key)].strip()
    closes = _MARK.findall(one[last_at + len(VALUE_B) :].lstrip().removeprefix(value_end))
    if not value_end or not closes:
        return None
    key_end, value = to_value[: to_value.index(">") + 1], to_value[to_value.index(">") + 1 :]
    return Tagged(
        open=open_mark,
        name_end=to_key[: to_key.rindex(key)].strip() or "\n",
        key=key,
        key_end=key_end,
        value_end=value_end,
        close=closes[0],
        section=section,
        section_end=tuple(closes[1:2]) if section else (),
        value=value.strip(),
        trims=value.startswith("\n") and not value.strip(),
    )
