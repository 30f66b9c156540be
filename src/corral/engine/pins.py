"""What pins are, and how much of memory they may hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from corral.engine.adapted import marked, settle
from corral.engine.slot import prefix_key
from corral.engine.state import Pinned
from corral.errors import InvalidRequest
from corral.ids import CacheKey, SnapshotId, Token
from corral.ports import AdapterInfo, MemoryTraits, Rollback
from corral.tasks import Task

MAX_PINNED = 0.5
"""Pins may hold this share of the KV cells and of the RAM tier: the rest is for requests."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that stays in RAM as ``snapshot``, whatever becomes of rows that hold it.

    Where that cannot be cut, a ``checkpoint`` shortly before its end stays with it, for who parts from it there: the
    same text as a whole prompt, or one whose last word goes on.
    """

    key: CacheKey
    tokens: tuple[Token, ...]
    snapshot: SnapshotId
    checkpoint: SnapshotId | None = None

    @property
    def parts(self) -> tuple[SnapshotId, ...]:
        return (self.snapshot,) if self.checkpoint is None else (self.snapshot, self.checkpoint)


def pinned_prefix(task: Task, adapters: Sequence[AdapterInfo]) -> tuple[CacheKey, tuple[Token, ...]]:
    """The prompt of a task as the ledger knows it. Raises InvalidRequest for adapters that it cannot use."""
    (task,) = settle((task,), adapters)
    return prefix_key(task), tuple(marked(task))


def pin_name(key: CacheKey, tokens: tuple[Token, ...]) -> str:
    """The same for the same prefix, in every process."""
    return hashlib.blake2b(repr((key, tokens)).encode(), digest_size=8).hexdigest()


def check_room(n: int, pins: Iterable[Pinned], traits: MemoryTraits, ram_bytes: int) -> None:
    """Raises InvalidRequest if another pin of ``n`` tokens would take more than the share of pins.

    ``ram_bytes``: of the RAM tier, < 0 for no limit.
    """
    pins = tuple(pins)
    n_pinned = n + sum(pin.n_tokens for pin in pins)
    if n_pinned > MAX_PINNED * traits.n_cells:
        raise InvalidRequest(
            f"pins would hold {n_pinned} tokens, more than half of the {traits.n_cells} KV cells; "
            "unpin others (DELETE /cache/pin/{id}) or raise -c"
        )
    n_parts = 1 if traits.rollback is Rollback.ANY else 2
    n_bytes = n * traits.bytes_per_token + n_parts * traits.bytes_per_row + sum(pin.n_bytes for pin in pins)
    if ram_bytes >= 0 and n_bytes > MAX_PINNED * ram_bytes:
        raise InvalidRequest(
            f"pins would take {n_bytes} bytes, more than half of the RAM tier's {ram_bytes}; "
            "unpin others (DELETE /cache/pin/{id}) or raise --cache-ram"
        )
