"""The invariants: each kind of damage to the books is found by the audit, and every step looks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.props.engine_machine import Player, Setup, Submit

from corral.engine import audit
from corral.engine.draft import Waiting
from corral.engine.slot import Slot
from corral.engine.state import SlotState
from corral.ids import RowId, TaskId
from corral.ops import Trim

Spoil = Callable[[Player, Slot], object]


@pytest.fixture
def player() -> Player:
    """Slot 0 generates, slot 1 is idle; a conversation that ended is in RAM."""
    player = Player(Setup(n_slots=2, n_ctx=60))
    player.play([Submit(stem=1, n_prompt=45, n_predict=1)])
    (task,) = player.submit(Submit(n_prompt=20, n_predict=30))
    player.until(lambda: task in player.open and len(player.open[task].tokens) > 2)
    assert [s.is_idle for s in player.engine.books.slots] == [False, True]
    assert player.engine.snapshot.n_snapshots == 1
    return player


def row_of(slot: Slot) -> RowId:
    assert slot.row is not None
    return slot.row


def forget_bytes(player: Player, slot: Slot) -> None:
    player.engine.books.store.drop(player.engine.books.ledger.snapshots()[0])


SPOILS: dict[str, Spoil] = {
    "context": lambda player, slot: player.context.apply(Trim(row_of(slot), 5)),
    r"slot 0: \d+ of \d+": lambda player, slot: setattr(slot.work, "computed", slot.work.computed - 1),
    "other tokens than its row": lambda player, slot: slot.work.tokens.__setitem__(3, 99),
    "leased to several slots": lambda player, slot: setattr(player.engine.books.slots[1], "lease", slot.lease),
    "slots hold": lambda player, slot: player.engine.books.ledger.lease(RowId(1 - row_of(slot))),
    "SlotState.IDLE": lambda player, slot: setattr(slot, "state", SlotState.IDLE),
    "tasks in several places": lambda player, slot: player.engine.books.waiting.append(Waiting((slot.work.task,), 0.0)),
    "samplers of other tasks": lambda player, slot: player.engine.books.samplers.clear(),
    "RAM tier and ledger differ": forget_bytes,
}


@pytest.mark.parametrize("told", SPOILS)
def test_n14_damage_is_found_and_named(player: Player, told: str) -> None:
    books = player.engine.books
    audit.check(books, player.context)
    SPOILS[told](player, books.slots[0])
    with pytest.raises(AssertionError, match=told):
        audit.check(books, player.context)


def test_n14_every_step_looks(player: Player) -> None:
    books = player.engine.books
    books.samplers[TaskId(99)] = books.samplers[books.slots[0].work.task.id]
    with pytest.raises(AssertionError, match="samplers of other tasks"):
        player.engine.step()
