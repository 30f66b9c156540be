"""Owns what the schemas of arguments say: types, members, items, the values that may be. Total, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce

from corral.guidance.references import resolve
from corral.guidance.relax import TYPES

Json = Mapping[str, object]

_MAX_STEPS = 8
"""References and alternatives that are followed: they may lead in rings."""
_MAX_PLACES = 20_000
"""Parts and members that are looked at for one question: from ring to ring there are ever more ways."""

_TEXT_HOLDERS = frozenset(("$ref", "allOf", "anyOf", "oneOf", "pattern", "format", "minLength", "maxLength"))
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True)
class Members:
    """Those of an object. ``is_open``: none is named, and there may be any, unless ``properties: {}`` says of none."""

    by_name: Mapping[str, Schema] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    is_open: bool = True


@dataclass(slots=True)
class _Way:
    """What is left of one question: ``n_steps`` from here, and ``n_places`` in all that it leads to."""

    n_steps: int = _MAX_STEPS
    n_places: list[int] = field(default_factory=lambda: [_MAX_PLACES])

    def further(self) -> _Way:
        return _Way(self.n_steps - 1, self.n_places)

    def takes(self, n_places: int) -> bool:
        """Whether there is room for so many places more, which are then taken."""
        self.n_places[0] -= n_places
        return self.n_steps > 0 and self.n_places[0] >= 0


@dataclass(frozen=True, slots=True)
class Schema:
    """A place in a JSON schema, references resolved against ``root``; ``node`` None: nothing is known."""

    node: object
    root: Json

    @property
    def parts(self) -> Iterator[Json]:
        """The objects that hold together: the schema, what it refers to, what is in ``allOf``."""
        return self._parts(_Way())

    @property
    def types(self) -> frozenset[str]:
        """JSON types that a value may have; empty if nothing is known."""
        return self._types(_Way())

    @property
    def values(self) -> tuple[object, ...] | None:
        """All values that may be; None if they are not listed."""
        for part in self.parts:
            listed = part.get("enum")
            if isinstance(listed, list) and listed:
                return tuple(listed)
            if "const" in part:
                return (part["const"],)
        return None

    @property
    def alternatives(self) -> tuple[Schema, ...]:
        """The schemas one of which a value must fit, besides what else is said; empty if there are none."""
        for part in self.parts:
            for key in ("anyOf", "oneOf"):
                listed = part.get(key)
                if isinstance(listed, list) and listed:
                    return tuple(Schema(one, self.root) for one in listed)
        return ()

    @property
    def items(self) -> Schema:
        """What items of a list are."""
        for part in self.parts:
            if isinstance(part.get("items"), dict):
                return Schema(part["items"], self.root)
        return Schema(None, self.root)

    @property
    def n_items(self) -> tuple[int, int]:
        """How many items a list must and can have; -1: any number."""
        parts = list(self.parts)
        low = max((n for part in parts if isinstance(n := part.get("minItems"), int)), default=0)
        high = min((n for part in parts if isinstance(n := part.get("maxItems"), int)), default=-1)
        return max(low, 0), max(high, -1)

    @property
    def members(self) -> Members:
        """Those of an object, of all that the schema consists of; of alternatives all, required if all require them."""
        return self._members(_Way())

    @property
    def is_any_text(self) -> bool:
        """Whether a value must be text, and can be any."""
        return self.is_a("string") and isinstance(self.node, Mapping) and _TEXT_HOLDERS.isdisjoint(self.node)

    def is_a(self, kind: str) -> bool:
        """Whether a value must be of one type; integers are numbers."""
        return self.types == {kind} or (kind == "number" and bool(self.types) and self.types <= {"integer", "number"})

    def allows(self, value: object) -> bool:
        """Whether a value is of a type that may be."""
        types = self.types
        kind = type_of(value)
        return not types or kind in types or (kind == "integer" and "number" in types)

    def _parts(self, way: _Way) -> Iterator[Json]:
        node = self.node
        if not isinstance(node, Mapping) or not way.takes(1):
            return
        yield node
        reference = node.get("$ref")
        if isinstance(reference, str):
            yield from Schema(resolve(reference, self.root), self.root)._parts(way.further())
        if isinstance(both := node.get("allOf"), list):
            for one in both:
                yield from Schema(one, self.root)._parts(way.further())

    def _types(self, way: _Way) -> frozenset[str]:
        found = [kinds for part in self._parts(way) if (kinds := self._types_of(part, way))]
        return reduce(lambda one, other: one & other or other, found) if found else frozenset()

    def _types_of(self, part: Json, way: _Way) -> frozenset[str]:
        if "type" in part:
            return named_types(part["type"])
        values = part.get("enum") or ([part["const"]] if "const" in part else None)
        if isinstance(values, list):
            return frozenset(map(type_of, values))
        for key in ("anyOf", "oneOf"):
            listed = part.get(key)
            if isinstance(listed, list):
                each = [Schema(one, self.root)._types(way.further()) for one in listed]
                return frozenset().union(*each) if all(each) else frozenset()
        return frozenset()

    def _members(self, way: _Way) -> Members:
        by_name: dict[str, Schema] = {}
        required: set[str] = set()
        says_nothing = True
        for part in self._parts(way):
            own = part.get("properties")
            if isinstance(own, Mapping) and way.takes(len(own)):
                by_name |= {key: Schema(one, self.root) for key, one in own.items() if key not in by_name}
            if isinstance(names := part.get("required"), list):
                required |= {name for name in names if isinstance(name, str)}
            others = part.get("additionalProperties", "properties" not in part)
            says_nothing &= others is not False
            for key in ("anyOf", "oneOf"):
                if way.n_steps > 1 and isinstance(listed := part.get(key), list):
                    each = [Schema(one, self.root)._members(way.further()) for one in listed]
                    by_name = {name: one for members in each for name, one in members.by_name.items()} | by_name
                    required |= frozenset.intersection(*(members.required for members in each)) if each else frozenset()
        by_name |= {name: Schema(None, self.root) for name in sorted(required) if name not in by_name}
        return Members(by_name, frozenset(required), says_nothing and not by_name)


UNKNOWN = Schema(None, {})
"""A place of which nothing is said."""


def named_types(names: object) -> frozenset[str]:
    """The value of ``type``, in capitals as some clients write it or not. Names that JSON does not have mean any."""
    found = [names] if isinstance(names, str) else names if isinstance(names, list) else []
    types = frozenset(name.lower() for name in found if isinstance(name, str))
    return types if types <= TYPES else frozenset()


def type_of(value: object) -> str:
    """The JSON type of a value."""
    return "null" if value is None else _NAMES.get(type(value), "object")
