"""The Jinja that chat templates are written for: Hugging Face's globals, filters and tags, in a sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment


class _GenerationTag(Extension):
    """``{% generation %}`` marks for training what the assistant said; it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


_CHANGES = re.compile(r"\.(append|extend|insert|pop|remove|update|setdefault)\(")


def changes_values(source: str) -> bool:
    """Whether a template changes lists or dictionaries, which Hugging Face's sandbox forbids and llama-server's not."""
    return _CHANGES.search(source) is not None


def new_environment(source: str, now: Callable[[], datetime]) -> SandboxedEnvironment:
    """For a template of this text; ``now`` gives the time that it may print."""
    kind = SandboxedEnvironment if changes_values(source) else ImmutableSandboxedEnvironment
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def variables_of(environment: SandboxedEnvironment, source: str) -> set[str]:
    """What a template takes from outside."""
    return meta.find_undeclared_variables(environment.parse(source))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: object) -> object:
    """What filters such as ``map`` give is not a list yet."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
