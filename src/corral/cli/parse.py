"""From words and environment to values: finds each flag in the table, reads its value, and says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from corral.cli.absent import INSTEAD, OFF_ALREADY, OFF_VALUES, is_absent
from corral.cli.flags import FLAGS, Flag
from corral.cli.kinds import FALSE_WORDS, SWITCH
from corral.errors import CorralError, LoadError


class UsageError(CorralError):
    """The command line or a LLAMA_ARG_* variable is wrong; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """``values`` has every key of the table, ``given`` those that were set; ``notes`` are to be told to the user."""

    values: Mapping[str, Any]
    given: frozenset[str]
    notes: tuple[str, ...]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


_ALL = tuple(flag for group in FLAGS.values() for flag in group)
_ON = {name: flag for flag in _ALL for name in flag.names}
_OFF = {name: flag for flag in _ALL for name in flag.negatives}


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Parsed:
    """Flags beat the environment, which beats the defaults. Raises UsageError, or LoadError for a named file."""
    notes: list[str] = []
    values: dict[str, Any] = {}
    for flag, name, text in _from_environ(environ):
        values[flag.key] = _value(flag, name, text, ())
    seen: set[str] = set()
    for flag, name, text in _from_words(argv, notes):
        earlier = values[flag.key] if flag.repeats and flag.key in seen else ()
        if flag.key in seen and not flag.repeats:
            notes.append(f"{flag.name} is given more than once: the last one counts")
        seen.add(flag.key)
        values[flag.key] = _value(flag, name, text, earlier)
    notes += [f"{flag.name} has no effect: {flag.note}" for flag in _ALL if flag.note and flag.key in values]
    defaults = {flag.key: flag.default for flag in _ALL}
    return Parsed(defaults | values, frozenset(values), tuple(notes))


def _value(flag: Flag, name: str, text: str, earlier: tuple[Any, ...]) -> Any:
    if not text and flag.kind.metavar.startswith(("FILE", "DIR")):  # a shell's variable that is not set
        raise UsageError(f"{name} is empty: name a {'folder' if flag.kind.metavar == 'DIR' else 'file'}")
    try:
        value = flag.kind.read(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    except LoadError as error:
        raise LoadError(f"{name}: {error}") from error
    if flag.only is not None and value != flag.only:
        raise UsageError(f"{name}: {flag.help}; nothing else is available in corral yet")
    return (*earlier, value) if flag.repeats else value


def _from_words(argv: Sequence[str], notes: list[str]) -> Iterator[tuple[Flag, str, str]]:
    words = iter(argv)
    for word in words:
        name, equals, inline = word.partition("=") if word.startswith("--") else (word, "", "")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name in OFF_ALREADY:
            notes.append(f"{name} has no effect: corral does not have it")
            continue
        if name in OFF_VALUES and (inline if equals else next(words, "")) == OFF_VALUES[name]:
            notes.append(f"{name} {OFF_VALUES[name]} has no effect: corral does not have it")
            continue
        flag = _ON.get(name) or _OFF.get(name)
        if flag is None:
            raise UsageError(_unknown(name))
        if flag.kind is SWITCH:
            if equals:
                raise UsageError(f"{name} takes no value")
            yield flag, name, "off" if name in _OFF else "on"
            continue
        text = inline if equals else next(words, None)
        if text is None:
            raise UsageError(f"{name} needs a value: {flag.kind.metavar}")
        yield flag, name, text


def _unknown(name: str) -> str:
    if is_absent(name):
        return f"{name} is not available in corral yet" + (f": {INSTEAD[name]}" if name in INSTEAD else "")
    if not name.startswith("-"):
        return f"unexpected argument {name!r}" + (f" (did you mean -m {name}?)" if name.endswith(".gguf") else "")
    near = get_close_matches(name, [*_ON, *_OFF], n=1)
    return f"unknown flag {name}" + (f" (did you mean {near[0]}?)" if near else "")


def _turned(name: str, text: str) -> str:
    """The opposite switch, for a variable that says NO."""
    try:
        return "off" if SWITCH.read(text) else "on"
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[Flag, str, str]]:
    on = {flag.env: flag for flag in _ALL if flag.env}
    off = {flag.negative_env: flag for flag in _ALL if flag.negative_env}
    for name in sorted(environ):
        text = environ[name]
        if not text:
            continue
        if name in on:
            yield on[name], name, text
        elif name in off:
            yield off[name], name, _turned(name, text)
        elif name.startswith("LLAMA_ARG_") and text.lower() not in FALSE_WORDS:
            raise UsageError(f"{name} is set, and corral does not have it")
