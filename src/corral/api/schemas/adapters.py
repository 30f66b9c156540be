"""The list of adapters with their scales, as requests and POST /lora-adapters carry it."""

from __future__ import annotations

from corral.api.schemas.fields import Fields, type_name, wrong_type
from corral.errors import InvalidRequest
from corral.ids import AdapterId

Scales = tuple[tuple[AdapterId, float], ...]
"""Adapters by id, scale 0 included, in ascending order."""

MAX_SCALE = 3e38
"""What libllama's 32-bit numbers hold."""


def read_scales(entries: list[object], name: str = "lora") -> Scales:
    """Of an id that is named twice the last scale counts. Raises InvalidRequest; whether ids exist is not checked."""
    scales: dict[AdapterId, float] = {}
    for i, entry in enumerate(entries):
        at = f"{name}.{i}"
        if not isinstance(entry, dict):
            raise wrong_type(at, "object with 'id' and 'scale'", entry)
        scales[_id(entry, at)] = Fields(entry, at).hard_number("scale", 0.0, -MAX_SCALE, MAX_SCALE)
    return tuple(sorted(scales.items()))


def _id(entry: dict[str, object], at: str) -> AdapterId:
    value = entry.get("id")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"Field '{at}.id': type must be an integer, but is {type_name(value)}")
    return AdapterId(value)
