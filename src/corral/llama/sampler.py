"""Owns libllama's chain of samplers for one task: biases, filters, the draw, and the grammar beside it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import llama_cpp.llama_cpp as lib
import numpy as np

from corral.errors import CorralError, InvalidRequest, ServerError
from corral.events import Ranked
from corral.ids import Token
from corral.llama import library
from corral.llama.stock import Dry, Stock, refused
from corral.ports import ModelInfo, Picked
from corral.tasks import Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corral.ports import Logits, Mask

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_BIAS = np.dtype([("token", np.int32), ("bias", np.float32)])
_INT_MAX = 2**31 - 1
_RANDOM_SEED = 0xFFFFFFFF  # libllama reads this one as "choose yourself"
_MIROSTAT_M = 100
_MIN_HISTORY = 65_536


class SamplerChain:
    """Implements ``ports.Sampler`` with libllama's samplers in the order of ``Sampling.samplers``."""

    def __init__(
        self, vocab: Any, info: ModelInfo, stock: Stock, sampling: Sampling, seed: int, n_ctx_train: int
    ) -> None:
        """``vocab`` must outlive this. Raises InvalidRequest where llama-server does."""
        _check(sampling)
        self._chain: Any = None
        self._grammar = stock.grammar(sampling.grammar) if sampling.grammar else None
        self._candidates = Candidates(info.n_vocab)
        self._sampling = sampling
        self._n_history = _n_history(sampling, n_ctx_train)
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_params(no_perf=True))
        for sampler in _links(vocab, info, stock, sampling, min(seed & _RANDOM_SEED, _RANDOM_SEED - 1), n_ctx_train):
            lib.llama_sampler_chain_add(self._chain, sampler)

    def pick(self, logits: Logits, allowed: Mask | None = None) -> Picked:
        """Raises InvalidRequest if grammar and bans leave no token, ServerError if the logits are not numbers."""
        if not self._chain:
            raise ValueError("the sampler is closed")
        candidates = self._candidates
        token = self._draw(logits, allowed)
        if self._grammar and not candidates.allowed(self._grammar, token):
            token = self._draw(logits, allowed, first=self._grammar)
            if not candidates.allowed(self._grammar, token):
                raise _nothing_left(logits, self._sampling)
        picked = self._picked(logits, token)
        self._accept(token)
        return picked

    def take(self, token: Token) -> bool:
        if self._grammar and not self._candidates.allowed(self._grammar, token):
            return False
        self._accept(token)
        return True

    def _accept(self, token: Token) -> None:
        lib.llama_sampler_accept(self._chain, token)
        if self._grammar:
            lib.llama_sampler_accept(self._grammar, token)

    def feed(self, tokens: Sequence[Token]) -> None:
        for token in tokens[-self._n_history :] if self._n_history else ():
            lib.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        """Free the samplers. May be called twice."""
        for sampler in (self._chain, self._grammar):
            if sampler:
                lib.llama_sampler_free(sampler)
        self._chain = self._grammar = None

    def _draw(self, logits: Logits, allowed: Mask | None, first: Any = None) -> Token:
        candidates = self._candidates
        candidates.fill(logits, allowed)
        if first:
            candidates.apply(first)
        candidates.apply(self._chain)
        return candidates.selected()

    def _picked(self, logits: Logits, token: Token) -> Picked:
        n = self._sampling.n_probs
        if n <= 0:
            return Picked(token)
        if self._sampling.post_sampling_probs:
            return self._candidates.picked(token, n)
        return log_probabilities(logits, token, n)


class Candidates:
    """libllama's array of (id, logit, p) over the vocabulary, kept in numpy and reused."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._all = np.empty(n_vocab, _CANDIDATE)
        self._one = np.empty(1, _CANDIDATE)
        self._raw = lib.llama_token_data_array()
        self._raw_ref = ctypes.byref(self._raw)

    def fill(self, logits: Logits, allowed: Mask | None = None) -> None:
        ids = self._ids if allowed is None else self._ids[allowed]
        filled = self._all[: len(ids)]
        filled["id"] = ids
        filled["logit"] = logits if allowed is None else logits[allowed]
        filled["p"] = 0.0
        self._point_to(self._raw, filled)

    def apply(self, sampler: Any) -> None:
        lib.llama_sampler_apply(sampler, self._raw_ref)

    def selected(self) -> Token:
        """The drawn token. Raises ServerError if nothing could be drawn (logits that are not numbers)."""
        index = self._raw.selected
        if not 0 <= index < self._raw.size:
            raise ServerError("no token could be drawn from these logits")
        return int(self._raw.data[index].id)

    def allowed(self, grammar: Any, token: Token) -> bool:
        """Whether the grammar can go on with this token. Leaves the other candidates alone."""
        self._one[0] = (token, 1.0, 0.0)
        raw = lib.llama_token_data_array()
        self._point_to(raw, self._one)
        lib.llama_sampler_apply(grammar, ctypes.byref(raw))
        return bool(np.isfinite(self._one["logit"][0]))

    def picked(self, token: Token, n: int) -> Picked:
        """Probabilities that the chain left: of ``token`` and of the ``n`` most likely above zero."""
        left = self._left()
        order = np.argsort(-left["p"], kind="stable")[:n]
        top = left[order][left["p"][order] > 0]
        return Picked(token, float(left["p"][self._raw.selected]), Ranked(top["id"].tolist(), top["p"].tolist()))

    def _left(self) -> NDArray[Any]:
        n_bytes = self._raw.size * _CANDIDATE.itemsize
        memory = (ctypes.c_char * n_bytes).from_address(library.address(self._raw.data))
        return np.frombuffer(memory, _CANDIDATE)

    @staticmethod
    def _point_to(raw: Any, array: NDArray[Any]) -> None:
        raw.data = ctypes.cast(array.ctypes.data, lib.llama_token_data_p)
        raw.size, raw.selected, raw.sorted = len(array), -1, False


def log_probabilities(logits: Logits, token: Token, n: int) -> Picked:
    """Natural log-probabilities over the whole vocabulary: of ``token`` and of the ``n`` most likely."""
    n = min(n, len(logits))
    largest = float(logits.max())
    if not math.isfinite(largest):
        raise ServerError("the model's logits are not numbers")
    shift = largest + math.log(float(np.exp(logits - largest).sum(dtype=np.float64)))
    top = np.argpartition(-logits, n - 1)[:n]
    top = top[np.argsort(-logits[top], kind="stable")]
    return Picked(token, float(logits[token]) - shift, Ranked(top.tolist(), (x - shift for x in logits[top].tolist())))


def _nothing_left(logits: Logits, sampling: Sampling) -> CorralError:
    if not np.isfinite(logits).any():
        return ServerError("the model's logits are not numbers")
    bans = [name for name in ("logit_bias", "ignore_eos") if getattr(sampling, name)]
    if bans:
        return InvalidRequest(f"no token is left: all that the grammar allows next is banned ({' and '.join(bans)})")
    return InvalidRequest("no token is left: none of the vocabulary is what the grammar wants next")


def _check(sampling: Sampling) -> None:
    repeat = sampling.repeat_penalty
    if not (math.isfinite(repeat) and repeat > 0 and math.isfinite(1 / repeat)):
        raise refused("penalty_repeat must be finite and greater than 0")
    if not math.isfinite(sampling.frequency_penalty):
        raise refused("penalty_freq must be finite")
    if not math.isfinite(sampling.presence_penalty):
        raise refused("penalty_present must be finite")


def _n_history(sampling: Sampling, n_ctx_train: int) -> int:
    """How many past tokens the penalties look at."""
    penalties = sampling.repeat_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    n_penalties = _last_n(sampling.repeat_last_n, n_ctx_train) if penalties else 0
    n_dry = _last_n(sampling.dry_penalty_last_n, n_ctx_train) if sampling.dry_multiplier != 0 else 0
    return max(n_penalties, n_dry)


def _last_n(n: int, n_ctx_train: int) -> int:
    """libllama takes memory for all of them at once: not for more than there can be."""
    return n_ctx_train if n < 0 else min(n, max(n_ctx_train, _MIN_HISTORY))


def _links(vocab: Any, info: ModelInfo, stock: Stock, sampling: Sampling, seed: int, n_ctx_train: int) -> Iterable[Any]:
    biases = _biases(vocab, info, sampling)
    if len(biases):
        array = ctypes.cast(biases.ctypes.data, ctypes.POINTER(lib.llama_logit_bias))
        yield lib.llama_sampler_init_logit_bias(info.n_vocab, len(biases), array)
    if sampling.mirostat:
        yield lib.llama_sampler_init_temp(sampling.temperature)
        yield _mirostat(info, sampling, seed)
        return
    makers = _makers(vocab, info, stock, sampling, seed, n_ctx_train)
    yield from (makers[name]() for name in sampling.samplers if name in makers)
    if "adaptive_p" in sampling.samplers:
        yield lib.llama_sampler_init_adaptive_p(sampling.adaptive_target, sampling.adaptive_decay, seed)
    else:
        yield lib.llama_sampler_init_dist(seed)


def _biases(vocab: Any, info: ModelInfo, sampling: Sampling) -> NDArray[Any]:
    n_suppressed = ctypes.c_int32(0)
    suppressed = lib.llama_vocab_get_suppress_tokens(vocab, ctypes.byref(n_suppressed))
    banned = [suppressed[i] for i in range(n_suppressed.value)]
    if sampling.ignore_eos:
        banned += info.eog_tokens
    asked = Ranked.of(sampling.logit_bias)
    biases = np.empty(len(asked) + len(banned), _BIAS)
    biases["token"] = [*asked.tokens, *banned]
    with np.errstate(over="ignore"):
        biases["bias"] = [*asked.values, *(-math.inf for _ in banned)]
    return biases[(biases["token"] >= 0) & (biases["token"] < info.n_vocab)]


def _mirostat(info: ModelInfo, sampling: Sampling, seed: int) -> Any:
    tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
    if sampling.mirostat == 1:
        return lib.llama_sampler_init_mirostat(info.n_vocab, seed, tau, eta, _MIROSTAT_M)
    return lib.llama_sampler_init_mirostat_v2(seed, tau, eta)


def _makers(
    vocab: Any, info: ModelInfo, stock: Stock, s: Sampling, seed: int, n_ctx_train: int
) -> dict[str, Callable[[], Any]]:
    """A maker for each name that ``Sampling.samplers`` may list; what is unknown or does nothing is skipped."""
    dry = {"dry": lambda: stock.dry(dry_settings(s, n_ctx_train))} if uses_dry(s) else {}
    keep = max(s.min_keep, 0)
    last_n = _last_n(s.repeat_last_n, n_ctx_train)
    return {
        **dry,
        "penalties": lambda: lib.llama_sampler_init_penalties(
            info.n_vocab, last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
        ),
        "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        "top_k": lambda: lib.llama_sampler_init_top_k(min(s.top_k, _INT_MAX)),
        "typ_p": lambda: lib.llama_sampler_init_typical(s.typical_p, keep),
        "top_p": lambda: lib.llama_sampler_init_top_p(s.top_p, keep),
        "min_p": lambda: lib.llama_sampler_init_min_p(s.min_p, keep),
        "xtc": lambda: lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, keep, seed),
        "temperature": lambda: lib.llama_sampler_init_temp_ext(s.temperature, s.dynatemp_range, s.dynatemp_exponent),
        "infill": lambda: lib.llama_sampler_init_infill(vocab),
    }


def uses_dry(sampling: Sampling) -> bool:
    """Whether a chain of these settings has a DRY sampler that does something."""
    return sampling.dry_multiplier != 0 and not sampling.mirostat and "dry" in sampling.samplers


def dry_settings(sampling: Sampling, n_ctx_train: int) -> Dry:
    return Dry(
        sampling.dry_multiplier,
        sampling.dry_base,
        min(sampling.dry_allowed_length, _INT_MAX),
        _last_n(sampling.dry_penalty_last_n, n_ctx_train),
        sampling.dry_sequence_breakers,
    )
