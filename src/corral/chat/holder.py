"""Owns what a chat reply is held to where there are tools, and what is given up so that schemas cost no chat."""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson

from corral.chat.formats.base import Format
from corral.chat.formats.grammar import Wanted, call_constraint
from corral.chat.formats.rules import Literal
from corral.chat.schema import Json
from corral.chat.tool_schemas import ToolSchemas, loosened
from corral.chat.tools import Tools
from corral.errors import InvalidRequest
from corral.guidance.idle import without_idle
from corral.guidance.silent import as_meant
from corral.tasks import Constraint

log = logging.getLogger(__name__)

NewMatcher = Callable[[Constraint], object]


class CallHolder:
    """Makes constraints. Safe to use from several threads.

    ``new_matcher`` compiles them, so that those that do not compile for this vocabulary are found here; it raises
    InvalidRequest.
    """

    def __init__(self, literal: Literal, new_matcher: NewMatcher | None) -> None:
        self._literal = literal
        self._new_matcher = new_matcher
        self._schemas = ToolSchemas()

    def reply(self, own: Constraint) -> Json:
        """The schema of an answer that calls nothing, as a part of other grammars. Raises InvalidRequest."""
        if self._new_matcher is not None:
            self._new_matcher(own)
        schema = orjson.loads(own.text)
        return as_meant(without_idle(schema)) if isinstance(schema, dict) else {}

    def constraint(self, format: Format, tools: Tools, wanted: Wanted) -> Constraint | None:
        """What the reply is held to by the tools that may or must be called; None: to nothing. Raises InvalidRequest.

        What cannot be held of arguments is not, but for strict tools, where that is refused. So is a call that must be
        made in a format without grammar.
        """
        choice = wanted.choice
        if choice.mode == "none":
            return None
        tools = self._schemas.held(Tools({choice.name: tools.by_name[choice.name]}) if choice.name else tools)
        found = call_constraint(format, tools, wanted, self._literal)
        if found is None and choice.mode == "required":
            raise InvalidRequest(
                f"Field 'tool_choice': calls in the format of this model ({format.name}) cannot be forced; use 'auto'"
            )
        fault = self._fault(found)
        return self._loose(format, tools, wanted, fault) if fault else found

    def _loose(self, format: Format, tools: Tools, wanted: Wanted, fault: str) -> Constraint | None:
        """What compiles in place of what does not: without the schemas at fault, without all, nothing.

        Raises InvalidRequest if the schemas are insisted on, or a call or an answer of a schema is.
        """
        alone = ((name, Tools({name: tool})) for name, tool in tools.by_name.items())
        guilty = [name for name, one in alone if self._fault(call_constraint(format, one, wanted, self._literal))]
        for names in (guilty, list(tools.by_name)):
            log.info("arguments of tools are any objects, as the grammar does not compile (%s): %s", fault, names)
            found = call_constraint(format, loosened(tools, names), wanted, self._literal)
            if not self._fault(found):
                return found
        is_strict = any(tool.strict for tool in tools.by_name.values())
        if wanted.choice.mode == "required" or wanted.reply is not None or is_strict:
            raise InvalidRequest(f"Failed to parse tools: calls of {', '.join(tools.by_name)} cannot be held: {fault}")
        return None

    def _fault(self, constraint: Constraint | None) -> str:
        """Why it does not compile, in a line; "" if it does."""
        if constraint is None or self._new_matcher is None:
            return ""
        try:
            self._new_matcher(constraint)
        except InvalidRequest as error:
            return str(error).partition("\n")[0]
        return ""
