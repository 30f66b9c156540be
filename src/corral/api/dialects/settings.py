"""The settings of a task as replies, /slots and /props show them."""

from __future__ import annotations

import math
from dataclasses import replace

from corral.api.schemas.adapters import Scales
from corral.api.schemas.sampling import RANDOM_SEED
from corral.tasks import Limits, Sampling, Trigger, TriggerKind

Json = dict[str, object]

_CONTENT_FREE = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "typical_p",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
)

_PRIVATE = (
    "dry_sequence_breakers",
    "stop",
    "logit_bias",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "preserved_tokens",
)
"""What may show a request's content; left out where others can read it."""


def settings_json(
    sampling: Sampling,
    limits: Limits,
    *,
    seed: int | None = None,
    n_keep: int = 0,
    n_discard: int = 0,
    stream: bool = False,
    timings_per_token: bool = False,
    lora: Scales = (),
) -> Json:
    """Everything, in llama-server's order. ``seed`` is the one that was used."""
    s = sampling
    triggers = s.constraint.triggers if s.constraint else ()
    used_seed = s.seed if seed is None else seed
    return {
        "seed": RANDOM_SEED if used_seed is None else used_seed,
        **{name: getattr(s, name) for name in _CONTENT_FREE},
        "stop": limits.stop,
        "max_tokens": limits.n_predict,
        "n_predict": limits.n_predict,
        "n_keep": n_keep,
        "n_discard": n_discard,
        "ignore_eos": s.ignore_eos,
        "stream": stream,
        "logit_bias": [{"bias": None if math.isinf(bias) else bias, "token": token} for token, bias in s.logit_bias],
        "n_probs": s.n_probs,
        "min_keep": s.min_keep,
        "grammar": s.grammar or (s.constraint.text if s.constraint else ""),
        "grammar_lazy": bool(triggers),
        "grammar_triggers": [_trigger(trigger) for trigger in triggers],
        "preserved_tokens": [],
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "samplers": s.samplers,
        "speculative.types": "none",
        "timings_per_token": timings_per_token,
        "post_sampling_probs": s.post_sampling_probs,
        "backend_sampling": False,
        "lora": [{"id": adapter, "scale": scale} for adapter, scale in lora],
    }


def public_settings_json(
    sampling: Sampling,
    limits: Limits,
    *,
    n_keep: int = 0,
    n_discard: int = 0,
    stream: bool = False,
    timings_per_token: bool = False,
    lora: Scales = (),
) -> Json:
    """The same without what may show a request's content."""
    settings = settings_json(
        replace(sampling, logit_bias=(), constraint=None),  # they may be long, and are not told
        limits,
        n_keep=n_keep,
        n_discard=n_discard,
        stream=stream,
        timings_per_token=timings_per_token,
        lora=lora,
    )
    return {name: value for name, value in settings.items() if name not in _PRIVATE}


def _trigger(trigger: Trigger) -> Json:
    shown: Json = {"type": int(trigger.kind), "value": trigger.text}
    return {**shown, "token": trigger.token} if trigger.kind is TriggerKind.TOKEN else shown
