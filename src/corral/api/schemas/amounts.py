"""What one request may ask for over all its completions: their number, and the probabilities of their tokens."""

from __future__ import annotations

from corral.api.schemas.params import Params
from corral.config import MIB
from corral.errors import InvalidRequest
from corral.runtime import Runtime

MAX_SETTINGS_BYTES = 64 * MIB
BYTES_PER_BIAS = 30
N_PROBS_FREE = 100
MAX_PROBS = 1_000_000
"""Probabilities in a reply, where more than ``N_PROBS_FREE`` are asked for with each token: about 100 MB of JSON."""


def check_n_tasks(n_prompts: int, n: int, runtime: Runtime) -> None:
    """Raises InvalidRequest for more completions than could ever be there, with ``n`` for each prompt."""
    n_tasks, n_most = n_prompts * n, runtime.max_queue + runtime.n_slots
    if n_tasks > n_most:
        raise InvalidRequest(
            f"Field 'prompt': {n_prompts} prompts with {n} completions each are {n_tasks}; "
            f"at most {n_most} can be there at once (slots and --max-queue)"
        )


def check_settings(n_tasks: int, params: Params) -> None:
    """Raises InvalidRequest for long grammars, biases and the like in many completions: each keeps and tells them."""
    sampling, limits = params.sampling, params.limits
    constraint = sampling.constraint
    n_chars = (len(constraint.text) if constraint else 0) + sum(map(len, limits.stop))
    n_bytes = n_chars + BYTES_PER_BIAS * len(sampling.logit_bias) + sampling.held_bytes
    if n_tasks > 1 and n_tasks * n_bytes > MAX_SETTINGS_BYTES:
        raise InvalidRequest(
            f"{n_tasks} completions take {n_bytes} bytes each for grammar, schema, DRY's breakers, stop strings and "
            f"logit_bias, {n_tasks * n_bytes} in all; at most {MAX_SETTINGS_BYTES} are possible: ask for fewer at once"
        )


def check_n_probs(n_tasks: int, params: Params, n_ctx: int) -> None:
    """Raises InvalidRequest for more probabilities than a reply can tell."""
    n_probs, n_predict = params.sampling.n_probs, params.limits.n_predict
    n_tokens = min(n_predict, n_ctx) if n_predict >= 0 else n_ctx
    n_all = n_probs * n_tokens * n_tasks
    if n_probs > N_PROBS_FREE and n_all > MAX_PROBS:
        raise InvalidRequest(
            f"Field 'n_probs': {n_probs} for each of up to {n_tokens} tokens of {n_tasks} completions are {n_all} "
            f"probabilities; with more than {N_PROBS_FREE} for a token at most {MAX_PROBS} are told: ask for fewer, or "
            "for fewer tokens (n_predict)"
        )
