"""Owns the answer key: what a request would get alone and cold, computed without any cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from corral.ids import AdapterSet, Token
from corral.ports import Sampler
from corral.sim.attend import chain, code_of, scramble_one, view, weigh_states
from corral.sim.model import SimModel, SimSpec
from corral.sim.shape import Kind
from corral.tasks import Sampling

GREEDY = Sampling(temperature=0.0)


def solo(
    prompt: Sequence[Token],
    n_predict: int,
    *,
    model: SimModel | None = None,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    sampler: Sampler | None = None,
    adapters: AdapterSet = (),
    n_base: int = 0,
) -> tuple[Token, ...]:
    """Up to ``n_predict`` tokens after ``prompt``, the end-of-generation token included where one comes.

    ``sampler`` replaces the model's own one for ``sampling`` and ``seed``. ``adapters`` act from token ``n_base`` on.
    """
    model = model or SimModel()
    draw = sampler or model.new_sampler(sampling, seed, model.info.n_ctx_train)
    draw.feed(prompt)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n_predict:
        words = [*tokens[:n_base], *(token | code_of(adapters) for token in tokens[n_base:])]
        tokens.append(draw.pick(model.head.logits(sight(words, model.spec))).token)
        if tokens[-1] in model.info.eog_tokens:
            break
    return tuple(tokens[len(prompt) :])


def sight(tokens: Sequence[Token], spec: SimSpec) -> int:
    """What the last of ``tokens`` sees where nothing was lost."""
    if spec.kind is Kind.ATTENTION:
        return _all(tokens, spec.seed)
    states = list(accumulate(tokens, chain, initial=scramble_one(spec.seed)))[1:]
    if spec.kind is Kind.RECURRENT:
        return states[-1]
    if spec.kind is Kind.HYBRID:
        return (_all(tokens, spec.seed) + states[-1]) % (1 << 64)
    first = max(0, len(tokens) - spec.window)
    recent = weigh_states(np.array(states[first:], np.uint64), np.arange(first, len(tokens), dtype=np.int32))
    return (_all(tokens, spec.seed) + recent) % (1 << 64)


def _all(tokens: Sequence[Token], seed: int) -> int:
    return view(np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32), seed)
