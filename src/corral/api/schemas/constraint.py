"""The fields that say what the text must be: response_format, json_schema, regex, lark, grammar and its triggers."""

from __future__ import annotations

from dataclasses import replace

import orjson

from corral.api.schemas.fields import Fields, wrong_type
from corral.chat.jobs import Rendered
from corral.errors import InvalidRequest
from corral.ports import Tokenizer
from corral.tasks import Constraint, ConstraintKind, Sampling

ANY_OBJECT = '{"type":"object"}'
TOKEN, WORD = 0, 1
"""Types of ``grammar_triggers``; the others are patterns."""


def read_held(fields: Fields, default: Sampling, tokenizer: Tokenizer) -> tuple[str, Constraint | None]:
    """The GBNF grammar and the other constraint, at most one of which is there. Raises InvalidRequest."""
    asked = _asked(fields)
    if len(asked) > 1:
        first, second, *_ = asked
        raise InvalidRequest(f"Cannot use both {second} and {first}")
    triggers = _triggers(fields, tokenizer)
    if not asked:
        return default.grammar, default.constraint
    ((name, constraint),) = asked.items()
    if triggers:
        return "", replace(constraint, triggers=triggers, with_trigger=True)
    return (constraint.text, None) if name == "grammar" else ("", constraint)


def _asked(fields: Fields) -> dict[str, Constraint]:
    """What the body asks for, by the name of the field."""
    texts = {
        "grammar": (ConstraintKind.GBNF, fields.text("grammar")),
        "json_schema": (ConstraintKind.JSON_SCHEMA, _schema_text("json_schema", fields.value("json_schema"))),
        "response_format": (ConstraintKind.JSON_SCHEMA, _response_format(fields)),
        "regex": (ConstraintKind.REGEX, fields.text("regex")),
        "lark": (ConstraintKind.LARK, fields.text("lark")),
    }
    return {name: Constraint(kind, text) for name, (kind, text) in texts.items() if text}


def _response_format(fields: Fields) -> str:
    """The text of a schema; "" for plain text."""
    members = Fields(fields.object("response_format") or {})
    match kind := members.text("type", "text"):
        case "text":
            return ""
        case "json_object":
            return _schema_text("response_format: schema", members.value("schema")) or ANY_OBJECT
        case "json_schema":
            inner = Fields(members.object("json_schema") or {})
            return _schema_text("response_format: json_schema: schema", inner.value("schema")) or ANY_OBJECT
    raise InvalidRequest(f'response_format type must be one of "text" or "json_object", but got: {kind}')


def _schema_text(name: str, schema: object) -> str:
    """A schema as text; ``{}`` means any object; "" if there is none."""
    if schema is None:
        return ""
    if isinstance(schema, str):  # as some clients send it
        return schema
    if not isinstance(schema, dict | bool):
        raise wrong_type(name, "object", schema)
    try:
        return orjson.dumps(schema).decode() if schema != {} else ANY_OBJECT
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"Field '{name}': {error}") from None


def _triggers(fields: Fields, tokenizer: Tokenizer) -> tuple[str, ...]:
    triggers = fields.array("grammar_triggers") or []
    if not fields.boolean("grammar_lazy"):
        return ()
    if not triggers:
        raise InvalidRequest("Field 'grammar_lazy': no triggers set for lazy grammar: name them in 'grammar_triggers'")
    return tuple(_trigger(trigger, tokenizer) for trigger in triggers)


def _trigger(trigger: object, tokenizer: Tokenizer) -> str:
    if not isinstance(trigger, dict):
        raise wrong_type("grammar_triggers", "array of objects", trigger)
    members = Fields(trigger)
    kind = members.integer("type", default=WORD, low=0, high=3)
    if kind not in (TOKEN, WORD):
        raise InvalidRequest("Field 'grammar_triggers': patterns (types 2 and 3) are not supported; use words (type 1)")
    text = members.text("value")
    if kind == TOKEN and not text:
        token = members.integer("token", default=-1, low=0, high=tokenizer.n_vocab - 1)
        text = tokenizer.piece(token, special=True).decode("utf-8", "replace")
    if not text:
        raise InvalidRequest("Field 'grammar_triggers': a trigger has no 'value'")
    return text


def behind_thoughts(constraint: Constraint, rendered: Rendered) -> Constraint:
    """The same, but off in the thoughts before a chat reply's text, and in the marks of its channels."""
    format, expect = rendered.format, rendered.expect
    if expect.is_text or constraint.after:
        return constraint
    if format.opener:
        return replace(constraint, after=format.opener)
    thinking = format.thinking
    if thinking is None or rendered.text.rstrip().endswith(thinking.ends):
        return constraint
    return replace(constraint, after=thinking.ends[0], opener="" if expect.is_thinking else thinking.starts[0])
