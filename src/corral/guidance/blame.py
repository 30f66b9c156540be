"""Owns the message for a schema that does not compile: finds the part of it that is to blame."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

from corral.guidance.idle import LISTS, MAPS, SINGLES
from corral.guidance.limits import escaped
from corral.guidance.references import definitions

MAX_TRIALS = 200
"""Parts that are tried before the search stops where it is."""
MAX_S = 1.0
"""The same in time: others wait with their schemas meanwhile, and what fails may take seconds to do so."""

_UNIMPLEMENTED = re.compile(r'Unimplemented keys: \["([^"]*)".*\]')


def where(schema: object, fault: str, fault_of: Callable[[object], str]) -> str:
    """The message with a JSON pointer. ``fault_of`` says why a schema does not compile, "" if it does."""
    pointer, part = smallest(schema, fault, fault_of)
    if match := _UNIMPLEMENTED.search(fault):
        pointer += f"/{escaped(match[1])}"
    elif isinstance(part, dict) and fault.startswith("oneOf"):
        pointer += "/oneOf"
    elif isinstance(part, dict):
        pointer += _keyword(part, fault, fault_of)
    return f"json_schema: {pointer or '/'}: {reason(fault)}"


def reason(fault: str) -> str:
    """A fault in one line, in our words where they are better."""
    if match := _UNIMPLEMENTED.search(fault):
        return f"the keyword {match[1]!r} is not supported"
    if fault.startswith("oneOf"):
        return "the keyword 'oneOf' is supported where its alternatives visibly exclude each other; use anyOf"
    return " ".join(fault.split())


def smallest(schema: object, fault: str, fault_of: Callable[[object], str]) -> tuple[str, object]:
    """The deepest part that fails alone in the same way, with the schema's definitions beside it; and its pointer."""
    shared = definitions(schema)
    pointer, part, n_left, end_s = "", schema, MAX_TRIALS, time.monotonic() + MAX_S
    while True:
        for step, inner in _parts(part):
            if n_left <= 0 or time.monotonic() > end_s:
                return pointer, part
            n_left -= 1
            if fault_of({**shared, **inner} if isinstance(inner, dict) else inner) == fault:
                pointer, part = pointer + step, inner
                break
        else:
            return pointer, part


def _parts(schema: object) -> Iterator[tuple[str, object]]:
    """The schemas directly inside a schema, each with its step of a JSON pointer."""
    if not isinstance(schema, dict):
        return
    for name in LISTS:
        if isinstance(inner := schema.get(name), list):
            yield from ((f"/{name}/{i}", item) for i, item in enumerate(inner))
    for name in MAPS:
        if isinstance(inner := schema.get(name), dict):
            yield from ((f"/{name}/{escaped(key)}", item) for key, item in inner.items())
    for name in SINGLES:
        if isinstance(inner := schema.get(name), dict | bool):
            yield f"/{name}", inner


def _keyword(schema: dict[str, object], fault: str, fault_of: Callable[[object], str]) -> str:
    """The one keyword that fails alone in the same way, as a step of a JSON pointer; "" if it takes several."""
    kind = {"type": schema["type"]} if "type" in schema else {}
    end_s = time.monotonic() + MAX_S
    for key, value in list(schema.items())[:MAX_TRIALS]:
        if time.monotonic() > end_s:
            break
        if fault_of({**kind, key: value}) == fault and (key == "type" or fault_of(kind) != fault):
            return f"/{escaped(key)}"
    return ""
