"""What each task of a history must say: alone, cold, and over the same fake model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from corral.engine.probs import top_logprobs
from corral.engine.sampling import RowSampler, new_row_sampler, pick_rows
from corral.engine.shift import n_kept
from corral.events import StopReason, TokenProbs
from corral.ids import AdapterId, AdapterSet, Token
from corral.ports import AdapterInfo, Picked
from corral.sim.attend import code_of
from corral.sim.model import SimModel, SimSpec
from corral.sim.oracle import Shifting, sight, solo
from corral.sim.shape import Kind
from corral.tasks import Sampling, Task

if TYPE_CHECKING:
    from corral.ports import Logits

INVOCATIONS: tuple[tuple[Token, ...], ...] = ((), (), (98, 99), (99, 97, 97))
"""Two ordinary adapters and two aLoRAs, whose activations come up in many prompts."""

ADAPTERS = tuple(AdapterInfo(AdapterId(i), "", invocation=tokens) for i, tokens in enumerate(INVOCATIONS))
WINDOW = 6
MODELS = {
    kind: SimModel(SimSpec(eos_every=40, adapters=ADAPTERS, kind=kind, window=WINDOW if kind.has_window else 0))
    for kind in Kind
}
"""One of each kind of memory. The window is smaller than nearly all prompts."""

MODEL = MODELS[Kind.ATTENTION]
EOG = MODEL.info.eog_tokens


class OneRow:
    """A sampler of the engine as the oracle wants it: one row at a time."""

    def __init__(self, sampler: RowSampler) -> None:
        self._sampler = sampler
        self.n_picked = 0
        self.n_whole: int | None = None

    def pick(self, logits: Logits, allowed: object = None) -> Picked:
        picked = pick_rows(logits[None], [(0, self._sampler)])[0]
        self.n_picked += 1
        if self.n_whole is None and self._sampler.is_complete:
            self.n_whole = self.n_picked
        return picked

    def feed(self, tokens: Sequence[Token]) -> None:
        pass

    def close(self) -> None:
        pass


@lru_cache(maxsize=4096)
def alone(
    prompt: tuple[Token, ...],
    n_predict: int,
    sampling: Sampling,
    adapters: AdapterSet,
    n_base: int,
    shifting: Shifting | None = None,
    kind: Kind = Kind.ATTENTION,
) -> tuple[tuple[Token, ...], bool]:
    """What the task would draw alone and cold, and whether that is all it was held to."""
    sampler = OneRow(new_row_sampler(sampling, MODEL, EOG, prompt))
    model = MODELS[kind]
    tokens = solo(prompt, n_predict, model=model, sampler=sampler, adapters=adapters, n_base=n_base, shifting=shifting)
    return tokens[: sampler.n_whole], sampler.n_whole is not None


def activated(task: Task) -> tuple[AdapterSet, int]:
    """The adapters that act, and from which token on."""
    invocations = [INVOCATIONS[i] for i, _ in task.adapters]
    if not all(invocations) or not invocations:
        return task.adapters, 0
    n, tokens = len(invocations[0]), task.prompt
    n_base = max((i for i in range(len(tokens)) if tokens[i : i + n] == invocations[0]), default=-1)
    return (task.adapters, n_base) if n_base >= 0 else ((), 0)


Cell = tuple[Token, AdapterSet]


def cells(task: Task, answer: tuple[Token, ...] = ()) -> list[Cell]:
    """The task's tokens, each with the adapters under which it is computed."""
    adapters, n_base = activated(task)
    return [(token, adapters if i >= n_base else ()) for i, token in enumerate(task.prompt + answer)]


def n_alike(a: Sequence[Cell], b: Sequence[Cell]) -> int:
    """How many cells from the start are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def expected(
    task: Task, n_ctx: int, kind: Kind = Kind.ATTENTION, shift: bool = False
) -> tuple[tuple[Token, ...], str, StopReason]:
    """Tokens, text and reason of the whole answer, with at most one stop string, of ASCII."""
    n_max = n_ctx - len(task.prompt)
    n_predict = task.limits.n_predict
    shifting = None
    if shift:
        shifting = Shifting(n_ctx, n_kept(task.n_keep, len(task.prompt), MODEL.info.add_bos, n_ctx), task.n_discard)
    else:
        n_predict = n_max if n_predict < 0 else min(n_predict, n_max)
    return ended(task, *alone(task.prompt, n_predict, task.sampling, *activated(task), shifting, kind))


def ended(task: Task, tokens: tuple[Token, ...], is_whole: bool = False) -> tuple[tuple[Token, ...], str, StopReason]:
    """Where a stop string ends these tokens, if one does, with their text and the reason.

    ``is_whole``: they end because they are all that they were held to.
    """
    said, searched = b"", b""
    for n, is_thought in enumerate(in_thoughts(task, tokens) if task.limits.stop else (), 1):
        piece = MODEL.tokenizer.piece(tokens[n - 1], special=False)
        said += piece
        searched += bytes(len(piece)) if is_thought else piece
        if (at := searched.find(task.limits.stop[0].encode())) >= 0:
            return tokens[:n], said[:at].decode("utf-8", "replace"), StopReason.WORD
    reason = StopReason.EOS if is_whole or (tokens and tokens[-1] in EOG) else StopReason.LIMIT
    return tokens, MODEL.tokenizer.detokenize(tokens, special=False), reason


def in_thoughts(task: Task, tokens: tuple[Token, ...]) -> list[bool]:
    """Of each token whether it is of thoughts, in which stop strings do not count."""
    sampler = new_row_sampler(task.sampling, MODEL, EOG, task.prompt)
    found = []
    for token in tokens:
        sampler.take_forced()
        found.append(sampler.took(Picked(token)).is_thought)
    return found


def check_thoughts(task: Task, tokens: tuple[Token, ...]) -> None:
    """Thoughts that were open end in time: by themselves, or as they have to."""
    budget = task.sampling.thoughts
    if budget is None or budget.n_open < 0 or task.sampling.constraint is not None:
        return
    n = max(0, budget.n_tokens - budget.n_open)
    if any(tokens[at : at + len(budget.forced)] == budget.forced[: len(tokens[at:])] for at in range(n, n + 4)):
        return
    said = b"".join(MODEL.tokenizer.piece(token, special=True) for token in tokens[: n + 3])
    assert any(end.encode() in said for end in budget.ends), f"thoughts of {budget.n_tokens} tokens go on: {tokens}"


def expected_probs(task: Task, kind: Kind) -> tuple[TokenProbs, ...]:
    """Of each prompt token but the first."""
    return _prompt_probs(task.prompt, task.n_prompt_probs, *activated(task), kind)


@lru_cache(maxsize=1024)
def _prompt_probs(
    prompt: tuple[Token, ...], n_top: int, adapters: AdapterSet, n_base: int, kind: Kind
) -> tuple[TokenProbs, ...]:
    model, code = MODELS[kind], code_of(adapters)
    words = [token | code if i >= n_base else token for i, token in enumerate(prompt)]
    found = []
    for n, token in enumerate(prompt[1:], 1):
        logits = np.asarray(model.head.logits(sight(words[:n], model.spec)))
        p, top = top_logprobs(logits, token, max(n_top, 1))
        found.append(TokenProbs(token, p, top[:n_top], post_sampling=False))
    return tuple(found)
