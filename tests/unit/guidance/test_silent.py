"""What a schema does not say: other members than those it names, and numbers without end, unless it joins parts."""

from __future__ import annotations

from typing import Any

import pytest

from corral.guidance.idle import without_idle
from corral.guidance.relax import relaxed
from corral.guidance.silent import as_meant

A: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
NO_MORE = {**A, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "number"},
        {"type": ["integer", "number"]},
        {"type": "integer", "enum": [10**20]},
        {"type": "integer", "minimum": 10**20},
        {"type": "integer", "anyOf": [{"minimum": 10**20}]},
        {"allOf": [{"type": "integer"}, {"minimum": 10**20}]},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "string"}},
        {**A, "patternProperties": {"^x": {}}},
        {**A, "required": ["b"]},
        {**A, "minProperties": 2},
        {"properties": {}},
        {"enum": [A]},
        {"allOf": [A, {"properties": {"b": {}}}]},
        {"$defs": {"base": A}, "allOf": [{"$ref": "#/$defs/base"}, {"required": ["b"]}]},
        {"$defs": {"base": A}, "$ref": "#/$defs/base", "properties": {"b": {}}},
        {"properties": {"a": A, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ],
)
def test_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert as_meant(schema) == schema


def test_is_closed_wherever_it_stands() -> None:
    assert as_meant(A) == NO_MORE
    assert as_meant({**A, "required": ["a"]}) == {**NO_MORE, "required": ["a"]}
    assert as_meant({"type": "array", "items": A})["items"] == NO_MORE
    assert as_meant({"anyOf": [A, {"type": "null"}]})["anyOf"] == [NO_MORE, {"type": "null"}]
    assert as_meant({"$defs": {"n": A}, "allOf": [{"$ref": "#/$defs/n"}]})["$defs"] == {"n": NO_MORE}
    assert as_meant({"properties": {"a": A}})["properties"] == {"a": NO_MORE}


def test_so_are_arguments_of_tools() -> None:
    assert relaxed(A)[0] == {**NO_MORE, "type": "object"}


def test_integers_have_an_end() -> None:
    """As in llama-server: 16 digits."""
    low, high = {"minimum": -(10**16) + 2}, {"maximum": 10**16 - 2}
    assert as_meant({"type": "integer"}) == {"type": "integer", **low, **high}
    assert as_meant({"type": ["integer", "null"]}) == {"type": ["integer", "null"], **low, **high}
    assert as_meant({"type": "integer", "exclusiveMinimum": 0}) == {"type": "integer", "exclusiveMinimum": 0, **high}
    assert as_meant({"type": "integer", "maximum": 5}) == {"type": "integer", "maximum": 5, **low}


_WORDS = """
type enum const anyOf allOf oneOf $ref properties required additionalProperties patternProperties minProperties items
prefixItems minItems minLength pattern format minimum exclusiveMaximum multipleOf uniqueItems not if then contains
propertyNames dependentRequired dependencies unevaluatedItems $defs $id nullable
"""
ODD: list[Any] = [None, 5, -1.5, 1e300, True, False, "zz", "", [], {}, [5], [None], [[]], [{}], [["a"]], [True]]
ODD += [{"a": 5}, {"a": None}, {"a": []}, {"a": {"a": [["b"]]}}, {"type": [["x"]]}, {"enum": [[]]}, {"required": [{}]}]


def test_values_of_the_wrong_type_are_left_to_the_compiler() -> None:
    """Schemas of tools come as they are: reading one never fails."""
    for word in _WORDS.split():
        for value in ODD:
            odd = {**A, "type": "object", word: value}
            as_meant(without_idle(odd))
            as_meant(without_idle({"type": "object", "properties": {"a": odd, "b": value}, word: [odd]}))


def test_a_tool_whose_required_members_are_no_names_is_held_without() -> None:
    found, left = relaxed({**A, "type": "object", "required": [["a"], {}]})
    assert found == {**A, "type": "object"} and [one.pointer for one in left] == ["/required"]
