"""Draws the next token of every row of a step: the common settings together in numpy, the rest by the model's chain."""

from __future__ import annotations

import math
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

import numpy as np

from corral.engine.probs import (
    Candidates,
    Filter,
    Floats,
    Ints,
    Kept,
    candidates,
    candidates_of_all,
    draw,
    draw_listed,
    keep_of_all,
    keep_wide,
    table,
    top_kept,
    top_logprobs,
)
from corral.errors import CorralError, InvalidRequest
from corral.ids import Token
from corral.ports import Model, Picked, Sampler
from corral.tasks import DEFAULT_SAMPLERS, Sampling

T = TypeVar("T")

RANDOM_SEED = 0xFFFFFFFF
"""libllama takes this seed as "draw one"; a task's seed is below it, so that it can be repeated."""

FLOAT32_MAX = 3.4028234e38
INT32_MAX = 0x7FFFFFFF

N_LISTED, N_LISTED_ROWS = 128, 6
"""Up to so many candidates in so many rows a loop is faster than numpy."""

N_NARROW = 1024
"""Rows that keep more candidates are filtered one by one, so as not to widen the table of the others."""


class RowSampler:
    """One task's way to draw: settings, seed, random numbers and history. Its draws depend on nothing else.

    Made by ``new_row_sampler``; ``chain`` draws what numpy does not. ``error`` is set once the chain found no token to
    draw, as when a grammar and bans leave none: the task has failed, and ``end`` was picked in place of a token.
    """

    __slots__ = ("chain", "edits", "end", "error", "filter", "random", "sampling", "seed")

    def __init__(self, sampling: Sampling, seed: int, edits: Edits, chain: Sampler | None, end: Token = 0) -> None:
        self.error: CorralError | None = None
        self.end = end
        self.sampling = sampling
        self.seed = seed
        self.edits = edits
        self.chain = chain
        self.filter = read_filter(sampling)
        self.random = Random(seed)

    def close(self) -> None:
        """Free the chain, if there is one."""
        if self.chain is not None:
            self.chain.close()
            self.chain = None


def new_row_sampler(sampling: Sampling, model: Model, eog: frozenset[Token], prompt: Sequence[Token]) -> RowSampler:
    """A sampler whose history is ``prompt``. ``eog`` is what ``ignore_eos`` bans.

    Raises InvalidRequest for penalties that are not numbers to divide by, tokens outside the vocabulary, bans of every
    token, and what the chain refuses.
    """
    if sampling.constraint is not None:
        raise InvalidRequest("structured output is not supported yet; use 'grammar'")
    _check(sampling, model.info.n_vocab)
    banned = model.info.suppressed_tokens | (eog if sampling.ignore_eos else frozenset())
    _check_bans(sampling, banned, model.info.n_vocab)
    seed = used_seed(sampling.seed)
    if is_common(sampling):
        return RowSampler(sampling, seed, Edits(sampling, banned, prompt, model.info.n_ctx_train), None)
    chain = model.new_sampler(sampling, seed, model.info.n_ctx_train)
    chain.feed(prompt)
    return RowSampler(sampling, seed, Edits(Sampling(), (), (), 0), chain, min(eog, default=0))


def _check(sampling: Sampling, n_vocab: int) -> None:
    if not 1.0 / FLOAT32_MAX <= sampling.repeat_penalty <= FLOAT32_MAX:
        raise InvalidRequest("Failed to initialize samplers: repeat_penalty must be a finite number above 0")
    if not all(abs(p) <= FLOAT32_MAX for p in (sampling.frequency_penalty, sampling.presence_penalty)):
        raise InvalidRequest("Failed to initialize samplers: penalties must be finite numbers")
    if not all(abs(n) <= INT32_MAX for n in (sampling.top_k, sampling.min_keep, sampling.repeat_last_n)):
        raise InvalidRequest("Failed to initialize samplers: counts must be 32-bit numbers")
    for token, _ in sampling.logit_bias:
        if not 0 <= token < n_vocab:
            raise InvalidRequest(f"logit_bias: token {token} is not in the vocabulary (0 to {n_vocab - 1})")


def _check_bans(sampling: Sampling, banned: frozenset[Token], n_vocab: int) -> None:
    if len(sampling.logit_bias) + len(banned) < n_vocab:
        return
    bans = {token for token, bias in sampling.logit_bias if bias < -FLOAT32_MAX}
    if len(bans | banned) >= n_vocab:
        also = " and ignore_eos" if sampling.ignore_eos else ""
        raise InvalidRequest(f"logit_bias{also}: all {n_vocab} tokens are banned; leave at least one")


def used_seed(asked: int | None) -> int:
    """The seed of a task's draws; one is drawn for None and for libllama's number for it."""
    seed = RANDOM_SEED if asked is None else asked & 0xFFFFFFFF
    return secrets.randbelow(RANDOM_SEED) if seed == RANDOM_SEED else seed


def is_common(sampling: Sampling) -> bool:
    """The settings are among those that numpy draws: llama-server's order, and no sampler that needs the chain."""
    order = iter(DEFAULT_SAMPLERS)
    if sampling.grammar or sampling.mirostat or not all(name in order for name in sampling.samplers):
        return False
    uncommon = {
        "dry": sampling.dry_multiplier != 0.0,
        "top_n_sigma": sampling.top_n_sigma > 0.0,
        "typ_p": sampling.typical_p < 1.0,
        "xtc": sampling.xtc_probability > 0.0,
        "temperature": sampling.dynatemp_range > 0.0,
    }
    return not any(uncommon.get(name, False) for name in sampling.samplers)


def read_filter(sampling: Sampling) -> Filter | None:
    """What the listed samplers keep; None: only the likeliest token."""
    names = sampling.samplers
    temperature = sampling.temperature if "temperature" in names else 1.0
    if temperature <= 0.0:
        return None
    return Filter(
        top_k=sampling.top_k if "top_k" in names else 0,
        top_p=sampling.top_p if "top_p" in names else 1.0,
        min_p=sampling.min_p if "min_p" in names else 0.0,
        temperature=min(max(temperature, 1e-30), 1e30),
        min_keep=sampling.min_keep,
    )


class Edits:
    """What a task changes in its rows before filtering: biases and bans, then penalties for its last tokens.

    A negative ``repeat_last_n`` means ``n_ctx_train``.
    """

    __slots__ = (
        "_bias",
        "_biased",
        "_counts",
        "_frequency",
        "_last",
        "_only_bans",
        "_presence",
        "_repeat",
        "_touched",
    )

    def __init__(self, sampling: Sampling, banned: Iterable[Token], prompt: Sequence[Token], n_ctx_train: int) -> None:
        biases: dict[Token, float] = {}
        for token, bias in (*sampling.logit_bias, *((t, -math.inf) for t in banned)):
            biases[token] = biases.get(token, 0.0) + bias
        self._touched = frozenset(biases)
        self._only_bans = all(bias <= 0.0 for bias in biases.values())
        self._biased = np.array(list(biases.keys()), np.intp)
        with np.errstate(over="ignore"):
            self._bias = np.minimum(np.array(list(biases.values())).astype(np.float32), np.float32(FLOAT32_MAX))
        self._repeat = np.float32(sampling.repeat_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        n_last = n_ctx_train if sampling.repeat_last_n < 0 else sampling.repeat_last_n
        self._last: deque[Token] = deque(maxlen=n_last if _is_penalised(sampling) else 0)
        self._last.extend(prompt[max(0, len(prompt) - n_last) :])
        self._counts = Counter(self._last)

    @property
    def only_bans(self) -> bool:
        """Whether it only makes some tokens less likely, whatever came before."""
        return self._only_bans and not self._counts

    def touches(self, token: Token) -> bool:
        """Whether a bias is on the token."""
        return token in self._touched

    def apply(self, row: Floats) -> list[tuple[Ints, Floats]]:
        """Change the row; returns what ``undo`` needs. A copy of the row would cost more than the edits."""
        undo: list[tuple[Ints, Floats]] = []
        if len(self._biased):
            undo.append((self._biased, row[self._biased]))
            row[self._biased] += self._bias
        if self._counts:
            undo.append(self._penalise(row))
        return undo

    def reading(self, row: Floats, read: Callable[[Floats], T]) -> T:
        """What ``read`` makes of the edited row, which is as before afterwards."""
        edits = self.apply(row)
        try:
            return read(row)
        finally:
            undo(row, edits)

    def _penalise(self, row: Floats) -> tuple[Ints, Floats]:
        """Returns the tokens and their logits before."""
        tokens = np.fromiter(self._counts.keys(), np.intp, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        before = row[tokens]
        logits = np.where(before <= 0.0, before * self._repeat, before / self._repeat)
        row[tokens] = logits - (counts * self._frequency + self._presence)
        return tokens, before

    def accept(self, token: Token) -> None:
        """Add a token to the history, which forgets the oldest."""
        if not self._last.maxlen:
            return
        if len(self._last) == self._last.maxlen:
            oldest = self._last[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._last.append(token)
        self._counts[token] += 1


def undo(row: Floats, edits: list[tuple[Ints, Floats]]) -> None:
    """Make the row what it was before ``Edits.apply``."""
    for tokens, logits in reversed(edits):
        row[tokens] = logits


def _is_penalised(sampling: Sampling) -> bool:
    penalties = (sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    return "penalties" in sampling.samplers and penalties != (1.0, 0.0, 0.0)


def pick_rows(logits: Floats, rows: Sequence[tuple[int, RowSampler]]) -> list[Picked]:
    """Draw a token for each (row of ``logits``, sampler), and add it to the sampler's history.

    ``logits`` has shape (n_rows, n_vocab), must be writable and is the same afterwards; several samplers may share a
    row. A task whose chain fails does not disturb the others: see ``RowSampler.error``.
    """
    with np.errstate(all="ignore"):
        picked = _pick_all(logits, rows)
    for at, (_, sampler) in enumerate(rows):
        sampler.edits.accept(picked[at].token)
    return [picked[at] for at in range(len(rows))]


def _pick_all(logits: Floats, rows: Sequence[tuple[int, RowSampler]]) -> dict[int, Picked]:
    picked: dict[int, Picked] = {}
    narrow: list[_Draw] = []
    for at, (i, sampler) in enumerate(rows):
        row, f = logits[i], sampler.filter
        if sampler.chain is not None:
            picked[at] = _chained(sampler, sampler.chain, row)
        elif f is None:
            picked[at] = _greedy(row, sampler)
        elif 0 < f.top_k <= N_NARROW:
            narrow.append(_Draw(at, i, row, sampler, f))
        else:
            picked |= _draw([_Draw(at, i, row, sampler, f)], sampler.edits.reading(row, partial(keep_wide, f=f)))
    return picked | _draw_narrow(logits, narrow) if narrow else picked


def _draw_narrow(logits: Floats, draws: Sequence[_Draw]) -> dict[int, Picked]:
    """Draws with a small top-k: in plain Python where they are few and nobody asks for probabilities."""
    found = _find(logits, draws)
    is_small = len(draws) <= N_LISTED_ROWS and all(d.filter.top_k <= N_LISTED for d in draws)
    if not is_small or any(d.sampler.sampling.n_probs > 0 for d in draws):
        return _draw(draws, keep_of_all(found, [d.filter for d in draws]))
    picked = {}
    for d, tokens, values in zip(draws, found[0].tolist(), found[1].tolist(), strict=True):
        picked[d.at] = Picked(tokens[draw_listed(values, d.filter, d.sampler.random.random())])
    return picked


def _find(logits: Floats, draws: Sequence[_Draw]) -> Candidates:
    """The candidates of all draws as a table: found together if rows lie side by side and ask for the same number."""
    filters = [d.filter for d in draws]
    k, first, n = filters[0].top_k, draws[0].i, len(draws)
    if n > 1 and all(f.top_k == k for f in filters) and [d.i for d in draws] == list(range(first, first + n)):
        edits = [d.sampler.edits.apply(d.raw) for d in draws]
        try:
            return candidates_of_all(logits[first : first + n], k)
        finally:
            for d, edit in zip(draws, edits, strict=True):
                undo(d.raw, edit)
    return table([d.sampler.edits.reading(d.raw, partial(candidates, k=d.filter.top_k)) for d in draws])


def _chained(sampler: RowSampler, chain: Sampler, row: Floats) -> Picked:
    try:
        return chain.pick(row)
    except CorralError as error:  # it is this task's alone: the others of the step have their tokens
        sampler.error = error
        return Picked(sampler.end)


@dataclass(frozen=True, slots=True)
class _Draw:
    """A draw to be made: the ``at``-th asked for, from row ``i``, which is ``raw``, with the sampler's edits."""

    at: int
    i: int
    raw: Floats
    sampler: RowSampler
    filter: Filter


def _draw(draws: Sequence[_Draw], kept: Kept) -> dict[int, Picked]:
    columns = draw(kept, [d.sampler.random.random() for d in draws])
    tokens = kept.tokens[np.arange(len(draws)), columns].tolist()
    picked = {}
    for i, (d, token) in enumerate(zip(draws, tokens, strict=True)):
        n = d.sampler.sampling.n_probs
        if n <= 0:
            picked[d.at] = Picked(token)
        elif d.sampler.sampling.post_sampling_probs:
            picked[d.at] = Picked(token, *top_kept(kept, i, int(columns[i]), n))
        else:
            picked[d.at] = Picked(token, *top_logprobs(d.raw, token, n))
    return picked


def _greedy(raw: Floats, sampler: RowSampler) -> Picked:
    token = int(raw.argmax())
    if not sampler.edits.only_bans or sampler.edits.touches(token):
        token = int(sampler.edits.reading(raw, np.argmax))
    n = sampler.sampling.n_probs
    if n <= 0:
        return Picked(token)
    if sampler.sampling.post_sampling_probs:
        return Picked(token, 1.0, ((token, 1.0),))
    return Picked(token, *top_logprobs(raw, token, n))
