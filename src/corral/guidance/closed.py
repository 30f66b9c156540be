"""Owns what is written of objects whose members a schema names: those, and no others unless it speaks of others.

JSON Schema allows any others then, and models that are held to it go on with names that nobody asked for. What is
written is a part of what the schema allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corral.guidance.idle import over_parts

_OPEN = ("additionalProperties", "patternProperties", "minProperties")
"""Keywords that speak of other members."""
_JOINED = ("properties", "$ref", "allOf", "anyOf", "oneOf")
"""Keywords of which two hold together: what one names the other must allow."""


def closed(schema: Mapping[str, object]) -> dict[str, object]:
    """The schema with ``additionalProperties: false`` where nothing is lost by it; the same where parts are joined."""
    return dict(schema) if any(map(_is_joined, _nodes(schema))) else _close(schema)


def _close(schema: Mapping[str, object]) -> dict[str, object]:
    inner = {key: over_parts(key, value, _close) for key, value in schema.items()}
    return {**inner, "additionalProperties": False} if _names_all(inner) else inner


def _names_all(schema: Mapping[str, object]) -> bool:
    members, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(members, dict) or not members or any(key in schema for key in _OPEN):
        return False
    return isinstance(required, list | tuple) and all(name in members for name in required)


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
