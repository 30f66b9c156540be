"""Owns references within a schema: where ``$ref`` leads, and parts that keep what theirs lead to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

DEFINITIONS = ("$defs", "definitions")
"""The members of a schema that references mostly lead to."""


def definitions(schema: object) -> dict[str, object]:
    return {key: schema[key] for key in DEFINITIONS if key in schema} if isinstance(schema, Mapping) else {}


def with_definitions(part: object, root: Mapping[str, object]) -> dict[str, object]:
    """A part of ``root``, or what holds parts of it, with those definitions of ``root`` that are needed in it."""
    found: dict[str, dict[str, object]] = {}
    todo = list(references(part))
    while todo:
        kind, _, path = todo.pop().removeprefix("#/").partition("/")
        name = unquote(path.partition("/")[0]).replace("~1", "/").replace("~0", "~")
        held = root.get(kind) if kind in DEFINITIONS else None
        if isinstance(held, Mapping) and name in held and name not in found.setdefault(kind, {}):
            found[kind][name] = held[name]
            todo += references(held[name])
    return {**part, **found} if isinstance(part, Mapping) else {}


def references(schema: object) -> Iterator[str]:
    """Every ``$ref`` in it."""
    if isinstance(schema, Mapping):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        for inner in schema.values():
            yield from references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from references(inner)


def resolve(reference: str, root: Mapping[str, object]) -> object | None:
    """The part of ``root`` that a JSON pointer behind "#" names; None if there is none, or it leads elsewhere."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    node: object = root
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node
