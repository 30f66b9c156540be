"""Owns the answer key: what a request would get alone and cold, computed without any cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corral.ids import AdapterSet, Token
from corral.ports import Sampler
from corral.sim.attend import code_of, view
from corral.sim.model import SimModel
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
        cells, positions = np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32)
        cells[n_base:] |= code_of(adapters)
        seen = view(cells, positions, model.spec.seed)
        tokens.append(draw.pick(model.head.logits(seen)).token)
        if tokens[-1] in model.info.eog_tokens:
            break
    return tuple(tokens[len(prompt) :])
