"""Owns the answer key: what a request would get alone, computed without any cache, as a list of words that it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from corral.ids import AdapterSet, Token
from corral.ports import Sampler
from corral.sim.attend import chain, code_of, scramble_one, view, weigh_states
from corral.sim.marks import Words, moved, seen_by
from corral.sim.model import SimModel, SimSpec
from corral.sim.shape import Kind
from corral.tasks import Sampling

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Shifting:
    """Context shift of a row of ``n_ctx`` tokens: the first ``n_keep`` stay, ``n_discard`` go (0: half of the rest)."""

    n_ctx: int
    n_keep: int = 0
    n_discard: int = 0


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
    shifting: Shifting | None = None,
) -> tuple[Token, ...]:
    """Up to ``n_predict`` tokens after ``prompt``, the end-of-generation token included where one comes.

    ``sampler`` replaces the model's own one for ``sampling`` and ``seed``. ``adapters`` act from token ``n_base`` on.
    Without ``shifting``, which only ATTENTION knows, the context is endless.
    """
    model = model or SimModel()
    draw = sampler or model.new_sampler(sampling, seed, model.info.n_ctx_train)
    draw.feed(prompt)
    code, said = code_of(adapters), list[Token]()
    words, fresh = np.empty(0, np.int32), [*prompt[:n_base], *(token | code for token in prompt[n_base:])]
    while len(said) < n_predict:
        if shifting and len(words) + 1 >= shifting.n_ctx:
            words = _shifted(words, shifting)
        words = np.concatenate([words, seen_by(np.array(fresh, np.int32), len(words), words)])
        said.append(draw.pick(model.head.logits(sight(words.tolist(), model.spec))).token)
        fresh = [said[-1] | code]
        if said[-1] in model.info.eog_tokens:
            break
    return tuple(said)


def _shifted(words: Words, how: Shifting) -> Words:
    n_left = len(words) - how.n_keep
    n_discard = min(how.n_discard or n_left // 2, n_left - 1)
    return np.concatenate([words[: how.n_keep], moved(words[how.n_keep + n_discard :], n_discard)])


def sight(tokens: Sequence[Token], spec: SimSpec) -> int:
    """What the last of ``tokens`` sees where nothing was lost."""
    if spec.kind is Kind.ATTENTION:
        return _all(tokens, spec.seed)
    states = list(accumulate(tokens, chain, initial=scramble_one(spec.seed)))[1:]
    if spec.kind is Kind.RECURRENT:
        return states[-1]
    seen = _all(tokens, spec.seed) + (states[-1] if spec.kind.keeps_states else 0)
    if not spec.kind.has_window:
        return seen % (1 << 64)
    first = max(0, len(tokens) - spec.window)
    recent = weigh_states(np.array(states[first:], np.uint64), np.arange(first, len(tokens), dtype=np.int32))
    return (seen + recent) % (1 << 64)


def _all(tokens: Sequence[Token], seed: int) -> int:
    return view(np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32), seed)
