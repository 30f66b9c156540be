"""Owns the cells of one kind of layer, chosen as libllama chooses them (llama-kv-cache.cpp), oddities included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from corral.ids import RowId

Indices = NDArray[np.intp]
Part = tuple[RowId, int, int]
"""(row, first position, n): what one ubatch adds to one row."""


class Pool:
    """Cells that hold a word and a position and belong to any number of rows; ``n_streams`` pools of ``n_cells``.

    With a ``window`` a cell of one row only, too old for that row's next token to see, may be taken by anybody.
    """

    def __init__(self, n_rows: int, n_streams: int, n_cells: int, window: int = 0) -> None:
        self.n_cells, self.window = n_cells, window
        self.word = np.zeros(n_streams * n_cells, np.uint64)
        self.pos = np.zeros(n_streams * n_cells, np.int32)
        self.has = np.zeros((n_rows, n_streams * n_cells), np.bool_)
        self.n_holders = np.zeros(n_streams * n_cells, np.int32)
        self._heads = [0] * n_streams

    def stream(self, row: RowId) -> slice:
        """The cells that the row may use."""
        start = row * self.n_cells if len(self._heads) > 1 else 0
        return slice(start, start + self.n_cells)

    def cells(self, row: RowId) -> Indices:
        """The row's cells in the order of the pool."""
        return np.flatnonzero(self.has[row])

    def bounds(self, row: RowId) -> tuple[int, int]:
        """Lowest position and the one after the highest; (0, 0) when empty."""
        pos = self.pos[self.has[row]]
        return (int(pos.min()), int(pos.max()) + 1) if pos.size else (0, 0)

    def seen(self, row: RowId) -> Indices:
        """The cells that make up the row's state: all, or those within the window of its last position."""
        cells = self.cells(row)
        if not self.window or not cells.size:
            return cells
        pos = self.pos[cells]
        recent: Indices = cells[pos > pos.max() - self.window]
        return recent

    def hold(self, row: RowId, cells: Indices) -> None:
        self.has[row, cells] = True
        self.n_holders[cells] += 1

    def trim(self, row: RowId, n: int) -> None:
        """Take positions >= n from the row."""
        cells = self.cells(row)
        self._release(row, cells[self.pos[cells] >= n])

    def copy(self, src: RowId, dst: RowId, n: int) -> None:
        """Let ``dst`` hold the cells of ``src`` at positions below n too."""
        cells = self.cells(src)
        self.hold(dst, cells[self.pos[cells] < n])

    def is_shared(self, row: RowId, first: int) -> bool:
        """Whether another row holds cells of this one at positions >= ``first``."""
        cells = self.cells(row)
        return bool((self.n_holders[cells[self.pos[cells] >= first]] > 1).any())

    def drop(self, row: RowId, first: int, end: int) -> None:
        """Take positions [first, end) from the row."""
        cells = self.cells(row)
        self._release(row, cells[(self.pos[cells] >= first) & (self.pos[cells] < end)])

    def free(self, row: RowId) -> Indices:
        """Cells of nobody that the row may use."""
        stream = self.stream(row)
        free: Indices = np.flatnonzero(self.n_holders[stream] == 0) + stream.start
        return free

    def write(self, row: RowId, words: NDArray[np.uint64], pos: NDArray[np.int32]) -> bool:
        """Give the row cells of its own with these contents. False: there is no room."""
        cells = self._find(row, words.size)
        if cells is None:
            return False
        self._take([(row, cells, pos)])
        self.word[cells] = words
        return True

    def prepare(self, pieces: Sequence[Sequence[Part]]) -> bool:
        """Whether all ubatches find room one after the other.

        Like libllama this tries it and puts back the cells that were taken, but not those that fell out of a window
        on the way.
        """
        undo = []
        fits = True
        for parts in pieces:
            found = self.find(parts)
            if found is None:
                fits = False
                break
            cells = np.concatenate(found)
            undo.append((cells, self.pos[cells], self.has[:, cells], self.n_holders[cells], list(self._heads)))
            self.take(parts, found)
        for cells, pos, has, n_holders, heads in reversed(undo):
            self.pos[cells], self.has[:, cells], self.n_holders[cells], self._heads = pos, has, n_holders, heads
        return fits

    def find(self, parts: Sequence[Part]) -> list[Indices] | None:
        """Cells for each part of a ubatch; None where there is no room."""
        if len(self._heads) == 1:
            cells = self._find(RowId(0), sum(n for _, _, n in parts))
            return None if cells is None else np.split(cells, np.cumsum([n for _, _, n in parts])[:-1])
        found = [self._find(row, n) for row, _, n in parts]
        return None if any(cells is None for cells in found) else [cells for cells in found if cells is not None]

    def take(self, parts: Sequence[Part], found: Sequence[Indices]) -> None:
        """Put the parts' positions into the cells that were found for them. Their words are the caller's business."""
        self._take(
            [
                (row, cells, np.arange(pos0, pos0 + n, dtype=np.int32))
                for (row, pos0, n), cells in zip(parts, found, strict=True)
            ]
        )

    def _find(self, row: RowId, n: int) -> Indices | None:
        """The first n usable cells from the head on, around the end."""
        stream = self.stream(row)
        usable = self._usable(stream)
        head = self._heads[self._number(row)]
        if head > np.count_nonzero(self.n_holders[stream]) + 2 * n:
            head = 0
        cells = np.flatnonzero(usable)
        at = np.searchsorted(cells, head)
        cells = np.concatenate((cells[at:], cells[:at]))[:n]
        return cells + stream.start if cells.size == n else None

    def _usable(self, stream: slice) -> NDArray[np.bool_]:
        n_holders = self.n_holders[stream]
        usable: NDArray[np.bool_] = n_holders == 0
        single = np.flatnonzero(n_holders == 1)
        if self.window and single.size:
            has, pos = self.has[:, stream], self.pos[stream]
            next_pos = np.where(has, pos, -1).max(axis=1) + 1
            usable[single] = next_pos[has[:, single].argmax(axis=0)] - pos[single] >= self.window
        return usable

    def _take(self, parts: Sequence[tuple[RowId, Indices, NDArray[np.int32]]]) -> None:
        lost: dict[RowId, int] = {}
        for row, cells, pos in parts:
            for cell in cells[self.n_holders[cells] > 0]:
                owner = RowId(int(self.has[:, cell].argmax()))
                lost[owner] = max(lost.get(owner, -1), int(self.pos[cell]))
            self.has[:, cells] = False
            self.n_holders[cells] = 0
            self.pos[cells] = pos
            self.hold(row, cells)
        for owner, last in lost.items():  # a row keeps no position below one that it lost
            cells = self.cells(owner)
            self._release(owner, cells[self.pos[cells] <= last])
        for row, cells, _ in parts:
            if cells.size:
                self._heads[self._number(row)] = int(cells[-1]) - self.stream(row).start + 1

    def _release(self, row: RowId, cells: Indices) -> None:
        gone = cells[self.n_holders[cells] == 1]
        self.has[row, cells] = False
        self.n_holders[cells] -= 1
        if gone.size:  # libllama searches from the first cell that became free
            number = self._number(row)
            self._heads[number] = min(self._heads[number], int(gone[0]) - self.stream(row).start)

    def _number(self, row: RowId) -> int:
        return row if len(self._heads) > 1 else 0
