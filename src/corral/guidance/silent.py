"""Owns what is meant by what a schema does not say: no members but those it names, no integers without end.

JSON Schema allows any then, and models that are held to it go on with names and digits that nobody asked for. What is
meant is a part of what the schema allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corral.guidance.doubles import as_doubles
from corral.guidance.idle import over_parts

_OPEN = ("additionalProperties", "patternProperties", "minProperties")
"""Keywords that speak of other members."""
MAX_INTEGER = 10**16 - 2
"""The largest double of 16 digits."""
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_LISTED = ("enum", "const", "multipleOf")
_JOINED = ("properties", "$ref", "allOf", "anyOf", "oneOf")
"""Keywords of which two hold together: what one names the other must allow."""


def as_meant(schema: Mapping[str, object]) -> dict[str, object]:
    """The schema with ``additionalProperties: false`` and bounds added; the same where it joins parts.

    Bounds that are there are doubles then.
    """
    return as_doubles(schema if any(map(_is_joined, _nodes(schema))) else _closed(schema))


def _closed(schema: Mapping[str, object]) -> dict[str, object]:
    inner = {key: over_parts(key, value, _closed) for key, value in schema.items()}
    if _is_integer(inner):
        return {**inner, **_bounds(inner)}
    return {**inner, "additionalProperties": False} if _names_all(inner) else inner


def _is_integer(schema: Mapping[str, object]) -> bool:
    kinds = schema.get("type")
    is_one = kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds and "number" not in kinds)
    return is_one and not any(key in schema for key in (*_LISTED, *_JOINED))


def _bounds(schema: Mapping[str, object]) -> dict[str, object]:
    """Those that are not there; none if one that is there is beyond."""
    given = [schema[key] for key in (*_LOW, *_HIGH) if key in schema]
    if not all(isinstance(one, int | float) and abs(one) <= MAX_INTEGER for one in given):
        return {}
    bounds = ((_LOW, "minimum", -MAX_INTEGER), (_HIGH, "maximum", MAX_INTEGER))
    return {name: bound for keys, name, bound in bounds if not any(key in schema for key in keys)}


def _names_all(schema: Mapping[str, object]) -> bool:
    members, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(members, dict) or not members or any(key in schema for key in _OPEN):
        return False
    return isinstance(required, list | tuple) and all(isinstance(name, str) and name in members for name in required)


def _is_joined(schema: Mapping[str, object]) -> bool:
    both = schema.get("allOf")
    return sum(key in schema for key in _JOINED) > 1 or (isinstance(both, list) and len(both) > 1)


def _nodes(schema: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The schema and all in it."""
    yield schema
    inner: list[Mapping[str, object]] = []

    def note(part: Mapping[str, object]) -> Mapping[str, object]:
        inner.append(part)
        return part

    for key, value in schema.items():
        over_parts(key, value, note)
    for part in inner:
        yield from _nodes(part)
