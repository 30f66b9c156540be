"""Owns keywords that say nothing as they stand, such as ``uniqueItems: false``: no reason to refuse a schema."""

from __future__ import annotations

from collections.abc import Mapping

from corral.guidance.references import DEFINITIONS

LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
MAPS = ("properties", "patternProperties", *DEFINITIONS)
SINGLES = ("items", "additionalProperties", "additionalItems")
"""Keywords with schemas in a list, by name, or one."""

_ANY: tuple[object, ...] = (True, {})
_IDLE_VALUES: Mapping[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "not": (False,),
    "unevaluatedItems": _ANY,
    "unevaluatedProperties": _ANY,
    "propertyNames": _ANY,
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
"""Keywords that only act beside one of others."""


def without_idle(schema: Mapping[str, object]) -> dict[str, object]:
    """The same schema in effect."""
    return {key: _inner(key, value) for key, value in schema.items() if not _is_idle(key, value, schema)}


def _acting(part: object) -> object:
    return without_idle(part) if isinstance(part, dict) else part


def _inner(key: str, value: object) -> object:
    if key in MAPS and isinstance(value, dict):
        return {name: _acting(one) for name, one in value.items()}
    if key in LISTS and isinstance(value, list):
        return [_acting(one) for one in value]
    return _acting(value) if key in SINGLES else value


def _is_idle(key: str, value: object, schema: Mapping[str, object]) -> bool:
    if needs := _NEEDS.get(key):
        return not any(other in schema for other in needs)
    return value in _IDLE_VALUES.get(key, ())
