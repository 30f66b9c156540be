"""The only ways to touch a KV cache, as values. The real context, the fake, the ledger and its fork understand them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from corral.ids import CacheKey, RowId, SnapshotId, Token


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep positions [0, n) of the row, drop the rest. n = 0 empties it."""

    row: RowId
    n: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Make ``dst`` (emptied first) hold positions [0, n) of ``src`` by sharing cells. Only where cells are shared.

    ``bare``: just what can be cut of it; ``dst`` is good for nothing then but a Restore of a checkpoint at ``n``.
    """

    src: RowId
    dst: RowId
    n: int
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Shift:
    """Take positions [keep, keep + discard) out of the row; what lies behind moves down by ``discard``.

    0 <= keep, 1 <= discard, keep + discard < the row's length; only the row may hold the cells that move. The result
    is approximate: the moved cells remember what they saw. It can be saved only after the next forward pass.
    """

    row: RowId
    keep: int
    discard: int


@dataclass(frozen=True, slots=True)
class Save:
    """Keep positions [start, end) of the row as bytes under ``snapshot``. The row stays.

    ``base`` is the snapshot that keeps what lies before ``start``. Only where cells are shared is ``start`` not 0.
    """

    row: RowId
    snapshot: SnapshotId
    start: int = 0
    base: SnapshotId | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Add what ``snapshot`` holds to ``row``, which holds just what lies before ``start``. The snapshot stays.

    With ``start`` 0 the row is emptied first.
    """

    snapshot: SnapshotId
    row: RowId
    start: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Keep what of the row cannot be cut back (a window, a state) under ``snapshot``, for its present length."""

    row: RowId
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring the row, which holds at least the checkpoint's ``n`` tokens, back to just them. The checkpoint stays."""

    snapshot: SnapshotId
    row: RowId
    n: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a snapshot or checkpoint."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Shelve:
    """Hand the bytes of a snapshot and of those it rests on to the disk tier; they stay in RAM.

    ``links`` are a snapshot, where it starts and its tokens from there on, each; the first is that with start 0.
    Computing it all takes ``prefill_ms``. ``checkpoints`` with their lengths go with it, those that are still there.
    """

    key: CacheKey
    links: tuple[tuple[SnapshotId, int, tuple[Token, ...]], ...]
    prefill_ms: float
    checkpoints: tuple[tuple[SnapshotId, int], ...] = ()

    @property
    def tokens(self) -> list[Token]:
        """The whole prefix."""
        whole: list[Token] = []
        for _, start, tokens in self.links:
            del whole[start:]
            whole += tokens
        return whole


class SavedCheckpoint(NamedTuple):
    """A checkpoint on its way to or from a file: its length in tokens, and its bytes."""

    n: int
    data: bytes


Op = Trim | Copy | Shift | Save | Load | Checkpoint | Restore | Drop | Shelve


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one row to compute, at positions [pos0, pos0 + len(tokens)).

    ``n_outputs`` of the last positions give logits: 0 or 1 for completion.
    """

    row: RowId
    pos0: int
    tokens: tuple[Token, ...]
    n_outputs: int = 0
