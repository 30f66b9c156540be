"""Which cells rows occupy and share: runs of cells with the rows that hold them.

Two rows with equal tokens share cells only if one was copied from the other; that is why cells are counted apart from
the radix tree.
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.ids import RowId


class CellRun:
    """``n`` cells next to each other in the sequence of every row in ``rows``."""

    __slots__ = ("n", "rows")

    def __init__(self, n: int, rows: set[RowId]) -> None:
        self.n = n
        self.rows = rows


class Cells:
    """Runs of each row in order of position. ``n_used`` counts each shared cell once."""

    def __init__(self) -> None:
        self._runs: dict[RowId, list[CellRun]] = {}
        self._lengths: dict[RowId, int] = {}
        self.n_used = 0

    def length(self, row: RowId) -> int:
        return self._lengths.get(row, 0)

    def lengths(self) -> Iterable[int]:
        """Of all rows that hold something."""
        return self._lengths.values()

    def exclusive(self, row: RowId) -> int:
        """Cells that dropping this row alone would free."""
        return sum(run.n for run in self._runs.get(row, ()) if len(run.rows) == 1)

    def owns_from(self, row: RowId, n: int) -> bool:
        """Whether nobody else holds the row's cells from position ``n`` on."""
        end = self.length(row)
        for run in reversed(self._runs.get(row, ())):
            if end <= n:
                break
            if len(run.rows) > 1:
                return False
            end -= run.n
        return True

    def freed_by(self, rows: set[RowId]) -> int:
        """Cells that dropping all of these rows would free."""
        seen: dict[int, int] = {}
        for row in rows:
            for run in self._runs.get(row, ()):
                if run.rows <= rows:
                    seen[id(run)] = run.n
        return sum(seen.values())

    def extend(self, row: RowId, n: int) -> None:
        """The row took ``n`` fresh cells at its end."""
        if n == 0:
            return
        runs = self._runs.setdefault(row, [])
        if runs and len(runs[-1].rows) == 1:
            runs[-1].n += n
        else:
            runs.append(CellRun(n, {row}))
        self._lengths[row] = self.length(row) + n
        self.n_used += n

    def trim(self, row: RowId, n: int) -> None:
        """The row gives up its cells from position ``n`` on."""
        if n >= self.length(row):
            return
        keep = self._cut(row, n)
        runs = self._runs[row]
        for run in runs[keep:]:
            run.rows.discard(row)
            if not run.rows:
                self.n_used -= run.n
        del runs[keep:]
        self._lengths[row] = n
        if n == 0:
            del self._runs[row], self._lengths[row]

    def cut_out(self, row: RowId, start: int, end: int) -> None:
        """The row gives up its cells [start, end); those behind move down. Raises ValueError if others hold these."""
        if not 0 <= start < end < self.length(row):
            raise ValueError(f"row {row} has {self.length(row)} cells: [{start}, {end}) cannot be taken out")
        if not self.owns_from(row, end):
            raise ValueError(f"row {row} shares cells from {end} on with others: they would move too")
        first, last = self._cut(row, start), self._cut(row, end)
        runs = self._runs[row]
        for run in runs[first:last]:
            run.rows.discard(row)
            if not run.rows:
                self.n_used -= run.n
        del runs[first:last]
        self._lengths[row] -= end - start

    def share(self, src: RowId, dst: RowId, n: int) -> None:
        """``dst`` (emptied first) takes part in the first ``n`` cells of ``src``."""
        self.trim(dst, 0)
        if n == 0:
            return
        keep = self._cut(src, n)
        runs = self._runs[src][:keep]
        for run in runs:
            run.rows.add(dst)
        self._runs[dst] = runs
        self._lengths[dst] = n

    def _cut(self, row: RowId, n: int) -> int:
        """Make position ``n`` a border between runs; returns how many runs lie before it."""
        pos = 0
        for i, run in enumerate(self._runs.get(row, ())):
            if pos == n:
                return i
            if pos + run.n > n:
                self._split(run, n - pos)
                return i + 1
            pos += run.n
        return len(self._runs.get(row, ()))

    def _split(self, run: CellRun, n: int) -> None:
        rest = CellRun(run.n - n, set(run.rows))
        run.n = n
        for row in rest.rows:
            runs = self._runs[row]
            runs.insert(runs.index(run) + 1, rest)

    def fork(self) -> Cells:
        """An independent copy, for planning."""
        other = Cells()
        twins: dict[int, CellRun] = {}
        for row, runs in self._runs.items():
            for run in runs:
                if id(run) not in twins:
                    twins[id(run)] = CellRun(run.n, set(run.rows))
            other._runs[row] = [twins[id(run)] for run in runs]
        other._lengths = dict(self._lengths)
        other.n_used = self.n_used
        return other

    def check(self) -> None:
        """Raise AssertionError if counts or references disagree."""
        holders: dict[int, set[RowId]] = {}
        sizes: dict[int, int] = {}
        for row, runs in self._runs.items():
            assert sum(run.n for run in runs) == self._lengths[row], f"row {row}: length differs from its runs"
            for run in runs:
                assert run.n > 0, f"row {row}: empty run"
                holders.setdefault(id(run), set()).add(row)
                sizes[id(run)] = run.n
        for runs in self._runs.values():
            for run in runs:
                assert run.rows == holders[id(run)], f"run of {run.n}: {run.rows} differ from {holders[id(run)]}"
        assert sum(sizes.values()) == self.n_used, f"{self.n_used} used, runs hold {sum(sizes.values())}"
