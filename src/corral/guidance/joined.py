"""Owns how many patterns one text must match at once: llguidance's time and memory double with each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from corral.errors import InvalidRequest
from corral.guidance.references import resolve

MAX_JOINED = 8
"""16 take half a second, 20 take ten and 200 MB, 30 would take all memory that there is."""
MAX_PLACES = 20_000
"""Combinations of parts that are looked at."""

_Part = Mapping[str, object]
_DEFINITION = re.compile(r"^[ \t]*[?!]?([A-Za-z_]\w*)(?:\.-?\d+)?(?:::\w+)?(?:\[[^\]\n]*\])?[ \t]*:(?!:)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*")
_QUOTED = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])*/')


def check_joined(schema: _Part) -> None:
    """Raises InvalidRequest for a text that more patterns and formats hold for together than can be joined."""
    todo: list[tuple[_Part, ...]] = [(schema,)]
    seen: set[frozenset[int]] = set()
    while todo:
        for group in _groups(todo.pop(), schema):
            key = frozenset(map(id, group))
            if key in seen:
                continue
            seen.add(key)
            n = len({(name, part[name]) for part in group for name in ("pattern", "format") if _is_text(part, name)})
            if n > MAX_JOINED or len(seen) > MAX_PLACES:
                raise InvalidRequest(
                    f"json_schema: at most {MAX_JOINED} patterns and formats can hold for one text, by allOf or $ref"
                )
            todo += _members(group)


def check_joined_lark(text: str) -> None:
    """The same for the "&" of each definition in a lark grammar, those of the terminals that it names included."""
    head, *definitions = _DEFINITION.split(_QUOTED.sub("", text))
    bodies: dict[str, str] = {"": head}
    for name, body in zip(definitions[::2], definitions[1::2], strict=True):
        bodies[name] = bodies.get(name, "") + body
    n_joins: dict[str, int] = {}
    for name in bodies:
        if (n := _count_joins(name, bodies, n_joins)) >= MAX_JOINED:
            raise InvalidRequest(f"lark: {name or 'it'} has {n} '&'; at most {MAX_JOINED - 1} can hold for one text")


def _count_joins(start: str, bodies: Mapping[str, str], known: dict[str, int]) -> int:
    """The "&" of a definition, as far as they matter; ``known`` is added to."""
    stack = [start]
    entered = {start}
    while stack:
        name = stack[-1]
        n_own = bodies[name].count("&")
        joins = n_own or name[:1].isupper()  # what a rule names stands side by side
        used = [one for one in _NAME.findall(bodies[name]) if joins and one in bodies and one[:1].isupper()]
        new = [one for one in used if one not in known and one not in entered]
        if new:
            stack += new
            entered |= {*new}
            continue
        stack.pop()
        known[name] = min(n_own + sum(known.get(one, 0) for one in used), 1000)
    return known[start]


def _is_text(part: _Part, name: str) -> bool:
    return isinstance(part.get(name), str)


def _groups(parts: Sequence[_Part], root: _Part) -> Iterator[list[_Part]]:
    """Parts that hold together: with all they refer to and join, and each alternative of one that chooses.

    Where several choose, all alternatives count as if they held.
    """
    group, choices = _joined(parts, root)
    if len(choices) == 1:
        yield from ([*group, *_whole([choice], root)] for choice in choices[0])
    elif choices:
        yield [*group, *_whole([one for choice in choices for one in choice], root)]
    else:
        yield group


def _whole(parts: Sequence[_Part], root: _Part) -> list[_Part]:
    """With all alternatives."""
    found: dict[int, _Part] = {}
    todo = [parts]
    while todo:
        group, choices = _joined(todo.pop(), root)
        new = [part for part in group if id(part) not in found]
        found |= {id(part): part for part in new}
        todo += choices if new else []
    return list(found.values())


def _joined(parts: Sequence[_Part], root: _Part) -> tuple[list[_Part], list[list[_Part]]]:
    """Each part once, with those it refers to and joins; and the lists that one is chosen of."""
    found: dict[int, _Part] = {}
    choices = []
    todo = list(parts)
    while todo:
        part = todo.pop()
        if id(part) in found:
            continue
        found[id(part)] = part
        todo += _schemas(part.get("allOf"))
        reference = part.get("$ref")
        todo += _schemas([resolve(reference, root)] if isinstance(reference, str) else None)
        choices += [some for name in ("anyOf", "oneOf") if (some := _schemas(part.get(name)))]
    return list(found.values()), choices


def _members(group: Sequence[_Part]) -> Iterator[tuple[_Part, ...]]:
    """What holds together for each member and item of what the group holds for."""
    named: dict[object, list[_Part]] = {}
    others: list[list[_Part]] = []
    for part in group:
        for name, one in _pairs(part.get("properties")):
            named.setdefault(name, []).append(one)
        for i, one in enumerate(_schemas(part.get("prefixItems"))):
            named.setdefault(i, []).append(one)
        others.append([one for _, one in _pairs(part.get("patternProperties"))])
        others[-1] += _schemas([part.get("additionalProperties"), part.get("additionalItems"), part.get("items")])
    rest = [some for some in others if some]
    if len(rest) == 1:  # none of these holds with another
        yield from ((one,) for one in rest[0])
        rest = [] if len(group) == 1 else rest
    every = [one for some in rest for one in some]
    if every:
        yield tuple(every)
    yield from ((*ones, *every) for ones in named.values())


def _pairs(value: object) -> list[tuple[str, _Part]]:
    return [(k, v) for k, v in value.items() if isinstance(v, dict)] if isinstance(value, dict) else []


def _schemas(value: object) -> list[_Part]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
