"""The shelf of snapshots: what went is given back to the system now and then."""

from __future__ import annotations

import pytest
from tests.props.engine_machine import Player, Setup

from corral.engine.snapshots import SnapshotStore
from corral.ids import SnapshotId
from corral.sim.context import SimContext

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


def test_it_is_the_context_of_an_engine_that_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[SimContext] = []
    monkeypatch.setattr(SimContext, "give_back", lambda context: calls.append(context))
    player = Player(Setup())
    player.engine.books.store.put(SnapshotId(1), bytes(5 * MIB))
    player.engine.books.store.drop(SnapshotId(1))
    assert calls == [player.context]
