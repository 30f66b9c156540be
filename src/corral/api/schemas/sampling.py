"""The sampling fields of a request body."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence

from corral.api.schemas.constraint import read_held
from corral.api.schemas.fields import INT_MAX, MAX_STRINGS, Fields, check_size, quoted, whole_number, wrong_type
from corral.errors import InvalidRequest
from corral.events import Ranked
from corral.ids import Token
from corral.ports import Tokenizer
from corral.tasks import SAMPLERS, Sampling, sampler_called

MAX_SAMPLERS = 64
MAX_BREAKERS = 16
"""Each of DRY's breakers is looked for in the whole vocabulary."""

log = logging.getLogger("corral.api")

RANDOM_SEED = 2**32 - 1

_NUMBER = re.compile(r"-?[0-9]+")
MAX_TOLD = 3
"""Unknown names of one request that the log repeats."""


def read_sampling(fields: Fields, default: Sampling, tokenizer: Tokenizer) -> Sampling:
    """Sampling as the body asks for it. Raises InvalidRequest."""
    d = default
    grammar, constraint = read_held(fields, d, tokenizer)
    return Sampling(
        temperature=fields.number("temperature", d.temperature, low=0.0),
        dynatemp_range=fields.number("dynatemp_range", d.dynatemp_range),
        dynatemp_exponent=fields.number("dynatemp_exponent", d.dynatemp_exponent),
        top_k=fields.clamped("top_k", d.top_k, low=0),
        top_p=fields.number("top_p", d.top_p, 0.0, 1.0),
        min_p=fields.number("min_p", d.min_p, 0.0, 1.0),
        top_n_sigma=fields.number("top_n_sigma", d.top_n_sigma),
        typical_p=fields.number("typical_p", d.typical_p),
        xtc_probability=fields.number("xtc_probability", d.xtc_probability, 0.0, 1.0),
        xtc_threshold=fields.number("xtc_threshold", d.xtc_threshold, 0.0, 1.0),
        repeat_last_n=fields.integer("repeat_last_n", default=d.repeat_last_n, low=0),
        repeat_penalty=_repeat_penalty(fields, d),
        presence_penalty=fields.number("presence_penalty", d.presence_penalty),
        frequency_penalty=fields.number("frequency_penalty", d.frequency_penalty),
        dry_multiplier=fields.number("dry_multiplier", d.dry_multiplier),
        dry_base=_dry_base(fields, d),
        dry_allowed_length=fields.integer("dry_allowed_length", default=d.dry_allowed_length, low=0),
        dry_penalty_last_n=fields.integer("dry_penalty_last_n", default=d.dry_penalty_last_n, low=0),
        dry_sequence_breakers=_dry_breakers(fields, d),
        mirostat=fields.clamped("mirostat", d.mirostat, 0, 2),
        mirostat_tau=fields.number("mirostat_tau", d.mirostat_tau),
        mirostat_eta=fields.number("mirostat_eta", d.mirostat_eta),
        adaptive_target=fields.number("adaptive_target", d.adaptive_target, high=1.0),
        adaptive_decay=fields.hard_number("adaptive_decay", d.adaptive_decay, 0.0, 0.99),
        seed=read_seed(fields, d.seed),
        min_keep=fields.integer("min_keep", default=d.min_keep, low=0),
        n_probs=read_n_probs(fields, d.n_probs, tokenizer.n_vocab),
        post_sampling_probs=fields.boolean("post_sampling_probs", d.post_sampling_probs),
        logit_bias=_logit_bias(fields, d, tokenizer),
        ignore_eos=fields.boolean("ignore_eos", d.ignore_eos),
        grammar=grammar,
        constraint=constraint,
        samplers=_samplers(fields, d),
    )


def read_seed(fields: Fields, default: int | None) -> int | None:
    """The seed as an unsigned 32-bit number; None draws one (asked for with -1)."""
    if fields.value("seed") is None:
        return default
    seed = fields.clamped("seed", 0, low=-(2**63), high=2**63 - 1) % 2**32
    return None if seed == RANDOM_SEED else seed


def read_n_probs(fields: Fields, default: int, n_vocab: int) -> int:
    """``n_probs`` or its alias ``logprobs``, where ``true`` is 1; no more than the vocabulary has."""
    found = fields.find("n_probs", "logprobs")
    if found is not None and isinstance(found[1], bool):
        return int(found[1])
    if found is None:
        return default
    wanted = Fields({found[0]: found[1]}).integer(found[0], default=0, low=-INT_MAX)
    return min(max(wanted, 0), n_vocab)


def _repeat_penalty(fields: Fields, default: Sampling) -> float:
    penalty = fields.number("repeat_penalty", default.repeat_penalty)
    if penalty <= 0:
        raise InvalidRequest("Failed to initialize samplers: repeat_penalty must be greater than 0")
    return penalty


def _dry_base(fields: Fields, default: Sampling) -> float:
    base = fields.number("dry_base", default.dry_base)
    return default.dry_base if base < 1.0 else base


def _dry_breakers(fields: Fields, default: Sampling) -> tuple[str, ...]:
    breakers = fields.strings("dry_sequence_breakers", MAX_BREAKERS)
    if breakers is None:
        return default.dry_sequence_breakers
    if not breakers:
        raise InvalidRequest("Field 'dry_sequence_breakers': must be a non-empty array of strings")
    return breakers


def _samplers(fields: Fields, default: Sampling) -> tuple[str, ...]:
    value = fields.value("samplers")
    if value is None:
        return default.samplers
    is_text = isinstance(value, str)
    names = fields.text("samplers", most=MAX_STRINGS) if is_text else fields.strings("samplers") or ()
    found = [(name, SAMPLERS.get(name) if is_text else sampler_called(name)) for name in names]
    _tell_unknown([name for name, sampler in found if sampler is None])
    samplers = tuple(sampler for _, sampler in found if sampler is not None)
    check_size("samplers", len(samplers), MAX_SAMPLERS, "samplers")
    return samplers


def _tell_unknown(names: list[str]) -> None:
    """They are left out, as llama-server does."""
    if not names:
        return
    more = f" and {len(names) - MAX_TOLD} more" if len(names) > MAX_TOLD else ""
    shown = ", ".join(map(quoted, names[:MAX_TOLD]))
    log.info("unknown samplers are left out: %s%s (known: %s)", shown, more, ", ".join(SAMPLERS.values()))


def _logit_bias(fields: Fields, default: Sampling, tokenizer: Tokenizer) -> Sequence[tuple[Token, float]]:
    value = fields.value("logit_bias")
    if value is None:
        return default.logit_bias
    if not isinstance(value, list | dict):
        raise wrong_type("logit_bias", "array or object", value)
    most = tokenizer.n_vocab
    check_size("logit_bias", len(value), most, "entries")
    pairs = list(_object_pairs(value) if isinstance(value, dict) else _array_pairs(value))
    n_least = sum(tokenizer.n_tokens_at_least(key) for key, _ in pairs if isinstance(key, str))
    check_size("logit_bias", n_least, most, "tokens")
    biases = [(token, bias) for key, bias in pairs for token in _biased_tokens(key, tokenizer)]
    check_size("logit_bias", len(biases), most, "tokens")
    return Ranked.of([*default.logit_bias, *biases])


def _object_pairs(value: dict[str, object]) -> Iterator[tuple[int | str, float]]:
    for key, bias in value.items():
        yield _token_or_text(key), _bias(bias)


def _token_or_text(key: str) -> int | str:
    text = key.strip()
    if not _NUMBER.fullmatch(text):
        return key
    token = whole_number(text)
    if token is None:
        raise InvalidRequest(f"Field 'logit_bias': token id {quoted(text)} is not in the vocabulary")
    return token


def _array_pairs(value: list[object]) -> Iterator[tuple[int | str, float]]:
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise InvalidRequest("Field 'logit_bias': each entry must be a pair of a token id or text and a number")
        key = pair[0]
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise wrong_type("logit_bias", "token id or text", key)
        yield key, _bias(pair[1])


def _bias(value: object) -> float:
    if value is False:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type("logit_bias", "number or false", value)
    return float(value)


def _biased_tokens(key: int | str, tokenizer: Tokenizer) -> list[Token]:
    if isinstance(key, str):
        return tokenizer.tokenize(key, add_special=False, parse_special=False)
    if not 0 <= key < tokenizer.n_vocab:
        raise InvalidRequest(f"Field 'logit_bias': token id {key} is not in the vocabulary")
    return [key]
