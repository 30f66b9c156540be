"""Owns how a schema is given to llguidance, and whether it takes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import orjson
from llguidance import LLMatcher

from corral.errors import InvalidRequest
from corral.guidance.idle import without_idle
from corral.guidance.limits import check_schema
from corral.guidance.silent import as_meant

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LAYOUT: JsonCompileOptions = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""The white space of JSON, as most models saw it: what is certain need not be drawn, and none goes on for ever."""

_PLACE = re.compile(r"^json_schema: (/\S*: )?")


def json_grammar(schema: object) -> str:
    """llguidance's grammar for a schema, which is an object or a boolean."""
    shown = as_meant(without_idle(schema)) if isinstance(schema, dict) else {} if schema else {"enum": []}
    text = orjson.dumps(shown).decode()
    return LLMatcher.grammar_from_json_schema(text, defaults=LAYOUT)


def fault_of(schema: object) -> str:
    """Why a schema does not compile, whatever the vocabulary; "" if it does.

    Call it on a deep stack: references may lead to references.
    """
    try:
        check_schema(schema)
    except InvalidRequest as error:
        return _PLACE.sub("", str(error))
    return plain(LLMatcher.validate_grammar(json_grammar(schema), None))


def lark_fault(grammar: str) -> str:
    """Why a small grammar in lark does not compile, whatever the vocabulary; "" if it does."""
    return plain(LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar), None))


def plain(fault: str) -> str:
    """llguidance's message without what is for its developers."""
    if fault.startswith("NoExtension"):
        return "no text satisfies it"
    return fault.replace("<non-verbose/>", "").strip()
