"""Reading members of a JSON object: types, ranges and the messages for what is wrong with them."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Collection, Mapping

import orjson

from corral.errors import InvalidRequest

Json = dict[str, object]

INT_MAX = 2**31 - 1
MAX_DEPTH = 200
"""How deep a body may nest: what works on bodies recurses."""
MAX_PARTS = 250_000
"""Objects, arrays and members of a body. Each may take half a microsecond to parse, and nobody else is served then."""
MAX_STRINGS = 10_000
"""In a list of names and the like, unless it has a limit of its own."""
_QUOTED = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_LONG = 10**15
"""Numbers from here on are shown with an exponent."""
_WHOLE = re.compile(r"-?[0-9]{1,18}")
"""Python's ``int`` also takes ``1_0``, ``+1`` and digits of other scripts, and raises for thousands of digits."""
MAX_SHOWN = 80
"""Characters of a wrong text that a message repeats."""


def parse_json(raw: bytes) -> object:
    """The body. Raises InvalidRequest for what is no JSON, bad UTF-8 included, and for too many parts."""
    _check_parts(raw)
    try:
        return orjson.loads(raw.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        _check_encoding(raw)
        raise InvalidRequest(f"parse error at line {error.lineno}, column {error.colno}: {error.msg}") from None


def _check_encoding(raw: bytes) -> None:
    """Raises InvalidRequest for what is not UTF-8. Text in UTF-16 may be, but then has NULs where JSON has none."""
    wide = "; it looks like UTF-16 or UTF-32" if b"\0" in raw[:4] else ""
    try:
        raw.decode()
        at = raw.find(b"\0", 0, 4)
    except UnicodeDecodeError as error:
        at = error.start
    if at >= 0:
        raise InvalidRequest(
            f"the request body is not UTF-8: byte {at} (from 0) is 0x{raw[at]:02x}{wide}. Encode the JSON as UTF-8"
        )


def parse_object(raw: bytes) -> dict[str, object]:
    """The body as an object. Raises InvalidRequest for anything else, deep nesting included."""
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise InvalidRequest(f"the request body must be a JSON object, but is {type_name(body)}")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(body):
        raise InvalidRequest(f"the request body nests more than {MAX_DEPTH} levels deep")
    return body


def _check_parts(raw: bytes) -> None:
    """Text between quotes does not count, but is looked at only where it might matter."""
    if _count_parts(raw) > MAX_PARTS and (n := _count_parts(_QUOTED.sub(b"", raw))) > MAX_PARTS:
        raise InvalidRequest(
            f"the request body has {n} objects, arrays and members of objects; at most {MAX_PARTS} are read"
        )


def _count_parts(raw: bytes) -> int:
    return raw.count(b"{") + raw.count(b"[") + raw.count(b":")


def _is_deep(body: dict[str, object]) -> bool:
    level: list[dict[str, object] | list[object]] = [body]
    for _ in range(MAX_DEPTH):
        groups = [item.values() if isinstance(item, dict) else item for item in level]
        level = [child for group in groups for child in group if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def whole_number(text: str) -> int | None:
    """The number that stands in a path, a query or an object's key, in at most 18 plain digits; None for other text."""
    return int(text) if _WHOLE.fullmatch(text) else None


def quoted(text: str) -> str:
    """What was given, as a message or the log repeats it: on one line, and not much of it."""
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def type_name(value: object) -> str:
    """The JSON name of a parsed value's type."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "object")


def wrong_type(name: str, wanted: str, value: object) -> InvalidRequest:
    return InvalidRequest(f"Field '{name}': type must be {wanted}, but is {type_name(value)}")


def check_size(name: str, n: int, most: int, what: str) -> None:
    """Raises InvalidRequest for a list or text that is too long; ``what`` are its parts."""
    if n > most:
        raise InvalidRequest(f"Field '{name}': it has {n} {what}; at most {most} are possible")


def member_object(value: object, name: str) -> Json:
    """Raises InvalidRequest unless ``value`` is an object."""
    if not isinstance(value, dict):
        raise wrong_type(name, "object", value)
    return value


def _shown(value: float) -> str:
    if abs(value) >= _LONG:
        return f"{float(value):g}"
    return f"{value:.6f}" if isinstance(value, float) else str(value)


class Fields:
    """One JSON object. A null counts as absent; of aliases the first present one counts.

    ``where``: the path of the object in the body, as messages about its members name it.
    """

    def __init__(self, body: Mapping[str, object], where: str = "") -> None:
        self._body = body
        self._where = f"{where}." if where else ""

    def find(self, *names: str) -> tuple[str, object] | None:
        """The first of ``names`` that has a value, and the value."""
        for name in names:
            value = self._body.get(name)
            if value is not None:
                return name, value
        return None

    def with_default(self, name: str, value: object) -> Fields:
        """The same object, with another value for a member that is not there."""
        return Fields({name: value, **self._body}, self._where.removesuffix("."))

    def without(self, names: Collection[str]) -> Json:
        """The members that are not among ``names``."""
        return {name: value for name, value in self._body.items() if name not in names}

    def value(self, name: str) -> object:
        return self._body.get(name)

    def _at(self, name: str) -> str:
        return self._where + name

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self._at(name), "boolean", value)
        return value

    def text(self, name: str, default: str = "", most: int | None = None) -> str:
        """A string, of at most so many characters."""
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong_type(self._at(name), "string", value)
        if most is not None:
            check_size(self._at(name), len(value), most, "characters")
        return value

    def number(self, name: str, default: float, low: float = -math.inf, high: float = math.inf) -> float:
        """A number, silently clamped to [low, high]."""
        value = self._body.get(name)
        return default if value is None else min(max(_finite(self._at(name), value), low), high)

    def hard_number(self, name: str, default: float, low: float, high: float) -> float:
        """A number that must lie in [low, high]."""
        value = self._body.get(name)
        return default if value is None else _within(self._at(name), float(_finite(self._at(name), value)), low, high)

    def clamped(self, name: str, default: int, low: int = -INT_MAX, high: int = INT_MAX) -> int:
        """An integer, silently clamped to [low, high]; fractions are cut off."""
        value = self._body.get(name)
        return default if value is None else int(min(max(_finite(self._at(name), value), low), high))

    def integer(self, *names: str, default: int, low: int, high: int = INT_MAX) -> int:
        """An integer that must lie in [low, high]; fractions are cut off."""
        found = self.find(*names)
        if found is None:
            return default
        at = self._at(found[0])
        return int(_within(at, int(_finite(at, found[1])), low, high))

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """An integer that must lie in [low, high]; a fraction is refused, as for names that llama-server lacks."""
        value = self._body.get(name)
        if value is not None and _finite(self._at(name), value) % 1:
            raise InvalidRequest(f"Field '{self._at(name)}': must be a whole number, but is {value}")
        return self.integer(name, default=default, low=low, high=high)

    def strings(self, name: str, most: int = MAX_STRINGS, most_chars: int | None = None) -> tuple[str, ...] | None:
        """An array of at most so many strings, with so many characters together."""
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong_type(self._at(name), "array", value)
        check_size(self._at(name), len(value), most, "strings")
        for i, item in enumerate(value):
            if not isinstance(item, str):
                raise wrong_type(f"{self._at(name)}.{i}", "string", item)
        if most_chars is not None:
            check_size(self._at(name), sum(map(len, value)), most_chars, "characters")
        return tuple(value)

    def array(self, name: str) -> list[object] | None:
        value = self._body.get(name)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self._at(name), "array", value)
        return value

    def objects(self, name: str) -> list[dict[str, object]]:
        """An array of objects; empty if it is not there."""
        return [member_object(item, f"{self._at(name)}.{i}") for i, item in enumerate(self.array(name) or ())]

    def object(self, name: str) -> dict[str, object] | None:
        value = self._body.get(name)
        if value is not None and not isinstance(value, dict):
            raise wrong_type(self._at(name), "object", value)
        return value


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "number", value)
    if not math.isfinite(value):
        raise InvalidRequest(f"Field '{name}': the number is out of range")
    return value


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise InvalidRequest(
            f"Field '{name}': Value must be between {_shown(low)} <= value <= {_shown(high)}, but got {_shown(value)}"
        )
    return value
