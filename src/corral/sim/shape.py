"""Owns what libllama would make of a context's settings for each kind of memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from corral.config import ContextConfig, on_split_kv
from corral.errors import LoadError
from corral.ports import MemoryTraits, Rollback

MAGIC = b"CSIM"
STATE_VERSION = 3
CELL_BYTES = 8
WINDOW_CELL_BYTES = 12
STATE_BYTES = 12


class Kind(Enum):
    """What a model remembers: every token; some layers only a window of them; a state; every token and a state; or all
    three."""

    ATTENTION = auto()
    SLIDING = auto()
    RECURRENT = auto()
    HYBRID = auto()
    SLIDING_HYBRID = auto()

    @property
    def keeps_states(self) -> bool:
        return self in (Kind.RECURRENT, Kind.HYBRID, Kind.SLIDING_HYBRID)

    @property
    def has_window(self) -> bool:
        return self in (Kind.SLIDING, Kind.SLIDING_HYBRID)


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """A fake model's memory. ``window`` in tokens, where the kind has one; ``n_pad``: pools are multiples of it."""

    kind: Kind = Kind.ATTENTION
    window: int = 0
    n_ctx_train: int = 4096
    n_pad: int = 1


def traits_of(config: ContextConfig, spec: MemorySpec) -> MemoryTraits:
    """What libllama makes of ``config``; it pads pools up to a multiple of 256 cells. Raises LoadError."""
    _check(config)
    if spec.kind is Kind.SLIDING_HYBRID:
        config = on_split_kv(config)
    n_pools, n_shares = (1, 1) if config.kv_unified else (config.n_rows, config.n_slots)
    n_ctx = config.n_ctx or spec.n_ctx_train
    per_pool = _pad(-(-n_ctx // n_shares), spec.n_pad)
    n_batch, n_ubatch = _batch_sizes(config, spec.kind.has_window)
    n_batch = min(n_batch, per_pool * n_pools)
    n_ubatch = min(n_ubatch, n_batch)
    window_cells = _window_cells(config, spec, per_pool, n_ubatch)
    if spec.kind is Kind.RECURRENT:  # no cells: a row may be as long as a conversation may
        n_pools, n_cells, shared = 1, per_pool * config.n_rows, False
    else:
        n_cells, shared = per_pool * n_pools, config.kv_unified
    return MemoryTraits(
        n_cells=n_cells,
        n_cells_row=min(per_pool, spec.n_ctx_train),
        n_rows=config.n_rows,
        n_streams=n_pools,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        shared_cells=shared,
        can_shift=window_cells in (0, per_pool),
        rollback=_rollback(spec.kind),
        window=spec.window,
        window_cells=window_cells,
        whole_copy_only=spec.kind.keeps_states,
        bytes_per_token=0 if spec.kind is Kind.RECURRENT else CELL_BYTES,
        ranges=spec.kind is Kind.ATTENTION and config.kv_unified,
        state_version=STATE_VERSION,
        state_head=MAGIC,
        bytes_per_row=spec.window * WINDOW_CELL_BYTES + STATE_BYTES * spec.kind.keeps_states,
    )


def _check(config: ContextConfig) -> None:
    if not 1 <= config.n_slots <= config.n_rows:
        raise LoadError(f"{config.n_slots} slots on {config.n_rows} rows: 1 <= slots <= rows is needed")
    if config.n_ctx < 0 or config.n_batch < 1 or config.n_ubatch < 1:
        raise LoadError("context size must not be negative, batch sizes must be positive")


def _batch_sizes(config: ContextConfig, has_window: bool) -> tuple[int, int]:
    """With a window no batch is larger than a ubatch: what libllama does with a second one goes wrong."""
    n_batch = max(config.n_batch, config.n_rows)
    n_ubatch = min(max(config.n_ubatch, config.n_rows), n_batch)
    return (n_ubatch, n_ubatch) if has_window else (n_batch, min(config.n_ubatch, n_batch))


def _window_cells(config: ContextConfig, spec: MemorySpec, per_pool: int, n_ubatch: int) -> int:
    if not spec.kind.has_window:
        return 0
    n_rows = config.n_rows if config.kv_unified else 1
    return per_pool if config.swa_full else _pad(min(per_pool, spec.window * n_rows + n_ubatch), spec.n_pad)


def _rollback(kind: Kind) -> Rollback:
    if kind.keeps_states:
        return Rollback.WHOLE_ROW
    return Rollback.BOUNDED if kind is Kind.SLIDING else Rollback.ANY


def _pad(n: int, to: int) -> int:
    return -(-n // to) * to
