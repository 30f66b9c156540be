"""Owns what schemas hold text to that stands between marks, as lark's terminals: patterns and lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator

from corral.chat.schema import Schema
from corral.guidance.trial import lark_fault

MAX_LENGTH = 5000
"""Larger lengths are as good as any."""

_ANY = "(?s:.*)"
_PIECES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\]", re.DOTALL)
"""An escape, a class, or a character of a pattern."""


def text_terminals(schema: Schema) -> list[str]:
    """Terms that all hold for a text of a schema, besides what it says of formats. Those that do not compile are left
    out."""
    return [term for term in _terms(schema) if not lark_fault(f"start: TEXT\nTEXT: {term}")]


def without(text: str) -> str:
    """The terminal of texts that a text is not part of."""
    return f"~/{_ANY}{_quoted(re.escape(text))}{_ANY}/"


def not_with(text: str) -> str:
    """The terminal of texts that do not begin with a text."""
    return f"~/{_quoted(re.escape(text))}{_ANY}/"


def _terms(schema: Schema) -> Iterator[str]:
    for part in schema.parts:
        if isinstance(pattern := part.get("pattern"), str) and (whole := _whole(pattern)):
            yield f"/{_quoted(whole)}/"
        low, high = part.get("minLength"), part.get("maxLength")
        n_low = min(low, MAX_LENGTH) if isinstance(low, int) else 0
        n_high = str(high) if isinstance(high, int) and high <= MAX_LENGTH else ""
        if n_low > 0 or n_high:
            yield f"/(?s:.{{{n_low},{n_high}}})/"


def _whole(pattern: str) -> str:
    """A pattern that matches all of the texts in which one is found; "" if its anchors stand within it."""
    ways: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECES.findall(pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            ways.append([])
        else:
            ways[-1].append(piece)
    return "|".join(wholes) if all(wholes := [_whole_way(way) for way in ways]) else ""


def _whole_way(pieces: list[str]) -> str:
    begins, ends = pieces[:1] == ["^"], pieces[-1:] == ["$"]
    inner = pieces[begins : len(pieces) - ends]
    if "^" in inner or "$" in inner:
        return ""
    return f"{'' if begins else _ANY}(?:{''.join(inner)}){'' if ends else _ANY}"


def _quoted(pattern: str) -> str:
    """As it stands between lark's slashes."""
    written = {"/": "\\/", "\n": "\\n"}
    return re.sub(r"\\.|/|\n", lambda piece: written.get(piece[0], piece[0]), pattern, flags=re.DOTALL)
