"""Owns what becomes of a schema that nobody insists on: what cannot be held is left out, and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from corral.errors import InvalidRequest
from corral.guidance.blame import reason, smallest, where
from corral.guidance.deep import on_deep_stack
from corral.guidance.idle import LISTS, MAPS, SINGLES, without_idle
from corral.guidance.limits import check_schema, escaped
from corral.guidance.references import DEFINITIONS, definitions, references, resolve
from corral.guidance.silent import as_meant
from corral.guidance.trial import fault_of

Schema = dict[str, object]

ANY_OBJECT: Mapping[str, object] = {"type": "object"}

MAX_PARTS = 4000
"""A schema with more objects in it is not looked into: each takes about a tenth of a millisecond."""
MAX_ROUNDS = 8
"""How many faults that only show between parts are searched for."""

TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))

_WORDS = """
minProperties maxProperties format pattern multipleOf exclusiveMinimum exclusiveMaximum minimum maximum minLength
maxLength minItems maxItems additionalItems patternProperties additionalProperties allOf not enum const oneOf anyOf
required prefixItems items $ref properties type
"""
_FROM_THE_LEAST = _WORDS.split()
"""What is given up first where keywords only fail together."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a relaxed schema does not hold: the JSON pointer of a keyword or part, and why."""

    pointer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.reason}"


def relaxed(schema: Mapping[str, object]) -> tuple[Schema, tuple[LeftOut, ...]]:
    """The schema of an object as far as it can be held, and what is left out. A schema that can be held is the same.

    References that lead to other places than definitions are made to lead there, so that the result can be a part of
    another schema with the same definitions. Total: what comes out compiles, and is an object, whatever comes in.
    """
    given = as_meant(without_idle({**schema, "type": "object"}))
    if _n_parts(given) > MAX_PARTS:
        return dict(ANY_OBJECT), (LeftOut("", f"it has more than {MAX_PARTS} parts"),)
    return on_deep_stack(lambda: (given, ()) if _is_held(given) else _Relaxing(given).run())


def strict_fault(schema: Mapping[str, object]) -> str:
    """Why a schema cannot be held to the letter: JSON pointer and reason; "" if it can be."""
    return on_deep_stack(lambda: _named_fault(dict(schema)))


def _named_fault(schema: Schema) -> str:
    try:
        check_schema(schema)
    except InvalidRequest as error:
        return str(error).removeprefix("json_schema: ")
    fault = fault_of(schema)
    return where(schema, fault, fault_of).removeprefix("json_schema: ") if fault else ""


def _is_held(schema: Schema) -> bool:
    return not fault_of(_embedded(schema)) and not any(_leads_elsewhere(target) for target in references(schema))


def _n_parts(schema: object) -> int:
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return isinstance(schema, dict) + sum(map(_n_parts, inner))


def _embedded(schema: Schema) -> Schema:
    """As a part of another schema, whose definitions it shares, and each of its members as such a part."""
    own = schema.get("properties")
    parts = [schema, *(one for one in own.values() if isinstance(one, dict))] if isinstance(own, dict) else [schema]
    members = {str(i): part for i, part in enumerate(parts)}
    return {"type": "object", "properties": members, "required": list(members), **definitions(schema)}


def _leads_elsewhere(reference: str) -> bool:
    """A pointer to something that is no definition of the root."""
    return reference == "#" or (reference.startswith("#/") and reference.split("/")[1] not in DEFINITIONS)


@dataclass(slots=True)
class _Relaxing:
    """One schema on its way. ``shared``: its definitions, as far as they are relaxed. ``root_name``: a definition
    that is the whole schema, wanted if ``needs_root``."""

    root: Schema
    left: list[LeftOut] = field(default_factory=list)
    shared: Schema = field(default_factory=dict)
    root_name: str = "root"
    needs_root: bool = False

    def run(self) -> tuple[Schema, tuple[LeftOut, ...]]:
        while any(isinstance(held, dict) and self.root_name in held for held in definitions(self.root).values()):
            self.root_name += "_"
        for key, held in definitions(self.root).items():
            self.shared[key] = self._inner(key, held, f"/{key}")
        top = self._part({key: value for key, value in self.root.items() if key not in DEFINITIONS}, "")
        assert isinstance(top, dict)
        if self.needs_root:
            defs = self.shared.get("$defs")
            self.shared["$defs"] = {**(defs if isinstance(defs, dict) else {}), self.root_name: top}
        schema = {**top, **self.shared}
        for _ in range(MAX_ROUNDS):
            if not (fault := fault_of(_embedded(schema))):
                return without_idle(schema), tuple(self.left)
            schema = self._without_cause(schema)
        return dict(ANY_OBJECT), (LeftOut("", reason(fault)),)

    def _leave(self, pointer: str, why: str) -> None:
        self.left.append(LeftOut(pointer, why))

    def _inner(self, key: str, value: object, pointer: str) -> object:
        """A member of a schema, with the schemas in it relaxed."""
        if key in MAPS and isinstance(value, dict):
            return {name: self._part(one, f"{pointer}/{escaped(name)}") for name, one in value.items()}
        if key in LISTS and isinstance(value, list):
            return [self._part(one, f"{pointer}/{i}") for i, one in enumerate(value)]
        return self._part(value, pointer) if key in SINGLES else value

    def _part(self, node: object, pointer: str) -> object:
        """A schema, relaxed. What only shows between it and the schemas in it is not found."""
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            self._leave(pointer, "a schema is an object or a boolean")
            return True
        part = {key: self._inner(key, value, f"{pointer}/{escaped(key)}") for key, value in node.items()}
        self._read_type(part, pointer)
        self._lead(part, pointer)
        self._drop_faults(part, pointer)
        return self._with_any_of(part, pointer)

    def _read_type(self, part: Schema, pointer: str) -> None:
        """Types in lower case; others than JSON's are any value."""
        kind = part.get("type")
        names = [kind] if isinstance(kind, str) else kind
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return
        lowered = list(dict.fromkeys(name.lower() for name in names))
        if TYPES.issuperset(lowered):
            part["type"] = lowered[0] if isinstance(kind, str) else lowered
        else:
            self._leave(f"{pointer}/type", f"{kind!r} is no type of JSON")
            del part["type"]

    def _lead(self, part: Schema, pointer: str) -> None:
        """References lead to definitions, or are left out."""
        reference = part.get("$ref")
        if not isinstance(reference, str) or (reference.startswith("#") and reference[1:2] not in ("", "/")):
            return
        if resolve(reference, self.root) is None:
            self._leave(f"{pointer}/$ref", f"{reference!r} leads nowhere in this schema")
            del part["$ref"]
            return
        path = quote(unquote(reference[1:]), safe="/~!$&'()*+,;=:@")
        elsewhere = _leads_elsewhere(reference)
        self.needs_root |= elsewhere
        part["$ref"] = f"#/$defs/{self.root_name}{path}" if elsewhere else f"#{path}"

    def _drop_faults(self, part: Schema, pointer: str) -> None:
        """Leaves out keywords until the rest compiles, whatever the schemas in it are."""
        shell = _shell(part)
        while fault := fault_of(shell):
            key = _alone_faulty(shell) or _dispensable(shell, fault_of) or _by_worth(shell)[0]
            alone = fault_of({**_kind(shell), key: shell[key]})
            self._leave(f"{pointer}/{escaped(key)}", reason(alone or fault))
            del part[key], shell[key]

    def _with_any_of(self, part: Schema, pointer: str) -> Schema:
        """``oneOf`` read as ``anyOf`` where it cannot be held."""
        options = part.get("oneOf")
        if options is None or not fault_of({**self.shared, "oneOf": options}):
            return part
        self._leave(f"{pointer}/oneOf", "it is read as anyOf: its alternatives do not visibly exclude each other")
        if "anyOf" not in part:
            return {"anyOf" if key == "oneOf" else key: value for key, value in part.items()}
        beside = part.get("allOf")
        rest = {key: value for key, value in part.items() if key not in ("oneOf", "allOf")}
        return {**rest, "allOf": [*(beside if isinstance(beside, list) else []), {"anyOf": options}]}

    def _without_cause(self, schema: Schema) -> Schema:
        """Without what fails between several parts, as far as one keyword or part is enough."""
        fault = fault_of(schema) or fault_of(_embedded(schema))
        pointer, part = smallest(schema, fault, fault_of)
        if not pointer:  # the same fault may read otherwise in a part alone
            pointer, part = smallest(schema, "any", lambda one: "any" if fault_of(one) else "")
        shared = definitions(schema)

        def fault_beside(one: object) -> str:
            return fault_of({**shared, **one} if isinstance(one, dict) else one)

        own = {key: value for key, value in part.items() if key not in DEFINITIONS} if isinstance(part, dict) else {}
        key = _dispensable(own, fault_beside)
        if not key:
            self._leave(pointer, reason(fault))
            return _replaced(schema, pointer, True)
        self._leave(f"{pointer}/{escaped(key)}", reason(fault))
        return _replaced(schema, pointer, {k: v for k, v in own.items() if k != key} | ({} if pointer else shared))


def _shell(part: Schema) -> Schema:
    """A schema with any value in place of each schema in it, and without references and what needs those schemas."""
    shell: Schema = {}
    for key, value in part.items():
        if key in MAPS and isinstance(value, dict):
            shell[key] = {name: one if isinstance(one, bool) else True for name, one in value.items()}
        elif key in LISTS and isinstance(value, list):
            shell[key] = [one if isinstance(one, bool) else True for one in value]
        else:
            shell[key] = True if key in SINGLES and isinstance(value, dict) else value
    if isinstance(shell.get("$ref"), str):
        del shell["$ref"]
    if shell.get("oneOf") and isinstance(shell["oneOf"], list):
        del shell["oneOf"]
    return {key: value for key, value in shell.items() if not (key in DEFINITIONS and isinstance(value, dict))}


def _kind(part: Schema) -> Schema:
    return {"type": part["type"]} if "type" in part else {}


def _alone_faulty(part: Schema) -> str:
    """A keyword that fails alone, beside the type; "" if none does."""
    kind = _kind(part)
    if kind and fault_of(kind):
        return "type"
    return next((key for key, value in part.items() if fault_of({**kind, key: value})), "")


def _dispensable(part: Schema, fault_of: Callable[[object], str]) -> str:
    """The keyword of least worth without which a schema compiles; "" if it takes more than one."""
    for key in _by_worth(part):
        if not fault_of({k: v for k, v in part.items() if k != key}):
            return key
    return ""


def _by_worth(part: Schema) -> list[str]:
    return sorted(part, key=lambda key: _FROM_THE_LEAST.index(key) if key in _FROM_THE_LEAST else -1)


def _replaced(schema: object, pointer: str, new: object) -> Schema:
    """A copy of a schema with another part at a JSON pointer; any object if that is all of it."""
    if not pointer:
        return new if isinstance(new, dict) else dict(ANY_OBJECT)
    top: Any = deepcopy(schema)
    *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/"))
    place = top
    for step in steps:
        place = place[int(step) if isinstance(place, list) else step]
    place[int(last) if isinstance(place, list) else last] = new
    return dict(top)
