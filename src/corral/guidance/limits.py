"""Owns the limits that a constraint must keep: llguidance's own do not stop these from taking seconds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal

from corral.errors import InvalidRequest
from corral.guidance.doubles import inexact, unreachable
from corral.guidance.joined import check_joined, check_joined_lark
from corral.tasks import ConstraintKind

MAX_CHARS = 256_000
MAX_DEPTH = 100
MAX_WORK = 4_000_000  # squares of the numbers of properties or alternatives, summed: 2000 take half a second
MAX_MULTIPLE = 10_000  # least common multiple of all multipleOf, written without decimals: its square is the cost

_SQUARE = (("properties", 1), ("patternProperties", 100), ("oneOf", 10), ("allOf", 10))

_JSON = re.compile(r"%json\s*(?=[{\[tf])")


def check_length(kind: ConstraintKind, text: str) -> None:
    """Raises InvalidRequest."""
    if len(text) > MAX_CHARS:
        raise InvalidRequest(f"{kind}: it has {len(text)} characters; at most {MAX_CHARS} are possible")


def check_schema(schema: object) -> None:
    """Raises InvalidRequest for a schema that would take too long to compile, and for what is no schema."""
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("json_schema: a schema is an object or a boolean")
    n_work, multiple = 0, 1
    for pointer, part in _objects(schema):
        n_work += sum(weight * len(members) ** 2 for name, weight in _SQUARE if (members := _members(part, name)))
        if n_work > MAX_WORK:
            raise InvalidRequest(f"json_schema: {pointer or '/'}: too many members: 2000 properties, 600 alternatives")
        _check_numbers(pointer, part)
        multiple = math.lcm(multiple, _coefficient(part.get("multipleOf")) or 1)
        if multiple > MAX_MULTIPLE:
            raise InvalidRequest(
                f"json_schema: {pointer}/multipleOf: {part['multipleOf']} is too large or has too many digits: the "
                f"least common multiple of all, written without decimals, can be {MAX_MULTIPLE}"
            )
    if isinstance(schema, dict):
        check_joined(schema)


def _check_numbers(pointer: str, part: dict[str, object]) -> None:
    if key := unreachable(part):
        raise InvalidRequest(
            f"json_schema: {pointer}/{key}: {part[key]} leaves no number of less than 64 bits, and no other can "
            "be held: use a pattern"
        )
    for key in ("const", "enum"):
        if (number := inexact(part.get(key))) is not None:
            raise InvalidRequest(
                f"json_schema: {pointer}/{key}: the number {number} cannot be held exactly: whole numbers are doubles "
                "of less than 64 bits, others have at most 15 digits; use texts, or a pattern"
            )


def check_lark(text: str) -> None:
    """The same for the schemas in a lark grammar, and for what it joins."""
    check_joined_lark(text)
    decoder = json.JSONDecoder()
    for match in _JSON.finditer(text):
        try:
            schema, _ = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong, and where
        check_schema(schema)


def _objects(schema: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Every object in it, with its JSON pointer. Raises InvalidRequest where it is nested too deep."""
    todo: list[tuple[str, object, int]] = [("", schema, 0)]
    while todo:
        pointer, value, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"json_schema: {pointer[:80]}...: nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            yield pointer, value
            todo += ((f"{pointer}/{escaped(key)}", item, depth + 1) for key, item in value.items())
        elif isinstance(value, list):
            todo += ((f"{pointer}/{i}", item, depth + 1) for i, item in enumerate(value))


def _members(part: dict[str, object], name: str) -> dict[str, object] | list[object]:
    members = part.get(name)
    return members if isinstance(members, dict | list) else []


def escaped(key: str) -> str:
    """A member's name as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _coefficient(multiple: object) -> int:
    """What is left of 0.25 without its decimals: 25."""
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not abs(multiple) < 1e300:
        return 0
    number = Decimal(repr(multiple)).normalize()
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    digits = int("".join(map(str, number.as_tuple().digits)))
    return digits * int(10 ** min(max(exponent, 0), 9))
