"""How the value of a flag is written: each kind turns text into a value or says why not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from corral.config import AdapterConfig, ApiKey
from corral.errors import LoadError
from corral.tasks import MAX_PRIORITY, SAMPLERS, sampler_called

TRUE_WORDS = frozenset({"1", "true", "on", "enabled", "yes"})
FALSE_WORDS = frozenset({"0", "false", "off", "disabled", "no"})

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Kind:
    """``metavar`` stands for the value in the help; ``read`` raises ValueError, or LoadError for a file."""

    metavar: str
    read: Callable[[str], Any]


INT_MIN, INT_MAX = -(2**31), 2**31 - 1
FLOAT_MAX = 3e38
"""What libllama's 32-bit numbers hold."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")


def integer(low: int = INT_MIN, high: int = INT_MAX, metavar: str = "N") -> Kind:
    """A whole number, ``low`` <= n <= ``high``."""

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text.strip()):
            raise ValueError(f"{text!r} is not a whole number")
        return _in_range(int(text), low, high)

    return Kind(metavar, read)


def number(low: float = -FLOAT_MAX, high: float = FLOAT_MAX) -> Kind:
    """A finite number, ``low`` <= x <= ``high``."""

    def read(text: str) -> float:
        try:
            value = float(text if text.isascii() and "_" not in text else "")
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not isfinite(value):
            raise ValueError(f"{text!r} is not a finite number")
        return _in_range(value, low, high)

    return Kind("X", read)


def _in_range(value: N, low: N, high: N) -> N:
    if value < low:
        raise ValueError(f"{value} is too small (at least {low})")
    if value > high:
        raise ValueError(f"{value} is too large (at most {high})")
    return value


def choice(*words: str, metavar: str = "") -> Kind:
    """One of ``words``."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return Kind(metavar or "{" + ",".join(words) + "}", read)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise ValueError(f"{text!r} is not a switch (use on or off)")
    return word in TRUE_WORDS


def _layers(text: str) -> int:
    return -1 if text in ("auto", "all") else int(integer().read(text))


def _file_text(text: str) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise LoadError(f"cannot read {text}: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {text}: {_reason(error)}; name a file that this user can read") from None


def _reason(error: OSError | ValueError) -> str:
    """A name with a NUL character is a ValueError."""
    return getattr(error, "strerror", None) or str(error)


def _existing(text: str) -> Path:
    try:
        Path(text).open("rb").close()
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot read {text}: {_reason(error)}; name a file that this user can read") from None
    return Path(text)


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise LoadError(f"no such folder: {path}; make it first")
    if not path.is_dir():
        raise LoadError(f"{path} is a file; name a folder")
    return path


MAX_WEIGHT = 1000.0
MIN_WEIGHT = 0.01


def _key_lines(text: str) -> tuple[ApiKey, ...]:
    lines = enumerate(map(str.strip, _file_text(text).splitlines()), start=1)
    keys = tuple(_key_line(line, f"{text}, line {i}") for i, line in lines if line and not line.startswith("#"))
    if not keys:
        raise LoadError(f"{text} holds no API key")
    return keys


def _key_line(line: str, place: str) -> ApiKey:
    """``KEY [weight=X] [priority=N]``. Messages do not show what may be part of a key."""
    key, *words = line.split()
    terms: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _TERMS or name in terms:
            raise LoadError(f"{place}: after the key there may be weight=X and priority=N, each once, and nothing else")
        try:
            terms[name] = _TERMS[name].read(value)
        except ValueError as error:
            raise LoadError(f"{place}: {name}: {error}") from None
    return ApiKey(key, **terms)


_TERMS = {"weight": number(MIN_WEIGHT, MAX_WEIGHT), "priority": integer(-MAX_PRIORITY, MAX_PRIORITY)}


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _json_text(text: str) -> str:
    _json_object(text)
    return text


def _json_file(text: str) -> str:
    content = _file_text(text)
    try:
        return _json_text(content)
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None


def _pins(text: str) -> tuple[dict[str, Any], ...]:
    """One JSON object in each line that is not empty."""
    lines = [(i, line) for i, line in enumerate(_file_text(text).splitlines(), 1) if line.strip()]
    pins = []
    for i, line in lines:
        try:
            pins.append(_json_object(line))
        except ValueError as error:
            raise LoadError(f"{text}, line {i}: {error}") from None
    return tuple(pins)


_BIAS = re.compile(r"([0-9]{1,9})([+-](?:inf|[0-9]{1,30}(?:\.[0-9]*)?|\.[0-9]+))")


def _bias(text: str) -> tuple[int, float]:
    match = _BIAS.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not TOKEN_ID+BIAS or TOKEN_ID-BIAS")
    return int(match[1]), float(match[2])


def _sampler_names(text: str) -> tuple[str, ...]:
    return tuple(_sampler(part.strip()) for part in text.split(";") if part.strip())


def _sampler(name: str) -> str:
    found = sampler_called(name)
    if found is None:
        raise ValueError(f"no sampler is called {name!r}; there are {', '.join(SAMPLERS.values())}")
    return found


def _sampler_letters(text: str) -> tuple[str, ...]:
    for letter in text:
        if letter not in SAMPLERS:
            raise ValueError(f"no sampler has the letter {letter!r}")
    return tuple(SAMPLERS[letter] for letter in text)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}


def _unescaped(text: str) -> str:
    return re.sub(r"""\\([ntr"'\\])""", lambda match: _ESCAPES[match[1]], text)


def _adapters(text: str) -> tuple[AdapterConfig, ...]:
    return tuple(AdapterConfig(Path(name)) for name in _list(text))


def _scaled_adapters(text: str) -> tuple[AdapterConfig, ...]:
    return tuple(_scaled_adapter(part) for part in _list(text))


def _scaled_adapter(text: str) -> AdapterConfig:
    name, colon, scale = text.rpartition(":")
    if not colon or not name:
        raise ValueError(f"{text!r} is not FILE:SCALE")
    return AdapterConfig(Path(name), float(number().read(scale)))


SWITCH = Kind("", _switch)
ON_OFF_AUTO = choice("on", "off", "auto")
REASONING_FORMAT = choice("none", "auto", "deepseek", "deepseek-legacy")
CACHE_TYPE = choice("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", metavar="TYPE")
LOAD_MODE = choice("auto", "none", "mmap", "mlock", "mmap+mlock", metavar="MODE")
TEXT = Kind("TEXT", str)
LIST = Kind("A,B,...", _list)
ADAPTERS = Kind("FILE,...", _adapters)
SCALED_ADAPTERS = Kind("FILE:SCALE,...", _scaled_adapters)
ESCAPED = Kind("TEXT", _unescaped)
PATH = Kind("FILE", Path)
EXISTING = Kind("FILE", _existing)
NEW_FOLDER = Kind("DIR", Path)
FOLDER = Kind("DIR", _folder)
FILE_TEXT = Kind("FILE", _file_text)
KEY_FILE = Kind("FILE", _key_lines)
LAYERS = Kind("{N,auto,all}", _layers)
PINS = Kind("FILE", _pins)
JSON_OBJECT = Kind("JSON", _json_object)
JSON_FILE = Kind("FILE", _json_file)
JSON_TEXT = Kind("JSON", _json_text)
BIAS = Kind("TOKEN(+/-)BIAS", _bias)
SAMPLER_NAMES = Kind("A;B;...", _sampler_names)
SAMPLER_LETTERS = Kind("LETTERS", _sampler_letters)
INT = integer()
SEED = integer(high=2**32 - 1)
COUNT = integer(0)
