"""The RAM tier: rows kept as bytes. What is kept and what goes is the planner's business; this is the shelf."""

from __future__ import annotations

from corral.ids import SnapshotId


class SnapshotStore:
    """Bytes by snapshot id. ``n_bytes`` is their sum."""

    def __init__(self) -> None:
        self._data: dict[SnapshotId, bytes] = {}
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
        self.n_bytes -= len(self._data.pop(snapshot, b""))
