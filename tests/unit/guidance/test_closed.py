"""Objects whose members are named have no others, unless the schema speaks of others or joins parts."""

from __future__ import annotations

from typing import Any

import pytest

from corral.guidance.closed import closed
from corral.guidance.relax import relaxed

A: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
NO_MORE = {**A, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "integer"}},
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
    assert closed(schema) == schema


def test_is_closed_wherever_it_stands() -> None:
    assert closed(A) == NO_MORE
    assert closed({**A, "required": ["a"]}) == {**NO_MORE, "required": ["a"]}
    assert closed({"type": "array", "items": A})["items"] == NO_MORE
    assert closed({"anyOf": [A, {"type": "null"}]})["anyOf"] == [NO_MORE, {"type": "null"}]
    assert closed({"$defs": {"n": A}, "allOf": [{"$ref": "#/$defs/n"}]})["$defs"] == {"n": NO_MORE}
    assert closed({"properties": {"a": A}})["properties"] == {"a": NO_MORE}


def test_so_are_arguments_of_tools() -> None:
    assert relaxed(A)[0] == {**NO_MORE, "type": "object"}
