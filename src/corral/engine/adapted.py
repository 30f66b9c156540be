"""What adapters mean to a task: whether it may use them, from which token on, and how the ledger tells tokens apart.

A cache key names the adapters with which a sequence begins. Where they come in later (aLoRA), the tokens from there on
are *marked*: the ledger keeps them as other tokens than the same ones without adapters, so that the beginning is
everybody's and the rest is not. Only the executor takes the marks off.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from corral.engine.slot import ADAPTED
from corral.errors import InvalidRequest
from corral.ids import AdapterSet, CacheKey, Token
from corral.ports import AdapterInfo
from corral.tasks import Task, TaskGroup

_TOKEN_BITS = 32
_FIRST_MARKED = 1 << _TOKEN_BITS


def settle(group: TaskGroup, loaded: Sequence[AdapterInfo]) -> TaskGroup:
    """The group, knowing from which token on its adapters act. Raises InvalidRequest for those it cannot use."""
    task = group[0]
    if not task.adapters:
        return group
    for i, _ in task.adapters:
        if not 0 <= i < len(loaded):
            raise InvalidRequest(unknown_adapter(i, len(loaded)))
    invocations = [loaded[i].invocation for i, _ in task.adapters]
    if not all(invocations):  # with an ordinary adapter among them all act from the start
        return group
    if len(invocations) > 1:
        raise InvalidRequest("Cannot run multiple aLoRAs in a single request")
    n_base = find_last(task.prompt, invocations[0])
    adapters = task.adapters if n_base is not None else ()
    borders = tuple(sorted({*task.borders, n_base})) if n_base else task.borders
    return tuple(replace(t, adapters=adapters, n_base=n_base or 0, borders=borders) for t in group)


def unknown_adapter(adapter: int, n_loaded: int) -> str:
    """What is wrong with an id, in words."""
    known = f"ids are 0 to {n_loaded - 1}" if n_loaded else "none is loaded (--lora)"
    return f"Field 'lora': there is no adapter with id {adapter}; {known}"


def find_last(tokens: Sequence[Token], part: Sequence[Token]) -> int | None:
    """Where ``part``, which is not empty, begins for the last time."""
    n, wanted = len(part), list(part)
    starts = range(len(tokens) - n, -1, -1)
    return next((i for i in starts if tokens[i] == wanted[0] and list(tokens[i : i + n]) == wanted), None)


def adapters_at(task: Task, tokens: Sequence[Token], n: int) -> AdapterSet:
    """With what token ``n`` of the task's, as they are marked now, is computed."""
    return task.adapters if not task.n_base or tokens[n] >= _FIRST_MARKED else ()


def n_alike(tokens: Sequence[Token], n: int) -> int:
    """Where the tokens from ``n`` on that are computed with the same adapters end. Those behind a marked one are."""
    return len(tokens) if tokens[n] >= _FIRST_MARKED else bisect_left(tokens, _FIRST_MARKED, n)


def marked(task: Task) -> Sequence[Token]:
    """The prompt as the ledger keeps it."""
    n = task.n_base
    return (*task.prompt[:n], *(_mark(task) | token for token in task.prompt[n:])) if n else task.prompt


def marked_token(task: Task, token: Token) -> Token:
    """A generated token as the ledger keeps it."""
    return _mark(task) | token if task.n_base else token


def plain(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Tokens of the vocabulary again."""
    return tuple(token & (_FIRST_MARKED - 1) for token in tokens)


def is_adapted(key: CacheKey, tokens: Sequence[Token]) -> bool:
    """Whether adapters had a part in what is kept under these."""
    return key.startswith(ADAPTED) or bool(tokens and tokens[-1] >= _FIRST_MARKED)


def _mark(task: Task) -> int:
    """A number for each set, above all tokens."""
    return int.from_bytes(repr(task.adapters).encode()) << _TOKEN_BITS
