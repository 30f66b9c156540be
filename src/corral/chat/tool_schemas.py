"""Owns what the arguments of tools are held to: their schemas, without what cannot be held."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson

from corral.chat.tools import Tool, Tools
from corral.errors import InvalidRequest
from corral.guidance.limits import MAX_CHARS
from corral.guidance.relax import ANY_OBJECT, LeftOut, relaxed, strict_fault

log = logging.getLogger(__name__)

MAX_REMEMBERED = 4 * 1024 * 1024
"""Characters of all schemas that are remembered; clients send the same tools with each request."""
ROOM_CHARS = MAX_CHARS * 3 // 4
"""For all schemas of a request: a grammar has marks and names besides."""


class _Known(NamedTuple):
    """What became of a schema of so many characters."""

    schema: Mapping[str, object]
    left: tuple[LeftOut, ...]
    n_chars: int


class ToolSchemas:
    """Remembers what became of schemas. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._n_chars = 0

    def held(self, tools: Tools) -> Tools:
        """The tools with parameters that can be held. What is left out is logged, the first time as information.

        Raises InvalidRequest for a strict tool whose schema cannot be held to the letter.
        """
        lines: list[str] = []
        is_new = False
        found = []
        for tool in tools.by_name.values():
            held, left, is_new_one = self._held(tool)
            is_new |= is_new_one
            lines += (f"{tool.name}: {one}" for one in left)
            found.append(replace(tool, parameters=held))
        if lines:
            log.log(
                logging.INFO if is_new else logging.DEBUG, "arguments of tools are held but for: %s", "; ".join(lines)
            )
        return _fitting(found)

    def _held(self, tool: Tool) -> tuple[Mapping[str, object], tuple[LeftOut, ...], bool]:
        """The schema, what is left out of it, and whether it was not seen before."""
        written = orjson.dumps([tool.strict, tool.parameters])
        key = hashlib.sha256(written).digest()
        with self._lock:
            if known := self._known.get(key):
                self._known.move_to_end(key)
                return known.schema, known.left, False
        if tool.strict and (fault := strict_fault(tool.parameters)):
            raise InvalidRequest(
                f"Failed to parse tools: function '{tool.name}' is strict, and its parameters cannot be held: {fault}; "
                "change them, or leave out 'strict'"
            )
        made = _Known(*relaxed(tool.parameters), len(written))
        self._remember(key, made)
        return made.schema, made.left, True

    def _remember(self, key: bytes, made: _Known) -> None:
        """The newest that fit; one that is too large alone is not kept."""
        with self._lock:
            if key in self._known or made.n_chars > MAX_REMEMBERED:
                return
            self._known[key] = made
            self._n_chars += made.n_chars
            while self._n_chars > MAX_REMEMBERED:
                self._n_chars -= self._known.popitem(last=False)[1].n_chars


def loosened(tools: Tools, names: Collection[str]) -> Tools:
    """The tools, those of ``names`` with any object as arguments; strict ones stay as they are."""
    loose = {
        name: replace(tool, parameters=ANY_OBJECT) if name in names and not tool.strict else tool
        for name, tool in tools.by_name.items()
    }
    return Tools(loose)


def _fitting(tools: Sequence[Tool]) -> Tools:
    """The tools, the largest with any object as arguments if all are too much for a grammar. Raises InvalidRequest."""
    sizes = {tool.name: len(json.dumps(tool.parameters, ensure_ascii=False)) for tool in tools}
    n_chars, strict = sum(sizes.values()), {tool.name for tool in tools if tool.strict}
    too_large = []
    for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if n_chars <= ROOM_CHARS:
            break
        if name not in strict:
            too_large.append(name)
            n_chars -= sizes[name]
    if n_chars > ROOM_CHARS:
        largest = max(strict, key=sizes.__getitem__)
        raise InvalidRequest(
            f"Failed to parse tools: the schemas of strict functions have {n_chars} characters ('{largest}' "
            f"{sizes[largest]}); at most {ROOM_CHARS} can be held"
        )
    if too_large:
        log.info("arguments of tools are any objects, as their schemas are too large: %s", ", ".join(too_large))
    return loosened(Tools({tool.name: tool for tool in tools}), too_large)
