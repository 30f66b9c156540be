"""What the schemas of arguments say, however they say it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.chat.schema import Schema

ROOT: Any = {
    "$defs": {
        "color": {"type": "string", "enum": ["red", "blue"]},
        "ring": {"$ref": "#/$defs/ring"},
        "base": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    }
}


def of(node: Any) -> Schema:
    return Schema(node, ROOT)


@pytest.mark.parametrize(
    ("node", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["STRING", "Null"]}, {"string", "null"}),
        ({"type": "any"}, set()),
        ({"$ref": "#/$defs/color"}, {"string"}),
        ({"allOf": [{"$ref": "#/$defs/color"}], "default": "red"}, {"string"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"anyOf": [{"type": "integer"}, {}]}, set()),
        ({"type": ["string", "null"], "anyOf": [{"type": "string"}]}, {"string", "null"}),
        ({"enum": ["a", 1, None, 2.5, True]}, {"string", "integer", "null", "number", "boolean"}),
        ({"const": []}, {"array"}),
        ({"$ref": "#/$defs/ring"}, set()),
        ("text", set()),
        (None, set()),
    ],
)
def test_types(node: Any, types: set[str]) -> None:
    assert of(node).types == types


def test_values() -> None:
    assert of({"allOf": [{"$ref": "#/$defs/color"}]}).values == ("red", "blue")
    assert of({"const": None}).values == (None,)
    assert of({"enum": []}).values is None and of({"type": "string"}).values is None


def test_members_of_all_that_an_object_consists_of() -> None:
    schema = of(
        {
            "allOf": [{"$ref": "#/$defs/base"}],
            "properties": {"b": {"$ref": "#/$defs/color"}},
            "required": ["c"],
            "anyOf": [{"properties": {"x": {}, "y": {}}, "required": ["x", "y"]}, {"required": ["x"]}],
        }
    )
    members = schema.members
    assert set(members.by_name) == {"a", "b", "c", "x", "y"} and members.required == {"a", "c", "x"}
    assert schema.members.by_name["b"].values == ("red", "blue")
    assert not members.is_open and of({"type": "object"}).members.is_open
    assert not of({"type": "object", "additionalProperties": False}).members.is_open


def test_values_of_the_wrong_type_are_not_allowed() -> None:
    assert of({"type": ["string", "number"]}).allows(5) and of({}).allows([])
    assert not of({"type": ["string", "integer"]}).allows(5.5) and not of({"type": "string"}).allows(None)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "#", "#/$defs/ring", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "required", "items", "anyOf", "allOf", "$ref", "enum", "const", "a"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(ANYTHING)
def test_nothing_fails(node: Any) -> None:
    schema = Schema(node, node if isinstance(node, dict) else {})
    assert schema.types <= {"string", "object", "array", "null", "integer", "number", "boolean"}
    assert schema.members.required <= set(schema.members.by_name)
    assert isinstance(schema.items, Schema) and isinstance(schema.alternatives, tuple)
    assert schema.values is None or len(schema.values) > 0


@pytest.mark.parametrize("key", ["anyOf", "allOf"])
def test_ever_more_ways_from_ring_to_ring_are_not_all_gone(key: str) -> None:
    """Each step has thirty ways on: without an end to the places looked at this takes hours."""
    root: Any = {key: [{"$ref": "#"}] * 30, "properties": {"a": {"type": "string"}}}
    schema = Schema(root, root)
    assert schema.members.by_name["a"].types == {"string"} and not schema.types
    assert len(list(schema.parts)) < 100_000
