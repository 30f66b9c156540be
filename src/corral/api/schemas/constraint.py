"""The fields that say what the text must be: response_format, json_schema, regex, lark, grammar and its triggers."""

from __future__ import annotations

from dataclasses import replace

import orjson

from corral.api.schemas.fields import Fields, Json, check_size, member_object, wrong_type
from corral.errors import InvalidRequest
from corral.guidance.pattern import compile_pattern
from corral.ids import Token
from corral.ports import Tokenizer
from corral.tasks import Constraint, ConstraintKind, Sampling, Trigger, TriggerKind

MAX_TRIGGERS, MAX_TRIGGER_CHARS = 256, 16_384
"""All of what is generated is compared with them."""

ANY_OBJECT = '{"type":"object"}'


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
    members = Fields(fields.object("response_format") or {}, "response_format")
    match kind := members.text("type", "text"):
        case "text":
            return ""
        case "json_object":
            return _schema_text("response_format.schema", members.value("schema")) or ANY_OBJECT
        case "json_schema":
            inner = Fields(members.object("json_schema") or {}, "response_format.json_schema")
            return _schema_text("response_format.json_schema.schema", inner.value("schema")) or ANY_OBJECT
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


def read_preserved(fields: Fields, tokenizer: Tokenizer) -> frozenset[Token]:
    """Control tokens, by their text, that are printed all the same; texts of several tokens are left out."""
    texts = [text for text in fields.strings("preserved_tokens") or () if tokenizer.n_tokens_at_least(text) <= 1]
    found = [tokenizer.tokenize(text, add_special=False, parse_special=True) for text in texts]
    return frozenset(tokens[0] for tokens in found if len(tokens) == 1)


def _triggers(fields: Fields, tokenizer: Tokenizer) -> tuple[Trigger, ...]:
    triggers = fields.array("grammar_triggers") or []
    if not fields.boolean("grammar_lazy"):
        return ()
    if not triggers:
        raise InvalidRequest("Field 'grammar_lazy': no triggers set for lazy grammar: name them in 'grammar_triggers'")
    check_size("grammar_triggers", len(triggers), MAX_TRIGGERS, "triggers")
    n_chars = sum(len(str(trigger.get("value"))) for trigger in triggers if isinstance(trigger, dict))
    check_size("grammar_triggers", n_chars, MAX_TRIGGER_CHARS, "characters")
    preserved = read_preserved(fields, tokenizer)
    return tuple(
        _trigger(member_object(trigger, f"grammar_triggers.{i}"), f"grammar_triggers.{i}", preserved, tokenizer)
        for i, trigger in enumerate(triggers)
    )


def _trigger(trigger: Json, where: str, preserved: frozenset[Token], tokenizer: Tokenizer) -> Trigger:
    members = Fields(trigger, where)
    kind = TriggerKind(members.integer("type", default=TriggerKind.WORD, low=0, high=len(TriggerKind) - 1))
    text = members.text("value")
    if kind is TriggerKind.TOKEN and members.value("token") is not None:
        token = members.integer("token", default=0, low=0, high=tokenizer.n_vocab - 1)
        return Trigger(text or tokenizer.piece(token, special=True).decode("utf-8", "replace"), kind, token)
    if not text:
        raise InvalidRequest(f"Field '{where}': a trigger has no 'value'")
    if kind in (TriggerKind.PATTERN, TriggerKind.PATTERN_FULL):
        return _pattern(text, kind, f"{where}.value")
    tokens = tokenizer.tokenize(text, add_special=False, parse_special=True)
    if len(tokens) == 1 and (kind is TriggerKind.TOKEN or tokens[0] in preserved):
        return Trigger(text, TriggerKind.TOKEN, tokens[0])
    return Trigger(text)


def _pattern(text: str, kind: TriggerKind, where: str) -> Trigger:
    try:
        compile_pattern(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"Field '{where}': {error}") from None
    return Trigger(text, kind)
