"""All fields of a completion request besides the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from corral.api.schemas.adapters import Scales, read_scales
from corral.api.schemas.constraint import read_preserved
from corral.api.schemas.defaults import Defaults
from corral.api.schemas.fields import Fields
from corral.api.schemas.sampling import read_sampling
from corral.config import ServerConfig
from corral.ids import SlotId, Token
from corral.ports import Tokenizer
from corral.tasks import MAX_PRIORITY, Limits, Sampling

MAX_STOPS, MAX_STOP_CHARS = 256, 16_384
"""Each character of a reply is compared with all of them."""
MAX_SALT_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Params:
    """How to generate and how to answer.

    ``priority`` None: that of the API key. ``sse_ping_interval_s`` <= 0 sends no pings. ``echoes``: the text of each
    prompt, to be repeated at the head of its replies; ``n_prompt_probs`` as in ``tasks.Task``. ``n_top``: likeliest
    tokens to show in each place, None for as many as ``sampling`` asks for.
    """

    sampling: Sampling
    limits: Limits
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    cache_prompt: bool = True
    cache_salt: str = ""
    priority: int | None = None
    id_slot: SlotId | None = None
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    sse_ping_interval_s: int = 30
    verbose: bool = False
    n_keep: int = 0
    n_discard: int = 0
    n_cache_reuse: int = 0
    response_fields: tuple[str, ...] = ()
    preserved_tokens: frozenset[Token] = frozenset()
    lora: Scales = ()
    echoes: tuple[str, ...] = ()
    n_prompt_probs: int = -1
    n_top: int | None = None


def read_params(fields: Fields, defaults: Defaults, server: ServerConfig, tokenizer: Tokenizer, n_slots: int) -> Params:
    """Read every field in llama-server's order. Raises InvalidRequest for the first that is wrong."""
    n_predict = fields.integer("n_predict", "max_completion_tokens", "max_tokens", default=-1, low=-1)
    n = fields.integer("n_cmpl", "n", default=1, low=1, high=n_slots)
    return Params(
        n=n,
        stream=fields.boolean("stream"),
        include_usage=_include_usage(fields) or server.always_usage,
        cache_prompt=fields.boolean("cache_prompt", defaults.cache_prompt),
        cache_salt=read_salt(fields),
        priority=_priority(fields),
        return_tokens=fields.boolean("return_tokens"),
        return_progress=fields.boolean("return_progress"),
        timings_per_token=fields.boolean("timings_per_token"),
        sse_ping_interval_s=fields.integer("sse_ping_interval", default=server.sse_ping_interval_s, low=-1),
        verbose=fields.boolean("verbose"),
        n_keep=fields.integer("n_keep", default=defaults.n_keep, low=-1),
        n_discard=fields.integer("n_discard", default=0, low=0),
        n_cache_reuse=fields.integer("n_cache_reuse", default=defaults.n_cache_reuse, low=0),
        response_fields=fields.strings("response_fields") or (),
        preserved_tokens=read_preserved(fields, tokenizer),
        lora=read_scales(fields.array("lora") or []),
        id_slot=_id_slot(fields, n_slots),
        sampling=read_sampling(fields, defaults.sampling, tokenizer),
        limits=_limits(fields, defaults.limits, n_predict),
    )


def _priority(fields: Fields) -> int | None:
    if fields.value("priority") is None:
        return None
    return fields.whole("priority", 0, -MAX_PRIORITY, MAX_PRIORITY)


def _limits(fields: Fields, default: Limits, n_predict: int) -> Limits:
    return Limits(
        n_predict=default.n_predict if n_predict == -1 else n_predict,
        n_indent=fields.integer("n_indent", default=default.n_indent, low=0),
        t_max_predict_ms=fields.integer("t_max_predict_ms", default=default.t_max_predict_ms, low=-1),
        stop=read_stop(fields) or default.stop,
    )


def read_stop(fields: Fields) -> tuple[str, ...]:
    """One stop string or several; empty ones never match and are left out."""
    if isinstance(fields.value("stop"), str):
        word = fields.text("stop", most=MAX_STOP_CHARS)
        return (word,) if word else ()
    return tuple(word for word in fields.strings("stop", MAX_STOPS, MAX_STOP_CHARS) or () if word)


def read_salt(fields: Fields) -> str:
    """Whose prefixes to meet: it is kept with each of them."""
    return fields.text("cache_salt", most=MAX_SALT_CHARS)


def _include_usage(fields: Fields) -> bool:
    return Fields(fields.object("stream_options") or {}, "stream_options").boolean("include_usage")


def _id_slot(fields: Fields, n_slots: int) -> SlotId | None:
    id_slot = fields.clamped("id_slot", -1)
    return None if id_slot < 0 else SlotId(id_slot % n_slots)
