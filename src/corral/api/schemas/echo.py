"""What a text completion shows besides its text: the prompt at the head of the reply, log-probabilities of both."""

from __future__ import annotations

from dataclasses import replace

from corral.api.schemas.fields import Fields
from corral.api.schemas.params import Params
from corral.api.schemas.prompt import Prompt
from corral.ports import Tokenizer

MAX_TOP = 100
"""Likeliest tokens at every place of a prompt: with more a reply would take gigabytes."""


def read_shown(fields: Fields, prompts: list[Prompt], params: Params, tokenizer: Tokenizer) -> Params:
    """``params`` with what ``echo`` and ``logprobs`` ask for. Raises InvalidRequest.

    ``logprobs`` 0 asks for those of the tokens themselves, as ``n_probs`` does not.
    """
    logprobs = fields.value("logprobs")
    is_asked = logprobs is not None and logprobs is not False
    if not fields.boolean("echo"):
        is_bare = is_asked and fields.value("n_probs") is None and params.sampling.n_probs == 0
        return _with_probs(params, 0) if is_bare else params
    params = replace(params, echoes=_texts(fields.value("prompt"), prompts, tokenizer))
    if not is_asked:
        return params
    n_top = 1 if logprobs is True else fields.integer("logprobs", default=0, low=0, high=MAX_TOP)
    params = _with_probs(params, n_top)
    return replace(params, n_prompt_probs=n_top, sampling=replace(params.sampling, post_sampling_probs=False))


def _with_probs(params: Params, n_top: int) -> Params:
    return replace(params, n_top=n_top, sampling=replace(params.sampling, n_probs=max(n_top, 1)))


def _texts(value: object, prompts: list[Prompt], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The prompts as they were given, or as their tokens print."""
    given = value if isinstance(value, list) and len(value) == len(prompts) else [value] * len(prompts)
    return tuple(
        text if isinstance(text, str) else tokenizer.detokenize(prompt, special=True)
        for text, prompt in zip(given, prompts, strict=True)
    )
