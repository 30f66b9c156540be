"""Owns a grammar of replies on its way, in llguidance's lark: rules, marks as terms, JSON, members in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from corral.chat.formats.texts import without
from corral.chat.schema import Json, Schema
from corral.guidance.references import with_definitions
from corral.guidance.trial import LAYOUT

Literal = Callable[[str], str]
"""A text as terms of lark: control tokens in it become tokens."""

_ANY_TEXT = r"/(?s:.*)/"
SPACE = "space"
"""The rule of white space between marks."""
MAX_ITEMS = 10_000
"""Larger numbers of items are as good as any."""
N_BITS = 64
"""So many members of an object can be told apart while they are written."""


class Rules:
    """Terms are lark's: names of rules, strings, patterns, tokens, side by side."""

    def __init__(self, literal: Literal) -> None:
        self.literal = literal
        self._by_name: dict[str, str] = {}

    def text(self, start: str) -> str:
        """The grammar of what ``start``'s terms say."""
        rules = {"start": start, SPACE: r"/[ \n]{0,4}/", **self._by_name}
        return "\n".join(f"{name}: {body}" for name, body in rules.items())

    def add(self, name: str, body: str, options: str = "") -> str:
        """A rule with a name that begins like this; the name."""
        name = f"{name}_{len(self._by_name)}"
        self._by_name[name + options] = body
        return name

    def reserve(self, name: str) -> str:
        """The name of a rule that ``fill`` gives its body: it may lead to itself."""
        return self.add(name, "")

    def fill(self, name: str, body: str) -> None:
        self._by_name[name] = body

    def one_of(self, name: str, bodies: Iterable[str]) -> str:
        """One of several, each a rule."""
        return "(" + " | ".join(self.add(name, body) for body in bodies) + ")"

    def json(self, schema: Schema) -> str:
        """JSON of a schema."""
        node = schema.node if isinstance(schema.node, dict) else {}
        return json_of(with_definitions(node, schema.root))

    def until(self, end: str, held: Sequence[str] = ()) -> str:
        """Text, and the mark that ends it. ``held``: terminals that all hold for the text."""
        before, token, rest = self.literal(end).partition("<[")
        if token and not before:
            return f"{self.add('any', self._text(held))} {token}{rest}"
        suffix = before.strip() if token else json.dumps(end, ensure_ascii=False)
        if not held:
            chunk = self.add("until", _ANY_TEXT, f"[suffix={suffix}]")
            return f"{chunk}+ {token}{rest}" if token else chunk
        first_end = json.loads(suffix) if token else end.lstrip()
        chunk = self.add("until", self._text([*held, without(first_end)]), f"[suffix={suffix}]")
        return f"{chunk} {token}{rest}"

    def _text(self, held: Sequence[str]) -> str:
        """The terminal of any text, or of one that all of these hold for."""
        return self.add("TEXT", " & ".join([_ANY_TEXT, *held])) if held else _ANY_TEXT

    def again(self, one: str, between: str, *, is_many: bool) -> str:
        """Once, or several times."""
        if not is_many:
            return one
        name = self.add("one", one)
        return f"{name} ({between} {name})*"

    def items(self, one: str, between: str, n_items: tuple[int, int], *, leads: bool = False) -> str:
        """Items of a list: as many as there must and can be (-1: any number). ``between`` as for ``members``."""
        low, high = min(n_items[0], MAX_ITEMS), "" if n_items[1] < 0 else str(min(n_items[1], MAX_ITEMS))
        if high == "0":
            return ""
        if leads:
            return f"({between} {one}){{{low},{high}}}"
        rest = f"{one} ({between} {one}){{{max(low - 1, 0)},{int(high) - 1 if high else ''}}}"
        return rest if low else f"({rest})?"

    def members(self, items: Mapping[str, str], required: Collection[str], between: str, *, leads: bool = False) -> str:
        """Members of an object in any order, each once, those that are required in any case.

        ``between`` stands between them; with ``leads`` before the first, too. ``items`` are terms by name.
        """
        if not items:
            return ""
        names = [self.add("member", terms) for terms in items.values()]
        if len(names) > N_BITS:
            return f"({between if leads else ''} ({' | '.join(names)}) {'' if leads else f'({between})?'})*"
        bits = [i for i, name in enumerate(items) if name in required]
        more = self.reserve("more")
        self._fill_members(more, more, names, bits, between)
        if leads:
            return f"{more}::0x0"
        first = self.reserve("first")
        self._fill_members(first, more, names, bits, "")
        return f"{first}::0x0"

    def _fill_members(self, name: str, more: str, members: list[str], required: list[int], before: str) -> None:
        """``name`` ends or goes on with ``more``; each member sets its bit."""
        end = '""' + (f" %if {_all_set(required)}" if required else "")
        ways = (f"{before} {one} {more}::set_bit({i}) %if bit_clear({i})" for i, one in enumerate(members))
        del self._by_name[name]
        self._by_name[f"{name}::_"] = "\n | ".join([end, *ways])


def json_of(schema: Json) -> str:
    """JSON of a schema, as a term."""
    return "%json " + json.dumps({**schema, "x-guidance": LAYOUT}, ensure_ascii=False)


def _all_set(bits: list[int]) -> str:
    first, *rest = bits
    return f"and(bit_set({first}), {_all_set(rest)})" if rest else f"bit_set({first})"
