"""Owns what the fields of SamplingParams may be: a wrong one is refused by its name, with its value and what may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real

from corral.errors import InvalidRequest
from corral.tasks import DEFAULT_SAMPLERS, MAX_PRIORITY, SAMPLERS, Sampling

INT_MAX = 2**31 - 1
MAX_SHOWN = 80

Check = Callable[[object], bool]
Rule = tuple[str, Check]
"""What a field must be, in words and as a test."""


def check_fields(values: Mapping[str, object]) -> None:
    """Those of SamplingParams. Raises InvalidRequest for the first that is wrong."""
    for name, (words, is_right) in _RULES.items():
        if not is_right(values[name]):
            raise wrong(name, values[name], words)


def check_extra(values: Mapping[str, object]) -> None:
    """Further fields of Sampling. Raises InvalidRequest, or TypeError for a name that it does not have."""
    known = {field.name for field in fields(Sampling)}
    if unknown := sorted(values.keys() - known):
        raise TypeError(f"Sampling has no field {unknown[0]!r}")
    for name, value in values.items():
        words, is_right = _EXTRA.get(name) or _like(getattr(Sampling(), name))
        if not is_right(value):
            raise wrong(f"extra_args: {name}", value, words)


def check_options(values: Mapping[str, object], configs: Sequence[type]) -> None:
    """Fields of dataclasses. Raises TypeError for a name that none has, and for a value of another type."""
    defaults = {one.name: one.default for config in configs for one in fields(config)}
    if unknown := sorted(values.keys() - defaults.keys()):
        raise TypeError(f"LLM has no option {unknown[0]!r}")
    for name, value in values.items():
        words, is_right = _like(defaults[name])
        if not is_right(value):
            raise TypeError(str(wrong(name, value, words)))


def wrong(name: str, value: object, words: str) -> InvalidRequest:
    """A field that must be what ``words`` say."""
    shown = repr(value)
    shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
    return InvalidRequest(f"{name}: must be {words}, but is {shown}")


def is_whole(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_bias(value: object) -> bool:
    return _is_number(value) or value == -math.inf


def _are_texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(isinstance(x, str) for x in value)


def _whole(low: int, high: int = INT_MAX, *, or_none: bool = False) -> Rule:
    words = f"a whole number from {low} to {high}" + (" or None" if or_none else "")
    return words, lambda value: (or_none and value is None) or (is_whole(value) and low <= value <= high)


def _or_none(rule: Rule) -> Rule:
    words, is_right = rule
    return f"{words} or None", lambda value: value is None or is_right(value)


def _mapping(words: str, is_right: Check) -> Rule:
    def check(value: object) -> bool:
        return isinstance(value, Mapping) and all(is_whole(key) and is_right(one) for key, one in value.items())

    return words, check


_TEXT: Rule = ("text", lambda value: isinstance(value, str))
_BOOLEAN: Rule = ("True or False", lambda value: isinstance(value, bool))
_NUMBER: Rule = ("a finite number", _is_number)
_POSITIVE: Rule = ("a finite number greater than 0", lambda value: _is_number(value) and value > 0)  # type: ignore[operator]
_ANY_WHOLE: Rule = ("a whole number", is_whole)
_CHOICE: Rule = ("a list of at least one text", lambda value: _are_texts(value) and bool(value))
_SCHEMA: Rule = ("a schema as a mapping, its text", lambda value: isinstance(value, Mapping | str))

_RULES: dict[str, Rule] = {
    "n": _ANY_WHOLE,
    "max_tokens": _whole(-1, or_none=True),
    "temperature": _NUMBER,
    "top_k": _ANY_WHOLE,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "seed": _or_none(_ANY_WHOLE),
    "stop": ("text or a list of texts", lambda value: isinstance(value, str) or _are_texts(value)),
    "repetition_penalty": _POSITIVE,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "logprobs": _whole(0, or_none=True),
    "prompt_logprobs": _whole(0, or_none=True),
    "logit_bias": _or_none(_mapping("a mapping of token ids to finite numbers or -inf,", _is_bias)),
    "ignore_eos": _BOOLEAN,
    "skip_special_tokens": _BOOLEAN,
    "grammar": _TEXT,
    "json_schema": _or_none(_SCHEMA),
    "regex": _TEXT,
    "choice": _or_none(_CHOICE),
    "lark": _TEXT,
    "lora": _or_none(_mapping("a mapping of the numbers of adapters to finite scales", _is_number)),
    "priority": _whole(-MAX_PRIORITY, MAX_PRIORITY),
    "cache_salt": _TEXT,
    "cache_prompt": _BOOLEAN,
    "thinking_token_budget": _whole(-1, or_none=True),
    "extra_args": ("a mapping", lambda value: isinstance(value, Mapping)),
}

_NAMES = ", ".join(SAMPLERS.values())
_KNOWN = frozenset((*SAMPLERS.values(), *DEFAULT_SAMPLERS))
_ANY: Rule = ("what Sampling has", lambda value: True)
_EXTRA: dict[str, Rule] = {
    "seed": _or_none(_ANY_WHOLE),
    "repeat_penalty": _POSITIVE,
    "mirostat": _whole(0, 2),
    "adaptive_decay": ("a number from 0 to 0.99", lambda value: _is_number(value) and 0 <= value <= 0.99),  # type: ignore[operator]
    "repeat_last_n": _whole(-1),
    "dry_penalty_last_n": _whole(-1),
    "dry_allowed_length": _whole(0),
    "min_keep": _whole(0),
    "n_probs": _whole(0),
    "dry_sequence_breakers": _CHOICE,
    "samplers": (f"a list of {_NAMES}", lambda value: _are_texts(value) and _KNOWN.issuperset(value)),  # type: ignore[arg-type]
    "logit_bias": _ANY,
    "constraint": _ANY,
    "thoughts": _ANY,
}


def _like(default: object) -> Rule:
    """The rule of a field by its default."""
    kinds = {bool: _BOOLEAN, int: _ANY_WHOLE, float: _NUMBER, str: _TEXT}
    return kinds.get(type(default), _ANY)
