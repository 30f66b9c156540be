"""What is compiled is obeyed; what cannot be is refused with its place, soon."""

import json
import time
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest

from corral.errors import InvalidRequest
from corral.guidance.guide import Guide
from corral.guidance.limits import check_lark, check_schema
from corral.guidance.matcher import GuidedMatcher
from corral.sim.model import SimModel
from corral.sim.tokenizer import EOS
from corral.tasks import Constraint, ConstraintKind

MODEL = SimModel()
GUIDE = Guide(MODEL.tokenizer, MODEL.info)
NOT_SIMPLE = 1 - np.isin(np.arange(MODEL.info.n_vocab), [EOS, *b'0123456789abcxyz{}[]":,.-T ']).astype(np.float32)


def matcher(kind: ConstraintKind, text: str) -> GuidedMatcher:
    return GUIDE.matcher(Constraint(kind, text))


def of_schema(schema: Any) -> GuidedMatcher:
    return matcher(ConstraintKind.JSON_SCHEMA, json.dumps(schema))


def walk(held: GuidedMatcher, seed: int, n_max: int = 2000) -> str:
    """The text of a random walk over what is allowed: it ends where it can, likelier with every token."""
    random, tokens = Random(seed), []
    for n in range(n_max):
        if held.is_complete:
            break
        allowed = np.flatnonzero(held.allowed().flags)
        if EOS in allowed and (random.random() < 0.3 + n / 100 or len(allowed) <= 2):
            break
        plain = [t for t in allowed.tolist() if not NOT_SIMPLE[t] and t != EOS]
        closing = [t for t in plain if t in b'}]"' and n > 40]
        token = random.choice(closing or plain or [t for t in allowed.tolist() if t not in MODEL.info.eog_tokens])
        held.accept(token)
        tokens.append(token)
    else:
        raise AssertionError("the walk does not end")
    return MODEL.tokenizer.detokenize(tokens, special=False)


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TREE = {"$defs": {"n": an_object(v={"type": "integer"}, c={"type": "array", "items": {"$ref": "#/$defs/n"}})}}

OBEYED: list[Any] = [
    True,
    {},
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "null"},
    {"type": "array"},
    {"type": "object"},
    {"type": ["string", "null"]},
    {"type": ["integer", "boolean", "array"]},
    {"enum": ["red", "green", 3, None, [1], {"a": 1}]},
    {"enum": ['quote " and \\ and \n']},
    {"const": "one"},
    {"const": {"a": [1, 2, {"b": None}]}},
    an_object(a={"type": "string"}),
    an_object(a={"type": "string"}, b={"type": "integer"}, c={"type": "boolean"}),
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "required": ["zz"], "additionalProperties": {"type": "integer"}},
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}},
    {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5},
    {"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 2}, "maxItems": 3},
    {"type": "integer", "minimum": 5, "maximum": 17},
    {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3},
    {"type": "number", "minimum": -1.5, "maximum": 2.25},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^[a-c]{2,4}$"},
    {"type": "string", "pattern": "^.{0,3}b.a$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6"},
    {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    {"anyOf": [an_object(a={"type": "integer"}), an_object(b={"type": "integer"})]},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}, {"type": "null"}]},
    {"oneOf": [an_object(k={"const": "x"}, v={"type": "integer"}), an_object(k={"const": "y"})]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}]},
    {"$defs": {"p": {"type": "integer", "minimum": 0}}, "type": "array", "items": {"$ref": "#/$defs/p"}},
    {"definitions": {"p": {"enum": [1, 2]}}, "$ref": "#/definitions/p"},
    {**TREE, "$ref": "#/$defs/n"},
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
    {"type": "string", "title": "t", "description": "d", "default": "x", "examples": ["y"], "maxLength": 3},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"const": 1}, {"const": 2}]},
    {"properties": {"a": {"type": "integer"}}, "required": ["a"], "type": "object"},
    {"type": "array", "items": {"type": "array", "uniqueItems": False, "minContains": 2}, "maxItems": 2},
    {"type": "object", "unevaluatedProperties": True, "propertyNames": {}, "dependentRequired": {}, "maxProperties": 2},
    {"type": "integer", "not": False, "then": {"const": 1}, "else": {"const": 2}},
]

REFUSED: list[tuple[Any, str]] = [
    (an_object(a={"not": {"type": "string"}}), "/properties/a/not: the keyword 'not' is not supported"),
    ({"type": "array", "uniqueItems": True}, "/uniqueItems: the keyword 'uniqueItems'"),
    ({"type": "array", "contains": {"type": "integer"}}, "/contains: the keyword 'contains'"),
    ({"if": {"type": "string"}, "then": {"maxLength": 1}}, "/if: the keyword 'if'"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "/dependentRequired: the keyword"),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, "/propertyNames: the keyword"),
    ({"anyOf": [{"type": "null"}, {"unevaluatedProperties": False}]}, "/anyOf/1/unevaluatedProperties: the keyword"),
    ({"$defs": {"q": {"type": "array", "uniqueItems": True}}, "$ref": "#/$defs/q"}, "/$defs/q/uniqueItems: "),
    (an_object(**{"a/b": {"type": "array", "items": {"format": "odd"}}}), "/properties/a~1b/items/format: Unknown"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "/oneOf: the keyword 'oneOf'"),
    ({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "(a"}]}, "/anyOf/1/pattern: regex parse error"),
    ({"type": "string", "pattern": "*a"}, "/pattern: regex parse error"),
    ({"type": "string", "pattern": "(?=a)b"}, "/pattern: regex parse error"),
    ({"type": "text"}, "/type: Invalid type: text"),
    ({"$ref": "#/nowhere"}, "/$ref: "),
    ({"$ref": "https://example.org/a.json"}, "/$ref: "),
    ({"type": "integer", "minimum": 2**63, "maximum": 2**64}, "/minimum: 9223372036854775808 leaves no number"),
    ({"type": "integer", "exclusiveMaximum": -1e19, "minimum": -1e20}, "/exclusiveMaximum: -1e+19 leaves no"),
    ({"const": -(2**63)}, "/const: the number -9223372036854775808 cannot be held exactly"),
    ({"anyOf": [{"enum": ["x", 1234567890123456789]}]}, "/anyOf/0/enum: the number 1234567890123456789 cannot"),
    ({"const": {"a": [True, 0.5, 188739.75421003686]}}, "/const: the number 188739.75421003686 cannot be held"),
    ({"const": 8e-32}, "/const: the number 8e-32 cannot be held exactly"),
    ({"$ref": "#"}, "no text satisfies it"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable schema: minimum (5) is greater"),
    ({"enum": []}, "/enum: Unsatisfiable"),
    ({"type": "string", "minLength": -1}, "/minLength: "),
    (False, "Unsatisfiable"),
    ({"multipleOf": 99_999_991}, "/multipleOf: 99999991 is too large"),
    ([1], "a schema is an object or a boolean"),
]


@pytest.mark.parametrize("schema", OBEYED, ids=range(len(OBEYED)))
def test_a_schema_is_obeyed(schema: Any) -> None:
    checker = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    for seed in range(12):
        checker.validate(json.loads(walk(of_schema(schema), seed)))


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_schema_that_cannot_be_obeyed_is_refused_by_name_and_place(schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        of_schema(schema)
    assert message in str(refused.value)
    assert str(refused.value).startswith("json_schema: ")


def nested(n: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


def joined(n: int) -> Iterator[Any]:
    """``n`` patterns for one text. Time and memory of llguidance double with each: 40 would end the process."""
    parts = [{"type": "string", "pattern": f"k{i}"} for i in range(n)]
    yield {"allOf": parts}
    yield {"allOf": [an_object(a=part) for part in parts]}
    yield {"allOf": [{"type": "array", "items": part} for part in parts]}
    yield {"allOf": [{"anyOf": [part, {"type": "null"}]} for part in parts]}
    yield {"allOf": [{"type": "object", "additionalProperties": part} for part in parts]}
    yield {"anyOf": [{"type": "null"}, {"type": "array", "prefixItems": [{"allOf": parts}]}]}
    chain = {f"n{i}": {**part, "$ref": f"#/$defs/n{i + 1}"} for i, part in enumerate(parts)}
    yield {"$defs": {**chain, f"n{n}": {"type": "string"}}, "$ref": "#/$defs/n0"}


def apart(n: int) -> Iterator[Any]:
    """As many, no two of which hold for one text."""
    parts = [{"type": "string", "pattern": f"^k{i}$"} for i in range(n)]
    named = {f"a{i}": part for i, part in enumerate(parts)}
    yield {"anyOf": parts}
    yield {"type": "array", "prefixItems": parts}
    yield an_object(**named)
    yield {"allOf": [an_object(**named), {"type": "object", "properties": named}]}
    yield {"$defs": named, "type": "array", "items": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in named]}}
    yield {"type": "object", "patternProperties": {f"^x{i}$": part for i, part in enumerate(parts)}}


@pytest.mark.parametrize("schema", [*apart(12), *joined(4)], ids=range(13))
def test_patterns_that_hold_for_few_texts_at_once_compile(schema: Any) -> None:
    check_schema(schema)


def test_an_ampersand_within_a_text_joins_nothing() -> None:
    check_lark('start: A\nA: "&&&&&&&&&&" | /a\\/&&&&&&&&&&/ // &&&&&&&&&\n')
    check_lark("start: " + " ".join(f"T{i}" for i in range(20)) + "".join(f"\nT{i}: /a/ & /b/" for i in range(20)))
    for hidden in (
        "A: B & B\nB: C & C\nC: D & D\nD: E & E\nE: /x/",
        "A:\n /x/\n " + "& /x/" * 8,
        "A[lazy]: /x/" + "&/x/" * 8,
    ):
        with pytest.raises(InvalidRequest, match="at most 7 can hold for one text"):
            check_lark("start: A\n" + hidden)


def hostile() -> Iterator[tuple[ConstraintKind, str]]:
    yield ConstraintKind.REGEX, "(" * 60_000
    yield ConstraintKind.REGEX, "a" * 300_000
    yield ConstraintKind.LARK, "start: " + "(" * 60_000
    yield ConstraintKind.LARK, "rout: 'a'"
    yield ConstraintKind.LARK, 'start: %json {"multipleOf": 99999991}'
    yield ConstraintKind.LARK, "start: start"
    yield ConstraintKind.GBNF, "root ::= " + "(" * 20_000
    yield ConstraintKind.GBNF, 'rout ::= "a"'
    yield ConstraintKind.JSON_SCHEMA, json.dumps({"type": "string", "pattern": "(" * 60_000})
    yield ConstraintKind.JSON_SCHEMA, json.dumps(nested(300))
    yield ConstraintKind.JSON_SCHEMA, json.dumps({"allOf": [{"multipleOf": 1499}, {"multipleOf": 1493}]})
    yield ConstraintKind.JSON_SCHEMA, "[" * 60_000
    yield ConstraintKind.JSON_SCHEMA, "{"
    yield ConstraintKind.JSON_SCHEMA, json.dumps({"properties": {f"p{i}": {} for i in range(5000)}})

    for schema in joined(40):
        yield ConstraintKind.JSON_SCHEMA, json.dumps(schema)
    yield ConstraintKind.LARK, "start: A\nA: " + " & ".join(f"/.*k{i}.*/" for i in range(40))


@pytest.mark.parametrize(("kind", "text"), list(hostile()), ids=range(len(list(hostile()))))
def test_54_hostile_texts_are_refused_soon(kind: ConstraintKind, text: str) -> None:
    start_s = time.process_time()
    with pytest.raises(InvalidRequest):
        matcher(kind, text)
    assert time.process_time() - start_s < 4.0  # of processor time, where others work beside it


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConstraintKind.LARK, "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(15_000)) + 'r15000: "a"'),
        (
            ConstraintKind.JSON_SCHEMA,
            json.dumps(
                {
                    "$defs": {f"n{i}": {"$ref": f"#/$defs/n{i + 1}"} for i in range(5000)} | {"n5000": {"const": 1}},
                    "$ref": "#/$defs/n0",
                }
            ),
        ),
    ],
)
def test_long_chains_of_rules_do_not_overflow_the_stack(kind: ConstraintKind, text: str) -> None:
    assert walk(matcher(kind, text), 0) in ("a", "1")


@pytest.mark.parametrize("text", ["a{1000000}", "b*(a{1000}){1000}", "(.*a.{200}){3}", "(a|b)*a(a|b){20}"])
def test_54_no_regex_holds_the_others_up(text: str) -> None:
    start_s = time.process_time()
    held = matcher(ConstraintKind.REGEX, text)
    try:
        for token in b"baaaaaaaaaaaaaaaaaaa":
            if token in held.allowed():
                held.accept(token)
    except InvalidRequest:
        pass  # given up
    assert time.process_time() - start_s < 2.0


def test_a_pattern_need_not_match_the_whole_string() -> None:
    held = of_schema({"type": "string", "pattern": "b.a"})
    assert held.would_accept(b'"xxbcaxx"') and not held.would_accept(b'"xx"')


def test_a_regex_matches_the_whole_text() -> None:
    held = matcher(ConstraintKind.REGEX, "a{2,3}b?")
    assert {walk(held_, seed) for seed in range(30) for held_ in [matcher(ConstraintKind.REGEX, "a{2,3}b?")]} == {
        "aa",
        "aab",
        "aaa",
        "aaab",
    }
    assert held.would_accept(b"aab") and not held.would_accept(b"ab")
    with pytest.raises(InvalidRequest, match=r"^regex: the text cannot be held to it any further"):
        held.accept_text(b"x")


def test_control_tokens_are_no_text() -> None:
    held = matcher(ConstraintKind.REGEX, "<.*>")
    held.accept_text(b"<")
    allowed = held.allowed().flags
    control = [t for t in range(MODEL.info.n_vocab) if not MODEL.tokenizer.piece(t, special=False)]
    assert not allowed[control].any() and allowed[ord("s")]


def test_matchers_of_one_text_do_not_disturb_each_other() -> None:
    one, other = (matcher(ConstraintKind.REGEX, "ab") for _ in range(2))
    one.accept(ord("a"))
    assert ord("a") in other.allowed() and ord("b") in one.allowed()


def test_json_has_one_layout_so_that_what_is_certain_need_not_be_drawn() -> None:
    held = of_schema(an_object(a={"enum": ["yes", "no"]}, b={"type": "array", "items": {"const": 1}, "minItems": 2}))
    text = b"".join(bytes([token]) for token in held.forced())
    assert b'{"a": "'.startswith(text) and len(text) > 4
    assert held.would_accept(b'{"a": "yes", "b": [1, 1]}')
    assert not held.would_accept(b"{ ") and not held.would_accept(b"{\n") and not held.would_accept(b'{"a":"')


def test_nothing_is_certain_where_texts_differ() -> None:
    assert matcher(ConstraintKind.REGEX, "a|b").forced() == []


@pytest.mark.parametrize("bound", [2**53, 2**53 + 1, 2**53 + 3, 10**17 + 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_large_bounds_let_nothing_through(bound: int, sign: int) -> None:
    """llguidance rounds them to the nearest double, and adds 1 to exclusive ones."""
    words = ("minimum", "exclusiveMinimum") if sign > 0 else ("maximum", "exclusiveMaximum")
    for word, first in zip(words, (1, 0), strict=True):
        for past in range(first, first + 12):
            held = of_schema({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1, word: sign * bound})
            assert not takes(held, str(sign * (bound - past))), (word, past)
    assert takes(of_schema({"type": "integer", words[0]: sign * bound}), str(sign * (bound + 100)))


@pytest.mark.parametrize("number", [2**53, -(2**62), 2**63 - 1024, 0.1, -123456.789012345, 1e-15, 1e22, -0.0, 23000.0])
def test_constants_are_held_exactly(number: float) -> None:
    assert any(
        takes(of_schema({"const": number}), text)
        for text in (repr(number), f"{number:.0f}", f"{Decimal(repr(number)):f}")
    )


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("least", [-(2**63), -(2**63) + 1, -1e19, -1.7976931348623157e308])
def test_bounds_of_machine_numbers(kind: str, least: float) -> None:
    """As generators of schemas write them; llguidance refuses some, and the sign of the first overflows its stack."""
    for low in ("minimum", "exclusiveMinimum"):
        for most in (2**63 - 1, 2**63, 1.7976931348623157e308):
            held = {"type": kind, low: least, "maximum": most}
            assert takes(of_schema(held), "-1234567890123") and takes(of_schema(held), "1234567890123")
        assert not takes(of_schema({"type": kind, low: least, "maximum": -1}), "0")
    with pytest.raises(InvalidRequest):
        of_schema({"type": "integer", "minimum": least, "maximum": -(2**63)})


@pytest.mark.parametrize("bound", [95262.55888950465, 123456789.12345679, 9808265.529914869, 9752269479128.295])
def test_bounds_of_many_digits_let_nothing_through(bound: float) -> None:
    """llguidance reads some of them as a neighbour."""
    exact = Decimal(repr(bound))
    last = Decimal((0, (1,), exact.as_tuple().exponent))  # type: ignore[arg-type]
    for word, sign in (("minimum", 1), ("exclusiveMinimum", 1), ("maximum", -1), ("exclusiveMaximum", -1)):
        schema = {"type": "number", word: bound}
        for past in (exact - sign * last, exact - sign * last / 100, *([exact] if "exclusive" in word else [])):
            assert not takes(of_schema(schema), f"{past:f}"), (word, past)
        assert takes(of_schema(schema), f"{exact + sign * 1000 * last:f}")


def takes(held: GuidedMatcher, text: str) -> bool:
    """Whether it can be all of the text."""
    for byte in text.encode():
        if not held.would_accept(bytes([byte])):
            return False
        held.accept(byte)
    return held.is_complete or bool(held.allowed().flags[EOS])


def test_two_thousand_members_may_all_be_optional() -> None:
    text = {"type": "string"}
    held = of_schema({"type": "object", "properties": {f"p{i}": text for i in range(2000)}})
    assert takes(held, '{"p1999": "x"}')
