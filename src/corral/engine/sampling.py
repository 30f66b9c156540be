"""Draws the next token of every row of a step: the common settings together in numpy, the rest by the model's chain."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

import numpy as np

from corral.engine.constrained import Constrained, Phase
from corral.engine.edits import FLOAT32_MAX, Edits, undo
from corral.engine.find import find
from corral.engine.probs import (
    Candidates,
    Filter,
    Floats,
    Kept,
    candidates,
    draw,
    draw_listed,
    keep_of_all,
    keep_wide,
    table,
    top_kept,
    top_logprobs,
)
from corral.engine.thoughts import Thoughts
from corral.errors import CorralError, InvalidRequest
from corral.events import Ranked
from corral.guidance.token_set import TokenBits
from corral.ids import Token
from corral.ports import Model, Picked, Sampler, TokenSet
from corral.tasks import DEFAULT_SAMPLERS, Sampling

T = TypeVar("T")

RANDOM_SEED = 0xFFFFFFFF
"""libllama takes this seed as "draw one"; a task's seed is below it, so that it can be repeated."""

INT32_MAX = 0x7FFFFFFF

N_LISTED, N_LISTED_ROWS = 128, 6
"""Up to so many candidates in so many rows a loop is faster than numpy."""

N_NARROW = 1024
"""Rows that keep more candidates are filtered one by one, so as not to widen the table of the others."""


class RowSampler:
    """One task's way to draw: settings, seed, random numbers and history. Its draws depend on nothing else.

    Made by ``new_row_sampler``; ``chain`` draws what numpy does not. ``error`` is set once there was no token to draw,
    as when a grammar and bans leave none: the task has failed, and ``end`` was picked in place of a token. ``allowed``
    are the tokens of the next draw where a constraint holds. ``thoughts`` where they have a budget.
    """

    __slots__ = (
        "_run",
        "allowed",
        "chain",
        "constrained",
        "edits",
        "end",
        "error",
        "filter",
        "random",
        "sampling",
        "seed",
        "thoughts",
    )

    def __init__(
        self,
        sampling: Sampling,
        seed: int,
        edits: Edits,
        chain: Sampler | None,
        end: Token = 0,
        constrained: Constrained | None = None,
        thoughts: Thoughts | None = None,
    ) -> None:
        self.constrained = constrained
        self.thoughts = thoughts
        self._run: list[Token] | None = None
        self.allowed: TokenSet | None = None
        self.error: CorralError | None = None
        self.end = end
        self.sampling = sampling
        self.seed = seed
        self.edits = edits
        self.chain = chain
        self.filter = read_filter(sampling)
        self.random = Random(seed)

    @property
    def is_complete(self) -> bool:
        """What was drawn is all that the constraint wants."""
        return self.constrained is not None and self.constrained.is_complete

    def prepare(self) -> bool:
        """Find the tokens of the next draw. False: there are none, which is ``error``."""
        if self.constrained is not None and self.error is None:
            try:
                self.allowed = self.constrained.allowed()
            except CorralError as error:
                self.error = error
        return self.error is None

    def take_forced(self) -> Token | None:
        """The token that must come, which a chain then knows; None: any may that can.

        What is told does not depend on when it is asked for: a run of tokens is found once and then told to its end.
        """
        token = self._next_of_thoughts()
        if token is None:
            return self._next_of_run()
        self._run = None
        return token

    def _next_of_thoughts(self) -> Token | None:
        token = self.thoughts.forced if self.thoughts is not None else None
        if self.thoughts is None or token is None or self._takes(token):
            return token
        self.thoughts.give_up()
        return None

    def _takes(self, token: Token) -> bool:
        """What text is held to is stronger than what must come."""
        is_held = self.constrained is not None and self.constrained.phase is Phase.HELD
        if is_held and not (self.prepare() and self.allowed is not None and token in self.allowed):
            return False
        return self.chain is None or self.chain.take(token)

    def _next_of_run(self) -> Token | None:
        if self.constrained is None or self.error is not None:
            return None
        if self._run is None:
            self._run = self.constrained.forced()
        if not self._run:
            return None
        token = self._run.pop(0)
        if self.chain is not None:
            self.chain.take(token)
        return token

    def is_likeliest(self, token: Token) -> bool:
        """Whether a token that is likeliest in the raw row still is: other tokens can only have become less likely."""
        allowed = self.allowed is None or token in self.allowed
        return allowed and self.edits.only_bans and not self.edits.touches(token)

    def reading(self, row: Floats, read: Callable[[Floats], T]) -> T:
        """What ``read`` makes of the edited row, which is as before afterwards."""
        edits = self.edits.apply(row)
        try:
            return read(row)
        finally:
            undo(row, edits)

    def candidates(self, row: Floats, k: int) -> Candidates:
        """The k likeliest that may be drawn, fewer where fewer are allowed."""
        if self.allowed is None:
            return self.reading(row, partial(candidates, k=k))
        tokens = self.allowed.flags.nonzero()[0]
        best, logits = candidates(self.reading(row, lambda edited: edited[tokens]), k)
        return tokens[best], logits

    def keep_wide(self, row: Floats, f: Filter) -> Kept:
        """What the filter keeps of all that may be drawn."""
        if self.allowed is None:
            return self.reading(row, partial(keep_wide, f=f))
        tokens = self.allowed.flags.nonzero()[0]
        kept = keep_wide(self.reading(row, lambda edited: edited[tokens]), f)
        return Kept(tokens[kept.tokens], kept.weights)

    def took(self, picked: Picked) -> Picked:
        """Add a drawn token to the history. Returns it, knowing what it is part of."""
        self.accept(picked.token)
        is_thought = self.thoughts is not None and self.thoughts.has_last
        return replace(picked, is_thought=True) if is_thought else picked

    def accept(self, token: Token) -> None:
        """Add a drawn token to the history."""
        self.edits.accept(token)
        self._run = self._run or None
        if self.thoughts is not None:
            self.thoughts.accept(token)
        if self.constrained is not None and self.error is None:
            try:
                self.constrained.accept(token)
            except CorralError as error:
                self.error = error

    def close(self) -> None:
        """Free the chain, if there is one."""
        if self.chain is not None:
            self.chain.close()
            self.chain = None


def new_row_sampler(sampling: Sampling, model: Model, eog: frozenset[Token], prompt: Sequence[Token]) -> RowSampler:
    """A sampler whose history is ``prompt``. ``eog`` is what ``ignore_eos`` bans.

    Raises InvalidRequest for penalties that are not numbers to divide by, tokens outside the vocabulary, bans of every
    token, and what the chain or the constraint refuses.
    """
    _check(sampling, model.info.n_vocab)
    banned = model.info.suppressed_tokens | (eog if sampling.ignore_eos else frozenset())
    _check_bans(sampling, banned, model.info.n_vocab)
    seed = used_seed(sampling.seed)
    end = min(eog, default=0)
    constrained = _new_constrained(sampling, model, banned)
    thoughts = Thoughts(sampling.thoughts, model.tokenizer) if sampling.thoughts else None
    if is_common(sampling):
        edits = Edits(sampling, banned, prompt, model.info.n_ctx_train)
        return RowSampler(sampling, seed, edits, None, end, constrained, thoughts)
    chain = model.new_sampler(sampling, seed, model.info.n_ctx_train)
    chain.feed(prompt)
    return RowSampler(sampling, seed, Edits(Sampling(), (), (), 0), chain, end, constrained, thoughts)


def _new_constrained(sampling: Sampling, model: Model, banned: frozenset[Token]) -> Constrained | None:
    if sampling.constraint is None:
        return None
    if sampling.grammar:
        raise InvalidRequest("a grammar and another constraint exclude each other: use one of them")
    matcher = model.new_matcher(sampling.constraint)
    bans = banned | _banned(sampling)
    return Constrained(sampling.constraint, matcher, model.tokenizer, model.info.eog_tokens, bans)


def _banned(sampling: Sampling) -> frozenset[Token]:
    biases = Ranked.of(sampling.logit_bias)
    bans = np.asarray(biases.values) < -FLOAT32_MAX
    return frozenset(np.asarray(biases.tokens)[bans].tolist())


def _check(sampling: Sampling, n_vocab: int) -> None:
    if not 1.0 / FLOAT32_MAX <= sampling.repeat_penalty <= FLOAT32_MAX:
        raise InvalidRequest("Failed to initialize samplers: repeat_penalty must be a finite number above 0")
    if not all(abs(p) <= FLOAT32_MAX for p in (sampling.frequency_penalty, sampling.presence_penalty)):
        raise InvalidRequest("Failed to initialize samplers: penalties must be finite numbers")
    if not all(abs(n) <= INT32_MAX for n in (sampling.top_k, sampling.min_keep, sampling.repeat_last_n)):
        raise InvalidRequest("Failed to initialize samplers: counts must be 32-bit numbers")
    tokens = np.asarray(Ranked.of(sampling.logit_bias).tokens)
    wrong = tokens[(tokens < 0) | (tokens >= n_vocab)]
    if len(wrong):
        raise InvalidRequest(f"logit_bias: token {wrong[0]} is not in the vocabulary (0 to {n_vocab - 1})")


def _check_bans(sampling: Sampling, banned: frozenset[Token], n_vocab: int) -> None:
    if len(sampling.logit_bias) + len(banned) < n_vocab:
        return
    if len(_banned(sampling) | banned) >= n_vocab:
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


def pick_rows(logits: Floats, rows: Sequence[tuple[int, RowSampler]]) -> list[Picked]:
    """Draw a token for each (row of ``logits``, sampler), and add it to the sampler's history.

    ``logits`` has shape (n_rows, n_vocab), must be writable and is the same afterwards; several samplers may share a
    row. A task whose chain fails does not disturb the others: see ``RowSampler.error``.
    """
    picked = [Picked(sampler.end) for _, sampler in rows]
    with np.errstate(all="ignore"):
        free = []
        for at, (i, sampler) in enumerate(rows):
            forced = sampler.take_forced()
            if forced is not None:
                picked[at] = _certain(logits[i], forced, sampler.sampling)
            elif sampler.prepare():
                free.append((at, i, sampler))
        drawn = _pick_all(logits, [(i, sampler) for _, i, sampler in free])
        for n, (at, i, sampler) in enumerate(free):
            picked[at] = _redrawn(logits, i, sampler, drawn[n])
    return [sampler.took(pick) for pick, (_, sampler) in zip(picked, rows, strict=True)]


def run_on(sampler: RowSampler, n_max: int) -> list[Picked]:
    """At most ``n_max`` tokens that must come next, added to the history: nobody needs logits for them."""
    found: list[Picked] = []
    while len(found) < n_max and sampler.error is None and (token := sampler.take_forced()) is not None:
        found.append(sampler.took(Picked(token)))
    return found


def _redrawn(logits: Floats, i: int, sampler: RowSampler, pick: Picked) -> Picked:
    """Draws again while a token ends what is free and goes on with what the constraint does not allow."""
    while sampler.constrained is not None and sampler.error is None and sampler.constrained.refuses(pick.token):
        if sampler.allowed is None:
            sampler.allowed = TokenBits.all_but((), logits.shape[1])
        sampler.allowed.discard(pick.token)
        pick = _pick_all(logits, [(i, sampler)])[0]
    return pick


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
            picked |= _draw([_Draw(at, i, row, sampler, f)], sampler.keep_wide(row, f))
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
    """The candidates of all draws as a table."""
    k = draws[0].filter.top_k
    if any(d.filter.top_k != k for d in draws):
        return table([d.sampler.candidates(d.raw, d.filter.top_k) for d in draws])
    return find(logits, [(d.i, d.sampler) for d in draws], k)


def _chained(sampler: RowSampler, chain: Sampler, row: Floats) -> Picked:
    try:
        return chain.pick(row, None if sampler.allowed is None else sampler.allowed.flags)
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
    if not sampler.is_likeliest(token):
        token = int(sampler.candidates(raw, 1)[0][0])
    return _certain(raw, token, sampler.sampling)


def _certain(raw: Floats, token: Token, sampling: Sampling) -> Picked:
    """A token that could be no other."""
    if sampling.n_probs <= 0:
        return Picked(token)
    if sampling.post_sampling_probs:
        return Picked(token, 1.0, ((token, 1.0),))
    return Picked(token, *top_logprobs(raw, token, sampling.n_probs))
