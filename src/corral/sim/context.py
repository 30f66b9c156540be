"""Owns the fake KV cache: real cells, and a next token that is a hash of exactly the cells a row can see."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.config import ContextConfig
from corral.errors import LoadError
from corral.ids import AdapterSet, RowId
from corral.ops import Copy, Shift, Span, Trim
from corral.ports import DecodeStatus, MemoryTraits
from corral.sim.attend import Head, code_of, view, without_code
from corral.sim.clock import CostModel, VirtualClock, Work
from corral.sim.marks import moved, seen_by, tokens_of
from corral.sim.ubatch import Ubatch, ubatches

_MAGIC = b"CSIM"
_HEADER = struct.Struct("<4sIIq")
_CELL_BYTES = 8
STATE_VERSION = 3


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, as functions of how many decodes (or loads) there were before: part of a test's input.

    ``decode`` names the status to answer with, None for what would happen anyway. ABORTED and FAILED strike at ubatch
    ``n mod n_ubatches`` of the batch, and those before it stay stored.
    """

    decode: Callable[[int], DecodeStatus | None] = lambda n: None
    load: Callable[[int], bool] = lambda n: False


def traits_of(config: ContextConfig, n_ctx_train: int, n_pad: int) -> MemoryTraits:
    """What libllama makes of ``config``; it pads pools up to a multiple of 256 cells. Raises LoadError."""
    if not 1 <= config.n_slots <= config.n_rows:
        raise LoadError(f"{config.n_slots} slots on {config.n_rows} rows: 1 <= slots <= rows is needed")
    if config.n_ctx < 0 or config.n_batch < 1 or config.n_ubatch < 1:
        raise LoadError("context size must not be negative, batch sizes must be positive")
    n_pools, n_shares = (1, 1) if config.kv_unified else (config.n_rows, config.n_slots)
    n_ctx = config.n_ctx or n_ctx_train
    per_pool = -(-n_ctx // (n_shares * n_pad)) * n_pad
    n_batch = min(max(config.n_batch, config.n_rows), per_pool * n_pools)
    return MemoryTraits(
        n_cells=per_pool * n_pools,
        n_cells_row=per_pool,
        n_rows=config.n_rows,
        n_streams=n_pools,
        n_batch=n_batch,
        n_ubatch=min(config.n_ubatch, n_batch),
        shared_cells=config.kv_unified,
        bytes_per_token=_CELL_BYTES,
        state_version=STATE_VERSION,
        state_head=_MAGIC,
    )


class SimContext:
    """Implements ``ports.Context``. Cells hold (token, position) and the set of rows they belong to.

    A cell's token carries the adapters under which it was computed, so a view that mixes them gives another token.

    One array of cells serves both modes: on split KV row r may only use its own pool of ``n_cells_row`` cells.
    """

    def __init__(
        self,
        head: Head,
        traits: MemoryTraits,
        seed: int,
        clock: VirtualClock,
        cost: CostModel,
        faults: Faults,
    ) -> None:
        self._head, self._traits, self._seed = head, traits, seed
        self._clock, self._cost, self._faults = clock, cost, faults
        self._token = np.zeros(traits.n_cells, np.int32)
        self._pos = np.zeros(traits.n_cells, np.int32)
        self._has = np.zeros((traits.n_rows, traits.n_cells), np.bool_)
        self._n_holders = np.zeros(traits.n_cells, np.int32)
        self._logits = np.zeros((0, head.n_vocab), np.float32)
        self._unsettled: set[RowId] = set()
        self._readable = False
        self._closed = False
        self._code = 0
        self.n_decodes = 0
        self.n_loads = 0

    @property
    def traits(self) -> MemoryTraits:
        return self._traits

    @property
    def n_used(self) -> int:
        """Cells held by at least one row."""
        return int(np.count_nonzero(self._n_holders))

    def n_free(self, row: RowId) -> int:
        """Cells the row can still take."""
        return int(self._free(row).size)

    def apply(self, op: Trim | Copy | Shift) -> None:
        match op:
            case Trim(row, n):
                self._check_prefix(row, n)
                self._trim(row, n)
            case Copy(src, dst, n):
                self._check_copy(src, dst, n)
                self._trim(dst, 0)
                cells = self._cells(src)
                self._hold(dst, cells[self._pos[cells] < n])
                if n and src in self._unsettled:
                    self._unsettled.add(dst)
            case Shift(row, keep, discard):
                self._shift(row, keep, discard)

    def use(self, adapters: AdapterSet) -> None:
        code = code_of(adapters)
        if code != self._code:
            self._clock.advance(self._cost.change_ms)
        self._code = code

    def decode(self, spans: Sequence[Span]) -> DecodeStatus:
        self._check_spans(spans)
        self._logits.fill(np.nan)
        self._readable = False
        fault = self._faults.decode(self.n_decodes)
        self.n_decodes += 1
        if fault in (DecodeStatus.NO_ROOM, DecodeStatus.INVALID):
            return fault
        if not self._in_vocabulary(spans):
            return DecodeStatus.INVALID
        if not self._fits(spans):
            return DecodeStatus.NO_ROOM
        pieces = ubatches(spans, self._traits)
        if fault in (DecodeStatus.ABORTED, DecodeStatus.FAILED):
            self._compute(spans, pieces[: (self.n_decodes - 1) % len(pieces)])
            return fault
        self._compute(spans, pieces)
        self._logits = self._outputs(spans)
        self._readable = True
        self._unsettled.clear()
        return DecodeStatus.OK

    def logits(self) -> NDArray[np.float32]:
        if not self._readable:
            raise ValueError("there are no logits: the last decode did not succeed")
        return self._logits

    def bounds(self, row: RowId) -> tuple[int, int]:
        self._check_row(row)
        cells = self._cells(row)
        if not cells.size:
            return 0, 0
        return int(self._pos[cells].min()), int(self._pos[cells].max()) + 1

    def save(self, row: RowId) -> bytes:
        self._check_row(row)
        if row in self._unsettled:
            raise ValueError(f"row {row} was shifted and cannot be saved before the next decode")
        cells = self._cells(row)
        self._clock.advance(self._cost.state(cells.size))
        head = _HEADER.pack(_MAGIC, self._traits.n_streams, cells.size, self._seed)
        return head + self._token[cells].tobytes() + self._pos[cells].tobytes()

    def load(self, row: RowId, data: bytes) -> bool:
        self._check_row(row)
        self._trim(row, 0)
        fails = self._faults.load(self.n_loads)
        self.n_loads += 1
        state = self._parse(data)
        if fails or state is None:
            return False
        free = self._free(row)[: state.shape[1]]
        if free.size < state.shape[1]:
            return False
        self._token[free], self._pos[free] = state
        self._hold(row, free)
        self._clock.advance(self._cost.state(free.size))
        return True

    def fault(self, data: bytes, n: int) -> str:
        state = self._parse(data)
        return "" if state is not None and state.shape[1] == n else f"it is not the state of {n} tokens"

    def checkpoint(self, row: RowId) -> bytes:
        raise ValueError(f"row {row} can be cut anywhere: it needs no checkpoint")

    def restore(self, row: RowId, n: int, data: bytes) -> bool:
        raise ValueError(f"row {row} can be cut at {n}: it needs no checkpoint")

    def close(self) -> None:
        self._closed = True
        self._readable = False

    def check(self) -> None:
        """Prove the cells sound: holders counted right, positions of each row 0, 1, 2, ... without gap or repeat."""
        assert np.array_equal(self._n_holders, self._has.sum(axis=0)), "holders of a cell are miscounted"
        for row in range(self._traits.n_rows):
            cells = self._cells(RowId(row))
            held = np.sort(self._pos[cells])
            assert np.array_equal(held, np.arange(held.size)), f"row {row} holds positions {held.tolist()}"
            pool = self._pool(RowId(row))
            assert ((cells >= pool.start) & (cells < pool.stop)).all(), f"row {row} holds cells of another pool"

    def tokens(self, row: RowId) -> tuple[int, ...]:
        """What the row's cells hold, in order of position."""
        cells = self._cells(row)
        words = without_code(tokens_of(self._token[cells]))
        return tuple(int(t) for t in words[np.argsort(self._pos[cells], kind="stable")])

    def _pool(self, row: RowId) -> slice:
        if self._traits.n_streams == 1:
            return slice(0, self._traits.n_cells)
        start = row * self._traits.n_cells_row
        return slice(start, start + self._traits.n_cells_row)

    def _cells(self, row: RowId) -> NDArray[np.intp]:
        return np.flatnonzero(self._has[row])

    def _free(self, row: RowId) -> NDArray[np.intp]:
        pool = self._pool(row)
        free: NDArray[np.intp] = np.flatnonzero(self._n_holders[pool] == 0) + pool.start
        return free

    def _hold(self, row: RowId, cells: NDArray[np.intp]) -> None:
        self._has[row, cells] = True
        self._n_holders[cells] += 1

    def _trim(self, row: RowId, n: int) -> None:
        cells = self._cells(row)
        gone = cells[self._pos[cells] >= n]
        self._has[row, gone] = False
        self._n_holders[gone] -= 1
        if not n:
            self._unsettled.discard(row)

    def _shift(self, row: RowId, keep: int, discard: int) -> None:
        self._check_row(row)
        cells = self._cells(row)
        if not (keep >= 0 and discard > 0 and keep + discard < cells.size):
            raise ValueError(f"row {row} holds {cells.size} positions: cannot keep {keep} and drop {discard}")
        rest = cells[self._pos[cells] >= keep + discard]
        if (self._n_holders[rest] > 1).any():
            raise ValueError(f"row {row} shares cells from {keep + discard} on with others: they would move too")
        gone = cells[(self._pos[cells] >= keep) & (self._pos[cells] < keep + discard)]
        self._has[row, gone] = False
        self._n_holders[gone] -= 1
        self._token[rest] = moved(self._token[rest], discard)
        self._pos[rest] -= discard
        self._unsettled.add(row)

    def _fits(self, spans: Sequence[Span]) -> bool:
        if self._traits.n_streams == 1:
            return sum(len(span.tokens) for span in spans) <= self._free(RowId(0)).size
        return all(len(span.tokens) <= self._free(span.row).size for span in spans)

    def _compute(self, spans: Sequence[Span], pieces: Sequence[Ubatch]) -> None:
        todo = {span.row: span for span in spans}
        done = dict.fromkeys(todo, 0)
        for piece in pieces:
            for row, n in piece:
                span, at = todo[row], done[row]
                cells = self._free(row)[:n]
                tokens = np.array(span.tokens[at : at + n], np.int32) | self._code
                self._token[cells] = seen_by(tokens, span.pos0 + at, self._token[self._cells(row)])
                self._pos[cells] = np.arange(span.pos0 + at, span.pos0 + at + n)
                self._hold(row, cells)
                done[row] += n
            self._clock.advance(self._cost.ubatch([self._work(row, n) for row, n in piece]))

    def _work(self, row: RowId, n_tokens: int) -> Work:
        pool = self._pool(row)
        used = np.flatnonzero(self._n_holders[pool])
        return Work(n_tokens, int(np.count_nonzero(self._has[row, pool])), int(used[-1]) + 1)

    def _outputs(self, spans: Sequence[Span]) -> NDArray[np.float32]:
        rows = [self._head.logits(seen) for span in spans for seen in self._views(span)]
        return np.stack(rows) if rows else np.zeros((0, self._head.n_vocab), np.float32)

    def _views(self, span: Span) -> list[int]:
        """What each output position of the span sees, read from the cells."""
        if not span.n_outputs:
            return []
        cells = self._cells(span.row)
        tokens, pos = self._token[cells], self._pos[cells]
        end = span.pos0 + len(span.tokens)
        causal = [pos <= query for query in range(end - span.n_outputs, end)]
        return [view(tokens[mask], pos[mask], self._seed) for mask in causal]

    def _parse(self, data: bytes) -> NDArray[np.int32] | None:
        """(2, n): tokens and positions; None where the bytes are not of a context like this one."""
        if len(data) < _HEADER.size:
            return None
        magic, n_streams, n, seed = _HEADER.unpack_from(data)
        fits = len(data) == _HEADER.size + n * _CELL_BYTES
        if (magic, n_streams, seed) != (_MAGIC, self._traits.n_streams, self._seed) or not fits:
            return None
        return np.frombuffer(data, np.int32, offset=_HEADER.size).reshape(2, n)

    def _check_row(self, row: RowId) -> None:
        if self._closed:
            raise ValueError("the context is closed")
        if not 0 <= row < self._traits.n_rows:
            raise ValueError(f"row {row} is not in [0, {self._traits.n_rows})")

    def _check_prefix(self, row: RowId, n: int) -> None:
        end = self.bounds(row)[1]
        if not 0 <= n <= end:
            raise ValueError(f"row {row} holds {end} positions, not {n}")

    def _check_copy(self, src: RowId, dst: RowId, n: int) -> None:
        self._check_row(dst)
        self._check_prefix(src, n)
        if not self._traits.shared_cells:
            raise ValueError("rows of split KV share no cells: a prefix travels by save and load")
        if src == dst:
            raise ValueError(f"row {src} cannot be copied onto itself")

    def _check_spans(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._check_span(span)
        if len({span.row for span in spans}) < len(spans):
            raise ValueError("a row may appear once in a batch")
        n_tokens = sum(len(span.tokens) for span in spans)
        if not 0 < n_tokens <= self._traits.n_batch:
            raise ValueError(f"a batch of {n_tokens} tokens is not in [1, {self._traits.n_batch}]")
        n_outputs = sum(span.n_outputs for span in spans)
        if n_outputs > self._traits.n_rows:
            raise ValueError(f"{n_outputs} outputs in a batch; at most {self._traits.n_rows} are possible")

    def _check_span(self, span: Span) -> None:
        end = self.bounds(span.row)[1]
        if span.pos0 != end:
            raise ValueError(f"row {span.row} ends at {end}, the span starts at {span.pos0}")
        if not span.tokens or not 0 <= span.n_outputs <= len(span.tokens):
            raise ValueError(f"row {span.row}: {span.n_outputs} outputs of {len(span.tokens)} tokens")

    def _in_vocabulary(self, spans: Sequence[Span]) -> bool:
        return all(min(span.tokens) >= 0 and max(span.tokens) < self._head.n_vocab for span in spans)
