"""What cannot be held of a schema is left out by name, the rest is obeyed; whatever comes out compiles."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.guidance.test_guide import OBEYED, REFUSED, an_object, of_schema

from corral.guidance.relax import relaxed, strict_fault

TEXT: Any = {"type": "string"}

LEFT_OUT: list[tuple[Any, Any, list[str]]] = [
    (
        an_object(a={"type": "array", "uniqueItems": True, "items": TEXT}),
        {"type": "array", "items": TEXT},
        ["uniqueItems"],
    ),
    (an_object(a={**TEXT, "not": {"const": "x"}}), TEXT, ["not"]),
    (an_object(a={**TEXT, "if": TEXT, "then": TEXT, "else": TEXT}), TEXT, ["if"]),
    (
        an_object(a={"type": "array", "contains": TEXT, "minContains": 2}),
        {"type": "array"},
        ["contains"],
    ),
    (an_object(a={"type": "object", "propertyNames": TEXT}), {"type": "object"}, ["propertyNames"]),
    (an_object(a={"type": "object", "dependentRequired": {"a": ["b"]}}), {"type": "object"}, ["dependentRequired"]),
    (an_object(a={"type": "object", "unevaluatedProperties": False}), {"type": "object"}, ["unevaluatedProperties"]),
    (an_object(a={**TEXT, "format": "snowflake", "maxLength": 3}), {**TEXT, "maxLength": 3}, ["format"]),
    (an_object(a={**TEXT, "pattern": "^(?=.*\\d).*$"}), TEXT, ["pattern"]),
    (an_object(a={"type": "any"}), {}, ["type"]),
    (an_object(a={"type": ["string", "file"]}), {}, ["type"]),
    (an_object(a={"type": "STRING", "maxLength": 2}), {**TEXT, "maxLength": 2}, []),
    (an_object(a={"type": ["String", "NULL"]}), {"type": ["string", "null"]}, []),
    (an_object(a={"oneOf": [TEXT, {**TEXT, "maxLength": 3}]}), {"anyOf": [TEXT, {**TEXT, "maxLength": 3}]}, ["oneOf"]),
    (an_object(a={"oneOf": [TEXT, {"type": "null"}]}), {"oneOf": [TEXT, {"type": "null"}]}, []),
    (an_object(a={**TEXT, "minLength": 5, "maxLength": 3}), {**TEXT, "maxLength": 3}, ["minLength"]),
    (an_object(a={"allOf": [TEXT, {"type": "integer"}]}), {}, ["allOf"]),
    (an_object(a={"$ref": "https://example.org/a.json"}), {}, ["$ref"]),
    (an_object(a={"$ref": "#/$defs/nowhere"}), {}, ["$ref"]),
    (an_object(a={**TEXT, "minLength": "3"}), TEXT, ["minLength"]),
    (an_object(a={"multipleOf": 99_999_991}), {}, ["multipleOf"]),
    (an_object(a="string"), True, [""]),
]


@pytest.mark.parametrize(("schema", "part", "names"), LEFT_OUT, ids=range(len(LEFT_OUT)))
def test_only_the_keyword_at_fault_is_left_out(schema: Any, part: Any, names: list[str]) -> None:
    found, left = relaxed(schema)
    assert found == {**schema, "properties": {"a": part}}
    assert [one.pointer for one in left] == ["/properties/a" + (name and f"/{name}") for name in names]
    assert of_schema(found)


@pytest.mark.parametrize("schema", [one for one in OBEYED if isinstance(one, dict) and "$ref" not in json.dumps(one)])
def test_what_can_be_held_stays(schema: Any) -> None:
    assert relaxed(an_object(a=schema))[1] == ()


@pytest.mark.parametrize(("schema", "message"), [pair for pair in REFUSED if isinstance(pair[0], dict)])
def test_whatever_is_refused_compiles_as_a_part_then(schema: Any, message: str) -> None:
    part = an_object(x={}, **{"a/b": schema})
    found, left = relaxed(part)
    assert of_schema(found) and found["properties"]["x"] == {}  # type: ignore[index]
    assert bool(left) == bool(strict_fault(part)) or schema in ({"$ref": "#/nowhere"}, {"$ref": "#"})


def test_references_lead_to_definitions() -> None:
    schema = {
        "properties": {
            "a": {"$ref": "#/properties/b"},
            "b": {"enum": ["x"]},
            "c": {"$ref": "#/$defs/A b"},
            "d": {"type": "array", "items": {"$ref": "#"}},
        },
        "$defs": {"A b": {"type": "array", "items": {"enum": [1]}, "uniqueItems": True}},
    }
    found, left = relaxed(schema)
    assert [one.pointer for one in left] == ["/$defs/A b/uniqueItems"]
    nested = of_schema({"type": "object", "properties": {"arguments": found}, "$defs": found["$defs"]})
    assert nested.would_accept(
        b'{"arguments": {"a": "x", "b": "x", "c": [1, 1], "d": [{"a": "x", "c": [1], "d": []}]}}'
    )
    assert not nested.would_accept(b'{"arguments": {"a": "y"')
    assert not nested.would_accept(b'{"arguments": {"c": [2')
    assert not nested.would_accept(b'{"arguments": {"d": [{"a": "y"')


@pytest.mark.parametrize("schema", [{"type": "string"}, {"anyOf": []}, {"properties": []}, {"type": []}, {}])
def test_arguments_are_an_object(schema: Any) -> None:
    held = of_schema(relaxed(schema)[0])
    assert held.would_accept(b'{"a": 1}') and not held.would_accept(b'"')


def test_a_strict_schema_names_the_place() -> None:
    assert strict_fault(an_object(a=TEXT)) == ""
    fault = strict_fault(an_object(a={"anyOf": [TEXT, {"type": "array", "uniqueItems": True}]}))
    assert fault == "/properties/a/anyOf/1/uniqueItems: the keyword 'uniqueItems' is not supported"


def test_a_huge_schema_is_any_object() -> None:
    found, left = relaxed(an_object(**{f"p{i}": {"type": "text"} for i in range(5000)}))
    assert found == {"type": "object"} and str(left[0]) == "/: it has more than 4000 parts"


_WORDS = """
type properties required items anyOf oneOf allOf $ref $defs enum const pattern format minLength maxItems minimum
minProperties not if contains additionalProperties patternProperties a b $id $schema
"""
WORDS = st.sampled_from(_WORDS.split())
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 5),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(
            ["string", "OBJECT", "array", "any", "#", "#/$defs/a", "#/properties/b", "(", "^a", "date", "x"]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=25,
)


@settings(deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=5))
def test_anything_comes_out_as_an_object_that_compiles(schema: dict[str, Any]) -> None:
    found, _ = relaxed(schema)
    assert (
        strict_fault(
            {"type": "object", "properties": {"arguments": found}, "required": ["arguments"]}
            | {key: found[key] for key in ("$defs", "definitions") if key in found}
        )
        == ""
    ), json.dumps(found)
