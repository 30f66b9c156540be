"""``echo`` of a text completion: the prompt at the head of the reply, and its log-probabilities."""

from __future__ import annotations

from dataclasses import replace

from corral.api.schemas.fields import Fields
from corral.api.schemas.params import Params
from corral.api.schemas.prompt import Prompt
from corral.errors import InvalidRequest
from corral.ports import Tokenizer

MAX_TOP = 100
"""Likeliest tokens at every place of a prompt: with more a reply would take gigabytes."""


def read_echo(fields: Fields, prompts: list[Prompt], params: Params, tokenizer: Tokenizer) -> Params:
    """``params`` with what ``echo`` asks for. Raises InvalidRequest."""
    if not fields.boolean("echo"):
        return params
    params = replace(params, echoes=_texts(fields.value("prompt"), prompts, tokenizer))
    logprobs = fields.value("logprobs")
    if logprobs is None or logprobs is False:
        return params
    n_top = 1 if logprobs is True else fields.integer("logprobs", default=0, low=0, high=MAX_TOP)
    if params.stream:
        raise InvalidRequest(
            "Field 'stream': log-probabilities of the prompt ('echo' with 'logprobs') cannot be streamed"
        )
    sampling = replace(params.sampling, n_probs=max(n_top, 1), post_sampling_probs=False)
    return replace(params, n_prompt_probs=n_top, sampling=sampling)


def _texts(value: object, prompts: list[Prompt], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The prompts as they were given, or as their tokens print."""
    given = value if isinstance(value, list) and len(value) == len(prompts) else [value] * len(prompts)
    return tuple(
        text if isinstance(text, str) else tokenizer.detokenize(prompt, special=True)
        for text, prompt in zip(given, prompts, strict=True)
    )
