"""How one prompt is completed, in vLLM's names, as what the engine takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from corral.errors import InvalidRequest
from corral.ids import CacheKey, Token
from corral.llm.checks import check_extra, check_fields
from corral.tasks import NO_KEY, Constraint, ConstraintKind, Limits, Sampling

_HELD_BY = ("grammar", "json_schema", "regex", "choice", "lark")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to generate, in vLLM's names. Raises InvalidRequest for a field that is not what it must be.

    ``max_tokens`` None or -1: up to the end of the context. ``temperature`` 0 is greedy. ``seed`` None is random;
    choice i of n gets seed + i. ``logprobs``: how many likely tokens to tell at each position; ``prompt_logprobs``: the
    same for the prompt, which is then computed from its beginning and leaves no prefix. ``grammar`` is GBNF,
    ``json_schema`` a schema or its text, ``regex`` what the whole text must match, ``choice`` texts of which it is one,
    ``lark`` a grammar as llguidance reads it: one of the five.

    ``lora``: scales of adapters by their place in the list that LLM was given, those not named 0; None takes all as
    they were given. ``priority``, -100 to 100: unlike with vLLM a higher one is more urgent; it goes first, and takes
    slots and cells from those that run, which go on later. ``cache_salt``: prefixes are shared only among prompts with
    the same. ``cache_prompt`` False neither uses nor leaves a prefix. ``thinking_token_budget``, for ``LLM.chat``:
    thoughts are ended after so many tokens, 0 for none; None: as long as they are. ``extra_args``: further fields of
    ``corral.tasks.Sampling``, such as ``mirostat`` or ``xtc_probability``; TypeError for a name that it does not have.
    """

    n: int = 1
    max_tokens: int | None = 256
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    stop: str | Sequence[str] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[Token, float] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    grammar: str = ""
    json_schema: Mapping[str, Any] | str | None = None
    regex: str = ""
    choice: Sequence[str] | None = None
    lark: str = ""
    lora: Mapping[int, float] | None = None
    priority: int = 0
    cache_salt: str = ""
    cache_prompt: bool = True
    thinking_token_budget: int | None = None
    extra_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields({one.name: getattr(self, one.name) for one in fields(self)})
        check_extra(self.extra_args)

    def sampling(self) -> Sampling:
        """Raises InvalidRequest if text is to be held to several things."""
        own = Sampling(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            repeat_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            n_probs=self.logprobs or 0,
            logit_bias=tuple((self.logit_bias or {}).items()),
            ignore_eos=self.ignore_eos,
            grammar=self.grammar,
            constraint=self._constraint(),
        )
        return replace(own, **self.extra_args)

    def limits(self) -> Limits:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        n_predict = -1 if self.max_tokens is None else self.max_tokens
        return Limits(n_predict=n_predict, stop=tuple(word for word in stop if word))

    def cache_key(self) -> CacheKey:
        return CacheKey(f":{self.cache_salt}") if self.cache_salt else NO_KEY

    def _constraint(self) -> Constraint | None:
        texts = {
            ConstraintKind.JSON_SCHEMA: self._schema(),
            ConstraintKind.REGEX: self.regex,
            ConstraintKind.LARK: self.lark or _one_of(self.choice or ()),
        }
        if sum(bool(getattr(self, name)) or getattr(self, name) == {} for name in _HELD_BY) > 1:
            raise InvalidRequest(f"use one of {', '.join(_HELD_BY)}")
        return next((Constraint(kind, text) for kind, text in texts.items() if text), None)

    def _schema(self) -> str:
        schema = self.json_schema
        return schema or "" if schema is None or isinstance(schema, str) else json.dumps(schema)


DEFAULTS = SamplingParams()


def _one_of(texts: Sequence[str]) -> str:
    """A lark grammar; "" for no texts."""
    alternatives = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return f"start: {alternatives}" if alternatives else ""
