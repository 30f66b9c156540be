"""Owns what the rows of a fake context remember: cells, window cells, states; and their bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from corral.ids import RowId, Token
from corral.ports import MemoryTraits
from corral.sim.attend import chain, scramble_one, view, weigh_states, without_code
from corral.sim.marks import moved, seen_by, tokens_of
from corral.sim.pool import Part, Pool
from corral.sim.shape import CELL_BYTES, MAGIC, WINDOW_CELL_BYTES, Kind

_HEADER = struct.Struct("<4sQII")
_STATE = struct.Struct("<QI")
Words = NDArray[np.uint64]
Positions = NDArray[np.int32]


class Memory:
    """Rows over a pool of cells (but for RECURRENT), one of window cells, with a state each, as the kind has them.

    A window cell's word is a hash of the cells that its token could see, so a window that is not what it should be
    shows in all that follows. Who calls has checked the arguments.
    """

    def __init__(self, traits: MemoryTraits, kind: Kind, seed: int) -> None:
        self._kind, self._seed = kind, seed
        self._birth = scramble_one(seed)
        n_streams = traits.n_streams
        n_cells = 0 if kind is Kind.RECURRENT else traits.n_cells // n_streams
        self.main = Pool(traits.n_rows, n_streams, n_cells)
        self.recent: Pool | None = None
        if kind.has_window:
            self.recent = Pool(traits.n_rows, n_streams, traits.window_cells, traits.window)
        self._rehomes = self.recent is not None and self.recent.n_cells < n_cells
        self._states: dict[RowId, tuple[int, int]] = {}
        self._headless: set[RowId] = set()
        is_full = self.recent is not None and not self._rehomes
        shape = (kind.value, is_full, n_streams, traits.window, seed)
        self._tags = [reduce(chain, shape, int(partial)) for partial in (False, True)]

    def bounds(self, row: RowId) -> tuple[int, int]:
        """Lowest position from which the row is complete, and its end."""
        if self.recent is not None and not self._kind.keeps_states and row not in self._headless:
            return self.recent.bounds(row)
        return 0, self.main.bounds(row)[1] if self._kind is not Kind.RECURRENT else self._state(row)[1]

    def is_headless(self, row: RowId) -> bool:
        """Whether the row has the cells of its tokens but not the state after them."""
        return row in self._headless

    def is_complete_at(self, row: RowId, n: int) -> bool:
        """Whether the next token, at position n, could see all it should."""
        if self.recent is None or self._kind.keeps_states:
            return not self._kind.keeps_states or self.bounds(row)[1] == n
        return self.recent.bounds(row)[0] <= max(0, n - self.recent.window + 1)

    def n_window(self, row: RowId) -> int:
        """Window cells that a checkpoint would hold."""
        return int(self.recent.seen(row).size) if self.recent is not None else 0

    def trim(self, row: RowId, n: int) -> None:
        self.main.trim(row, n)
        if self.recent is not None:
            self.recent.trim(row, n)
        if not n:
            self._states.pop(row, None)
            self._headless.discard(row)

    def copy(self, src: RowId, dst: RowId, n: int, bare: bool = False) -> bool:
        """False: no room for a window of its own; ``dst`` is empty. ``bare``: without window or state."""
        self.trim(dst, 0)
        if not n:
            return True
        self.main.copy(src, dst, n)
        if bare:
            self._headless.add(dst)
        if self._kind.keeps_states:
            self._states[dst] = self._state(src)
            if n < self.bounds(src)[1] or src in self._headless:
                self._headless.add(dst)
        if self.recent is not None:
            self.recent.copy(src, dst, n)
            return bare or self._rehome(dst)
        return True

    def _rehome(self, row: RowId) -> bool:
        """A cell of two rows would never be recycled: give the row its own."""
        if not self._rehomes or self.recent is None:
            return True
        cells = self.recent.seen(row)
        words, pos = self.recent.word[cells], self.recent.pos[cells]
        return self._replace_window(row, words, pos)

    def _replace_window(self, row: RowId, words: Words, pos: Positions) -> bool:
        assert self.recent is not None
        self.recent.trim(row, 0)
        if self.recent.write(row, words, pos):
            if not self._kind.keeps_states:
                self._headless.discard(row)
            return True
        self.trim(row, 0)
        return False

    def shift(self, row: RowId, keep: int, discard: int) -> None:
        """Drop positions [keep, keep + discard); those behind move down and remember that."""
        self.main.drop(row, keep, keep + discard)
        cells = self.main.cells(row)
        rest = cells[self.main.pos[cells] >= keep + discard]
        self.main.word[rest] = moved(self.main.word[rest].astype(np.int32), discard).astype(np.uint64)
        self.main.pos[rest] -= discard

    def prepare(self, pieces: Sequence[Sequence[Part]]) -> bool:
        """Whether the ubatches fit."""
        if self._kind is Kind.RECURRENT:
            return True
        return self.main.prepare(pieces) and (self.recent is None or self.recent.prepare(pieces))

    def take(self, parts: Sequence[Part]) -> None:
        """Give cells to the parts of a ubatch that fits."""
        for pool in (self.main, self.recent):
            if pool is not None and pool.n_cells:
                found = pool.find(parts)
                assert found is not None, "no room after all"
                pool.take(parts, found)

    def advance(self, row: RowId, pos0: int, tokens: Sequence[Token], n_views: int) -> list[int]:
        """Compute tokens that have their cells; returns what the last ``n_views`` of them see."""
        end = pos0 + len(tokens)
        chains: list[int] = []
        if self._kind is not Kind.RECURRENT:
            before = self.main.cells(row)
            before = before[self.main.pos[before] < pos0]
            words = seen_by(np.array(tokens, np.int32), pos0, self.main.word[before].astype(np.int32))
            _fill(self.main, row, pos0, words.astype(np.uint64))
        if self.recent is not None:
            chains = self._window_chains(self.recent, row, pos0, tokens)
            _fill(self.recent, row, pos0, np.array(chains, np.uint64))
        if self._kind.keeps_states:
            word = self._state(row)[0]
            chains = [word := chain(word, token) for token in tokens]
            self._states[row] = word, end
        return [self._view(row, query, chains[query - pos0] if chains else 0) for query in range(end - n_views, end)]

    def save(self, row: RowId, partial: bool = False, start: int = 0) -> bytes:
        """Everything of the row from ``start`` on, or only what cannot be cut back."""
        main = self.main.cells(row)[: 0 if partial else None]
        main = main[self.main.pos[main] >= start]
        head = _HEADER.pack(MAGIC, self._tags[partial], main.size, self.n_window(row))
        parts = [head, self.main.word[main].astype(np.int32).tobytes(), self.main.pos[main].tobytes()]
        if self.recent is not None:
            recent = self.recent.seen(row)
            parts += [self.recent.word[recent].tobytes(), self.recent.pos[recent].tobytes()]
        if self._kind.keeps_states:
            parts.append(_STATE.pack(*self._state(row)))
        return b"".join(parts)

    def load(self, row: RowId, data: bytes, partial: bool = False, start: int = 0) -> bool:
        """Put saved bytes into a row that ends at ``start``, or replace a part of it. False: it is empty now."""
        if not self._is_mine(data, partial):
            self.trim(row, 0)
            return False
        *_, n_main, n_recent = _HEADER.unpack_from(data)
        at = _HEADER.size
        tokens = np.frombuffer(data, np.int32, n_main, at).astype(np.uint64)
        pos = np.frombuffer(data, np.int32, n_main, at + 4 * n_main)
        at += CELL_BYTES * n_main
        if (start and pos.size and pos.min() != start) or not self.main.write(row, tokens, pos):
            self.trim(row, 0)
            return False
        if self._kind.keeps_states:
            word, n = _STATE.unpack_from(data, len(data) - _STATE.size)
            self._states[row] = word, n
            self._headless.discard(row)
        words = np.frombuffer(data, np.uint64, n_recent, at)
        pos = np.frombuffer(data, np.int32, n_recent, at + 8 * n_recent)
        return not n_recent or self._replace_window(row, words, pos)

    def length_of(self, data: bytes) -> int:
        """How many tokens a whole saved row has; -1 where these bytes are none of a context like this one."""
        if not self._is_mine(data, partial=False):
            return -1
        _, _, n_main, n_recent = _HEADER.unpack_from(data)
        at = _HEADER.size + n_main * CELL_BYTES + n_recent * WINDOW_CELL_BYTES
        return int(_STATE.unpack_from(data, at)[1]) if self._kind is Kind.RECURRENT else int(n_main)

    def restore(self, row: RowId, n: int, data: bytes) -> bool:
        """False: the row is empty now."""
        if not self.load(row, data, partial=True):
            return False
        ends = [self.recent.bounds(row)[1]] if self.recent is not None else []
        ends += [self._state(row)[1]] if self._kind.keeps_states else []
        if min(ends) != n:
            self.trim(row, 0)
            return False
        self.main.trim(row, n)
        return True

    def check(self) -> None:
        """Prove the cells sound: holders counted right, positions of each row without repeat, and those of the main
        pool without gap."""
        pools = [pool for pool in (self.main, self.recent) if pool is not None]
        for pool in pools:
            assert np.array_equal(pool.n_holders, pool.has.sum(axis=0)), "holders of a cell are miscounted"
        for row in map(RowId, range(self.main.has.shape[0])):
            held = np.sort(self.main.pos[self.main.cells(row)])
            assert np.array_equal(held, np.arange(held.size)), f"row {row} holds positions {held.tolist()}"
            for pool in pools:
                cells, stream = pool.cells(row), pool.stream(row)
                assert ((cells >= stream.start) & (cells < stream.stop)).all(), f"row {row} holds cells of another pool"
                assert np.unique(pool.pos[cells]).size == cells.size, f"row {row} holds a position twice"
            assert self._kind is Kind.RECURRENT or self.bounds(row)[1] == held.size, f"row {row}: pools differ"

    def tokens(self, row: RowId) -> tuple[Token, ...]:
        """What the row's cells hold, in order of position; nothing where it has none."""
        cells = self.main.cells(row)
        tokens = without_code(tokens_of(self.main.word[cells].astype(np.int32)))
        return tuple(int(t) for t in tokens[np.argsort(self.main.pos[cells], kind="stable")])

    def _state(self, row: RowId) -> tuple[int, int]:
        return self._states.get(row, (self._birth, 0))

    def _window_chains(self, recent: Pool, row: RowId, pos0: int, tokens: Sequence[Token]) -> list[int]:
        cells = recent.cells(row)
        order = np.argsort(recent.pos[cells], kind="stable")
        pos, words = recent.pos[cells][order], recent.word[cells][order]
        at = int(np.searchsorted(pos, pos0))
        word = int(words[at - 1]) if at and pos[at - 1] == pos0 - 1 else self._birth
        queries = np.arange(pos0, pos0 + len(tokens))
        firsts = np.maximum(0, queries - recent.window + 1)
        missing = (queries - firsts) - (np.searchsorted(pos, queries) - np.searchsorted(pos, firsts))
        return [word := chain(word, token, n) for token, n in zip(tokens, missing.tolist(), strict=True)]

    def _view(self, row: RowId, query: int, state: int) -> int:
        if self._kind is Kind.RECURRENT:
            return state
        cells = self.main.cells(row)
        cells = cells[self.main.pos[cells] <= query]
        seen = view(self.main.word[cells].astype(np.int32), self.main.pos[cells], self._seed)
        if self._kind.keeps_states:
            seen += state
        if self.recent is None:
            return seen % (1 << 64)
        cells = self.recent.cells(row)
        pos = self.recent.pos[cells]
        cells = cells[(pos <= query) & (pos > query - self.recent.window)]
        return (seen + weigh_states(self.recent.word[cells], self.recent.pos[cells])) % (1 << 64)

    def _is_mine(self, data: bytes, partial: bool) -> bool:
        if len(data) < _HEADER.size:
            return False
        magic, tag, n_main, n_recent = _HEADER.unpack_from(data)
        n_bytes = _HEADER.size + n_main * CELL_BYTES + n_recent * WINDOW_CELL_BYTES
        n_bytes += _STATE.size * self._kind.keeps_states
        return (magic, tag, n_bytes) == (MAGIC, self._tags[partial], len(data))


def _fill(pool: Pool, row: RowId, pos0: int, words: Words) -> None:
    """Write the words of positions [pos0, pos0 + n), which the row has just been given."""
    cells = pool.cells(row)
    cells = cells[(pool.pos[cells] >= pos0) & (pool.pos[cells] < pos0 + words.size)]
    pool.word[cells] = words[pool.pos[cells] - pos0]
