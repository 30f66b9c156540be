"""Owns keywords that say nothing as they stand, such as ``uniqueItems: false``: no reason to refuse a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.guidance.references import DEFINITIONS

LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
MAPS = ("properties", "patternProperties", *DEFINITIONS)
SINGLES = ("items", "additionalProperties", "additionalItems")
"""Keywords with schemas in a list, by name, or one."""

Change = Callable[[Mapping[str, object]], Mapping[str, object]]

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
    kept = {key: value for key, value in schema.items() if not _is_idle(key, value, schema)}
    return {key: over_parts(key, value, without_idle) for key, value in kept.items()}


def over_parts(key: str, value: object, change: Change) -> object:
    """A keyword's value with every schema in it changed."""

    def changed(part: object) -> object:
        return change(part) if isinstance(part, dict) else part

    if key in MAPS and isinstance(value, dict):
        return {name: changed(one) for name, one in value.items()}
    if key in LISTS and isinstance(value, list):
        return [changed(one) for one in value]
    return changed(value) if key in SINGLES else value


def _is_idle(key: str, value: object, schema: Mapping[str, object]) -> bool:
    if needs := _NEEDS.get(key):
        return not any(other in schema for other in needs)
    return value in _IDLE_VALUES.get(key, ())
