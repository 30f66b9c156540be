"""Owns the fake context: it checks, costs time and fails as told; its next token is a hash of what a row can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corral.ids import AdapterSet, RowId
from corral.ops import Copy, Shift, Span, Trim
from corral.ports import DecodeStatus, MemoryTraits, Rollback
from corral.sim.attend import Head, code_of
from corral.sim.clock import CostModel, VirtualClock, Work
from corral.sim.memory import Memory
from corral.sim.pool import Part
from corral.sim.shape import Kind
from corral.sim.ubatch import Ubatch, ubatches, ubatches_if_full


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, as functions of how many decodes (loads, copies) there were before: part of a test's input.

    ``decode`` names the status to answer with, None for what would happen anyway. ABORTED and FAILED strike at ubatch
    ``n mod n_ubatches`` of the batch, and those before it stay stored. ``copy``: a copy finds no room for its window.
    """

    decode: Callable[[int], DecodeStatus | None] = lambda n: None
    load: Callable[[int], bool] = lambda n: False
    copy: Callable[[int], bool] = lambda n: False


class SimContext:
    """Implements ``ports.Context`` over ``Memory``.

    A cell's token carries the adapters under which it was computed, so a view that mixes them gives another token.
    """

    def __init__(
        self,
        head: Head,
        traits: MemoryTraits,
        kind: Kind,
        seed: int,
        clock: VirtualClock,
        cost: CostModel,
        faults: Faults,
    ) -> None:
        self._head, self._traits, self._kind = head, traits, kind
        self._clock, self._cost, self._faults = clock, cost, faults
        self._memory = Memory(traits, kind, seed)
        self._logits = np.zeros((0, head.n_vocab), np.float32)
        self._unsettled: set[RowId] = set()
        self._readable = False
        self._closed = False
        self._code = 0
        self.n_decodes = 0
        self.n_loads = 0
        self.n_copies = 0

    @property
    def traits(self) -> MemoryTraits:
        return self._traits

    @property
    def memory(self) -> Memory:
        """For tests: what they may read, and spoil."""
        return self._memory

    @property
    def n_used(self) -> int:
        """Cells held by at least one row."""
        return int(np.count_nonzero(self._memory.main.n_holders))

    def n_free(self, row: RowId) -> int:
        """Cells of the main pool that the row can still take."""
        return int(self._memory.main.free(row).size)

    def apply(self, op: Trim | Copy | Shift) -> bool:
        match op:
            case Trim(row, n):
                self._check_prefix(row, n)
                if n != self.bounds(row)[1]:
                    self._memory.trim(row, n)
                    self._unsettled -= set() if n else {row}
            case Copy(src, dst, n, bare):
                self._check_copy(src, dst, n, bare)
                return self._copy(src, dst, n, bare)
            case Shift(row, keep, discard):
                self._check_shift(row, keep, discard)
                self._memory.shift(row, keep, discard)
                self._unsettled.add(row)
        return True

    def _copy(self, src: RowId, dst: RowId, n: int, bare: bool) -> bool:
        self._unsettled.discard(dst)
        if n and src in self._unsettled:
            self._unsettled.add(dst)
        self.n_copies += 1
        if self._kind.has_window and not bare and self._faults.copy(self.n_copies - 1):
            self._memory.trim(dst, 0)
            return False
        self._clock.advance(self._cost.state(0, self._memory.n_window(src)))
        return self._memory.copy(src, dst, n, bare)

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
        pieces = self._pieces(spans)
        if pieces is None:
            return DecodeStatus.NO_ROOM
        if fault in (DecodeStatus.ABORTED, DecodeStatus.FAILED):
            self._compute(spans, pieces[: (self.n_decodes - 1) % len(pieces)])
            self._drop_incomplete(spans)
            return fault
        views = self._compute(spans, pieces)
        self._unsettled.clear()
        rows = [self._head.logits(seen) for span in spans for seen in views[span.row]]
        self._logits = np.stack(rows) if rows else np.zeros((0, self._head.n_vocab), np.float32)
        self._readable = True
        return DecodeStatus.OK

    def logits(self) -> NDArray[np.float32]:
        if not self._readable:
            raise ValueError("there are no logits: the last decode did not succeed")
        return self._logits

    def bounds(self, row: RowId) -> tuple[int, int]:
        self._check_row(row)
        return self._memory.bounds(row)

    def save(self, row: RowId, start: int = 0) -> bytes:
        self._check_whole(row)
        self._check_start(row, start)
        if row in self._unsettled:
            raise ValueError(f"row {row} was shifted and cannot be saved before the next decode")
        self._clock.advance(self._cost_of(row))
        return self._memory.save(row, start=start)

    def load(self, row: RowId, data: bytes, start: int = 0) -> bool:
        self._check_row(row)
        self._check_start(row, start)
        if start and self.bounds(row)[1] != start:
            raise ValueError(f"row {row} holds {self.bounds(row)[1]} positions, not the {start} before the saved ones")
        self._memory.trim(row, start)
        self._unsettled.discard(row)
        if self._load_fails() or not self._memory.load(row, data, start=start):
            self._memory.trim(row, 0)
            return False
        self._clock.advance(self._cost_of(row))
        return True

    def fault(self, data: bytes, n: int) -> str:
        return "" if self._memory.length_of(data) == n else f"it is not the state of {n} tokens"

    def checkpoint(self, row: RowId) -> bytes:
        self._check_uncuttable(row)
        self._check_whole(row)
        self._clock.advance(self._cost_of(row, partial=True))
        return self._memory.save(row, partial=True)

    def restore(self, row: RowId, n: int, data: bytes) -> bool:
        self._check_uncuttable(row)
        end = self.bounds(row)[1]
        if not 0 < n <= end:
            raise ValueError(f"row {row} holds {end} positions, not {n}")
        if self._load_fails():
            self._memory.trim(row, 0)
            return False
        if not self._memory.restore(row, n, data):
            return False
        self._clock.advance(self._cost_of(row, partial=True))
        return True

    def give_back(self) -> None:
        """Bytes that are gone are gone."""

    def close(self) -> None:
        self._closed = True
        self._readable = False

    def check(self) -> None:
        """Prove the cells sound."""
        self._memory.check()

    def tokens(self, row: RowId) -> tuple[int, ...]:
        """What the row's cells hold, in order of position; nothing of a row without cells."""
        return self._memory.tokens(row)

    def _load_fails(self) -> bool:
        self.n_loads += 1
        return self._faults.load(self.n_loads - 1)

    def _cost_of(self, row: RowId, partial: bool = False) -> float:
        n_tokens = 0 if partial else int(self._memory.main.cells(row).size)
        return self._cost.state(n_tokens, self._memory.n_window(row), int(self._kind.keeps_states))

    def _pieces(self, spans: Sequence[Span]) -> list[Ubatch] | None:
        """How the batch is cut so that it fits; None: there is no room."""
        pieces = ubatches(spans, self._traits)
        if self._memory.prepare(_parts(spans, pieces)):
            return pieces
        if self._kind is not Kind.SLIDING:
            return None
        pieces = ubatches_if_full(spans, self._traits)
        return pieces if self._memory.prepare(_parts(spans, pieces)) else None

    def _compute(self, spans: Sequence[Span], pieces: Sequence[Ubatch]) -> dict[RowId, list[int]]:
        """What each row's output positions see."""
        todo = {span.row: span for span in spans}
        views: dict[RowId, list[int]] = {row: [] for row in todo}
        for parts in _parts(spans, pieces):
            self._memory.take(parts)
            for row, pos0, n in parts:
                span = todo[row]
                at = pos0 - span.pos0
                n_views = min(n, max(0, at + n - (len(span.tokens) - span.n_outputs)))
                words = [token | self._code for token in span.tokens[at : at + n]]
                views[row] += self._memory.advance(row, pos0, words, n_views)
            self._clock.advance(self._cost.ubatch([self._work(row, n) for row, _, n in parts]))
        return views

    def _work(self, row: RowId, n_tokens: int) -> Work:
        main = self._memory.main
        stream = main.stream(row)
        used = np.flatnonzero(main.n_holders[stream])
        n_scanned = int(used[-1]) + 1 if used.size else 0
        return Work(n_tokens, int(np.count_nonzero(main.has[row, stream])), n_scanned)

    def _drop_incomplete(self, spans: Sequence[Span]) -> None:
        """After a pass that broke off: rows that cannot be cut back to where they were lose everything.

        Where rows have states all of them do: some may have been moved, of whatever row.
        """
        if self._kind.keeps_states:
            for row in range(self._traits.n_rows):
                self._memory.trim(RowId(row), 0)
        for span in spans:
            if not self._memory.is_complete_at(span.row, span.pos0):
                self._memory.trim(span.row, 0)

    def _check_row(self, row: RowId) -> None:
        if self._closed:
            raise ValueError("the context is closed")
        if not 0 <= row < self._traits.n_rows:
            raise ValueError(f"row {row} is not in [0, {self._traits.n_rows})")

    def _check_whole(self, row: RowId) -> None:
        self._check_row(row)
        if self._memory.is_headless(row):
            raise ValueError(f"row {row} is a copy without the state at its end: it can only be restored or emptied")

    def _check_uncuttable(self, row: RowId) -> None:
        self._check_row(row)
        if self._traits.rollback is Rollback.ANY:
            raise ValueError(f"row {row} can be cut anywhere: it needs no checkpoint")

    def _check_start(self, row: RowId, start: int) -> None:
        if start and not self._traits.ranges:
            raise ValueError(f"row {row} can be saved and loaded only whole, not from {start}")

    def _check_range(self, row: RowId, n: int) -> None:
        end = self.bounds(row)[1]
        if not 0 <= n <= end:
            raise ValueError(f"row {row} holds {end} positions, not {n}")

    def _check_prefix(self, row: RowId, n: int) -> None:
        """That the row can be cut at n."""
        self._check_range(row, n)
        first, end = self.bounds(row)
        if self._traits.can_cut(n, first, end):
            return
        if self._traits.rollback is not Rollback.BOUNDED:
            raise ValueError(f"row {row} can only be kept whole ({end} positions) or dropped, not cut at {n}")
        raise ValueError(f"row {row} has lost positions before {first} and cannot be cut at {n}")

    def _check_copy(self, src: RowId, dst: RowId, n: int, bare: bool) -> None:
        self._check_row(dst)
        self._check_range(src, n)
        if not self._traits.shared_cells:
            raise ValueError("rows of split KV share no cells: a prefix travels by save and load")
        if src == dst:
            raise ValueError(f"row {src} cannot be copied onto itself")
        if bare:
            self._check_uncuttable(src)
        elif not self._traits.whole_copy_only:
            self._check_prefix(src, n)

    def _check_shift(self, row: RowId, keep: int, discard: int) -> None:
        end = self.bounds(row)[1]
        if not (self._traits.can_shift and self._traits.rollback is Rollback.ANY):
            raise ValueError(f"cells of row {row} cannot be moved: its memory cannot shift")
        if not (keep >= 0 and discard > 0 and keep + discard < end):
            raise ValueError(f"row {row} holds {end} positions: cannot keep {keep} and drop {discard}")
        if self._memory.main.is_shared(row, keep + discard):
            raise ValueError(f"row {row} shares cells from {keep + discard} on with others: they would move too")

    def _check_spans(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._check_span(span)
        if len({span.row for span in spans}) < len(spans):
            raise ValueError("a row may appear once in a batch")
        n_tokens = sum(len(span.tokens) for span in spans)
        if not 0 < n_tokens <= self._traits.n_batch:
            raise ValueError(f"a batch of {n_tokens} tokens is not in [1, {self._traits.n_batch}]")
        n_outputs = sum(span.n_outputs for span in spans)
        n_most = self._traits.n_rows + self._traits.n_extra_outputs
        if n_outputs > n_most:
            raise ValueError(f"{n_outputs} outputs in a batch; at most {n_most} are possible")

    def _check_span(self, span: Span) -> None:
        self._check_whole(span.row)
        end = self.bounds(span.row)[1]
        if span.pos0 != end:
            raise ValueError(f"row {span.row} ends at {end}, the span starts at {span.pos0}")
        if not span.tokens or not 0 <= span.n_outputs <= len(span.tokens):
            raise ValueError(f"row {span.row}: {span.n_outputs} outputs of {len(span.tokens)} tokens")

    def _in_vocabulary(self, spans: Sequence[Span]) -> bool:
        return all(min(span.tokens) >= 0 and max(span.tokens) < self._head.n_vocab for span in spans)


def _parts(spans: Sequence[Span], pieces: Sequence[Ubatch]) -> list[list[Part]]:
    """The pieces with the position at which each row goes on."""
    at = {span.row: span.pos0 for span in spans}
    parts: list[list[Part]] = []
    for piece in pieces:
        parts.append([(row, at[row], n) for row, n in piece])
        at |= {row: at[row] + n for row, n in piece}
    return parts
