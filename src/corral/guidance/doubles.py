"""Owns numbers of schemas as llguidance reads them: bounds that it would read as others are rounded inward.

It makes doubles of all, of fractions with more than 15 digits sometimes a neighbour, and of -2**63 a stack overflow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TypeGuard

from corral.guidance.idle import over_parts

_EXACT = 2**53
"""Up to here every whole number is a double."""
_LAST = 2**63 - 1024
"""The last double that is a whole number of 64 bits, and so is its negative."""
_DIGITS = 15
"""So many digits, and no more, every double keeps."""
_POWERS = 22
"""Powers of ten up to here are doubles."""
_INWARD = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}


def as_doubles(schema: Mapping[str, object]) -> dict[str, object]:
    """The schema with bounds that are read exactly: a part of what it allows, the same up to 15 digits."""
    return {key: _bound(key, value) for key, value in schema.items()}


def inexact(value: object) -> int | float | None:
    """The first number in it that would be written as another one; None if there is none."""
    todo = [value]
    while todo:
        match todo.pop():
            case bool():
                continue
            case int() as number if abs(number) > _LAST or int(float(number)) != number:
                return number
            case float() as number if number and not _is_short(number):
                return number
            case list() as inner:
                todo += reversed(inner)
            case dict() as inner:
                todo += reversed(inner.values())
    return None


def _is_short(number: float) -> bool:
    """Of so many digits, and powers of ten, as are read exactly."""
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    return len(digits) <= _DIGITS and isinstance(exponent, int) and abs(exponent) <= _POWERS


def unreachable(schema: Mapping[str, object]) -> str:
    """The keyword that leaves none of the numbers that can be held; "" if there is none."""
    found = (key for key, sign in _INWARD.items() if _is_number(bound := schema.get(key)) and sign * bound > _LAST)
    return next(found, "")


def _bound(key: str, value: object) -> object:
    if key not in _INWARD or not _is_number(value):
        return over_parts(key, value, as_doubles)
    sign = _INWARD[key]
    if sign * value < -_LAST:
        return -sign * _LAST
    if _EXACT <= abs(value) <= _LAST:
        return int(_inward(value, sign, is_allowed=not key.startswith("exclusive")))
    return _shortened(value, sign) if isinstance(value, float) else value


def _is_number(bound: object) -> TypeGuard[float]:
    return isinstance(bound, int | float) and not isinstance(bound, bool)


def _inward(bound: float, sign: int, *, is_allowed: bool) -> float:
    """The nearest double that is not beyond ``bound``, nor, unless it is allowed, the bound itself.

    Of an exclusive bound as large as this llguidance allows the bound itself.
    """
    nearest = float(bound)
    is_inside = nearest > bound if sign > 0 else nearest < bound
    return nearest if is_inside or (is_allowed and nearest == bound) else math.nextafter(nearest, sign * math.inf)


def _shortened(bound: float, sign: int) -> float:
    """llguidance reads a fraction of more digits as one of its neighbours."""
    digits = Context(prec=_DIGITS, rounding=ROUND_CEILING if sign > 0 else ROUND_FLOOR)
    return float(digits.create_decimal(repr(bound)))
