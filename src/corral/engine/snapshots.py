"""The RAM tier: rows kept as bytes. What is kept and what goes is the planner's business; this is the shelf."""

from __future__ import annotations

from collections.abc import Callable

from corral.ids import SnapshotId

_MIN_GONE = 4 << 20
_GONE_SHARE = 8


class SnapshotStore:
    """Bytes by snapshot id. ``n_bytes`` is their sum.

    ``give_back`` is called whenever an eighth as much as is kept has gone, and 4 MiB: snapshots are of many sizes, and
    what an allocator keeps of those that went would take half the budget once more.
    """

    def __init__(self, give_back: Callable[[], None] = lambda: None) -> None:
        self._data: dict[SnapshotId, bytes] = {}
        self._give_back = give_back
        self._n_gone = 0
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, snapshot: SnapshotId) -> bool:
        return snapshot in self._data

    def put(self, snapshot: SnapshotId, data: bytes) -> None:
        self._data[snapshot] = data
        self.n_bytes += len(data)

    def get(self, snapshot: SnapshotId) -> bytes | None:
        return self._data.get(snapshot)

    def clear(self) -> None:
        self._data.clear()
        self.n_bytes = 0

    def drop(self, snapshot: SnapshotId) -> None:
        """Does nothing if it is not there."""
        n_bytes = len(self._data.pop(snapshot, b""))
        self.n_bytes -= n_bytes
        self._n_gone += n_bytes
        if self._n_gone > max(_MIN_GONE, self.n_bytes // _GONE_SHARE):
            self._n_gone = 0
            self._give_back()
