"""The shelf of snapshots: what went is given back to the system now and then."""

from __future__ import annotations

from corral.engine.snapshots import SnapshotStore
from corral.ids import SnapshotId

MIB = 1 << 20


def test_memory_is_given_back_when_much_has_gone() -> None:
    calls: list[int] = []
    store = SnapshotStore(lambda: calls.append(store.n_bytes // MIB))
    for i in range(64):
        store.put(SnapshotId(i), bytes(MIB))
    for i in range(4):
        store.drop(SnapshotId(i))
        store.drop(SnapshotId(i))
    assert not calls and store.n_bytes == 60 * MIB
    for i in range(4, 24):
        store.drop(SnapshotId(i))
    assert calls == [56, 49, 43]
