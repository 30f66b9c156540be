"""What a failed step does: it is repeated smaller or ends the tasks of its batch, and harms nobody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
from tests.props.engine_machine import Player, Setup, Submit

from corral.engine.commit import MAX_NO_ROOM
from corral.engine.cost import CostModel
from corral.errors import DecodeFailed
from corral.ids import RowId, TaskId
from corral.ports import DecodeStatus
from corral.sim.context import SimContext
from corral.sim.shape import Kind

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
NO_ROOM, ABORTED, FAILED, INVALID = (
    DecodeStatus.NO_ROOM,
    DecodeStatus.ABORTED,
    DecodeStatus.FAILED,
    DecodeStatus.INVALID,
)


@MEMORIES
@pytest.mark.parametrize("status", [ABORTED, FAILED, INVALID])
def test_n6_s21_a_failed_pass_ends_the_tasks_of_its_batch_and_no_other(unified: bool, status: DecodeStatus) -> None:
    """The answers of the others are checked against what they would be alone."""
    faults = ((6, status),)
    player = Player(Setup(unified, n_slots=2, n_ctx=100, n_spare=2, n_batch=64, n_ubatch=64, faults=faults))
    running = [player.submit(Submit(stem=i, n_prompt=10, n_predict=20))[0] for i in (0, 1)]
    waiting = [player.submit(Submit(stem=i, n_prompt=14, n_predict=20))[0] for i in (2, 0)]
    player.drain()
    assert set(player.failed) == set(running)
    assert all(isinstance(player.failed[t].error, DecodeFailed) for t in running)
    told = "Invalid input batch." if status is INVALID else "Compute error."
    assert {str(player.failed[t].error) for t in running} == {told}
    assert set(player.finished) == set(waiting)


@MEMORIES
def test_n6_a_slot_without_a_share_of_the_failed_batch_goes_on(unified: bool) -> None:
    """With continuous batching off a prompt waits while another generates, and does not fall with it."""
    setup = Setup(unified, n_slots=2, n_ctx=100, n_batch=8, n_ubatch=8, cont_batching=False, faults=((9, FAILED),))
    player = Player(setup)
    (first,) = player.submit(Submit(n_prompt=8, n_predict=30))
    player.until(lambda: first in player.open and bool(player.open[first].tokens))
    (second,) = player.submit(Submit(stem=1, n_prompt=30, n_predict=5))
    player.drain()
    assert set(player.failed) == {first}
    assert set(player.finished) == {second}


@MEMORIES
@pytest.mark.parametrize("kind", [Kind.ATTENTION, Kind.SLIDING, Kind.HYBRID])
@pytest.mark.parametrize("status", [ABORTED, FAILED])
def test_s21_what_a_failed_pass_left_behind_is_not_reused(unified: bool, status: DecodeStatus, kind: Kind) -> None:
    """It strikes at the second piece of the batch: the first is stored, and must be cut off again or all given up."""
    faults = tuple((n, status) for n in (1, 3))
    player = Player(Setup(unified, kind, n_slots=1, n_ctx=100, n_batch=64, n_ubatch=8, faults=faults))
    for _ in range(6):
        player.play([Submit(n_prompt=40, n_predict=3)])
    assert player.failed
    assert player.finished


def test_s21_no_room_is_tried_again_smaller_and_harms_nobody() -> None:
    faults = tuple((n, NO_ROOM) for n in (2, 5, 6, 9))
    player = Player(Setup(unified=True, n_slots=3, n_ctx=64, n_spare=3, faults=faults))
    for stem in range(3):
        player.submit(Submit(stem=stem, n_prompt=12, n_predict=15))
    player.drain()
    assert len(player.finished) == 3


def test_s21_no_room_makes_room_by_evicting_what_is_cold() -> None:
    player = Player(Setup(unified=True, n_slots=2, n_ctx=100, n_spare=2, faults=((8, NO_ROOM), (9, NO_ROOM))))
    player.play([Submit(n_prompt=45, n_predict=1)])
    player.play([Submit(stem=1, n_prompt=48, n_predict=7)])
    assert len(player.finished) == 2
    assert not player.failed


@pytest.mark.parametrize("fault", [None, 1])
def test_s21_after_a_pass_without_room_more_is_kept_free(fault: int | None) -> None:
    """All fit by the ledger's count; what nobody uses goes only if the context has shown that it counts otherwise."""
    faults = () if fault is None else ((fault, NO_ROOM),)
    setup = Setup(unified=True, n_slots=2, n_ctx=100, n_spare=2, n_batch=64, n_ubatch=64, faults=faults)
    player = Player(replace(setup, cache_ram_bytes=0))
    player.play([Submit(n_prompt=24, n_predict=1)])
    for stem in (1, 2):
        player.submit(Submit(stem=stem, n_prompt=28, n_predict=4))
    player.drain()
    assert (player.engine.snapshot.counters.n_evicted > 0) is (fault is not None)


def test_s21_where_there_is_never_room_the_youngest_task_is_given_up_and_the_rest_goes_on() -> None:
    faults = tuple((n, NO_ROOM) for n in range(4, 4 + MAX_NO_ROOM))
    player = Player(Setup(unified=True, n_slots=2, n_ctx=100, n_spare=2, n_batch=64, n_ubatch=64, faults=faults))
    old, young = (player.submit(Submit(stem=i, n_prompt=10, n_predict=15))[0] for i in (0, 1))
    player.drain()
    assert set(player.failed) == {young}
    assert "Context size has been exceeded" in str(player.failed[young].error)
    assert set(player.finished) == {old}


@MEMORIES
def test_a_snapshot_that_cannot_be_loaded_is_forgotten_and_the_prompt_computed(unified: bool) -> None:
    player = Player(Setup(unified, n_slots=1, n_ctx=60, bad_loads=frozenset({0}), faults=((999, FAILED),)))
    player.play([Submit(n_prompt=45, n_predict=1)]).play([Submit(stem=1, n_prompt=45, n_predict=1)])
    player.play([Submit(n_prompt=45, n_predict=1)])
    assert set(player.finished) == {TaskId(1), TaskId(2), TaskId(3)}
    assert player.context.n_loads > 0


SLOW_MS = 77_777.0


def slowed(name: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One way of moving states takes very long; what the cost model is told that moving them took."""
    learned: list[float] = []
    move = getattr(SimContext, name)
    monkeypatch.setattr(CostModel, "learn_state", lambda model, n_bytes, ms: learned.append(ms))

    def slow(context: SimContext, *args: object) -> object:
        context._clock.advance(SLOW_MS)
        return move(context, *args)

    monkeypatch.setattr(SimContext, name, slow)
    return learned


@pytest.mark.parametrize("name", ["save", "load", "checkpoint", "restore"])
def test_what_moving_states_takes_is_learned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = slowed(name, monkeypatch)
    kind = Kind.ATTENTION if name in ("save", "load") else Kind.HYBRID
    player = Player(Setup(unified=False, kind=kind, n_slots=1, n_ctx=60, n_batch=64, n_ubatch=64))
    for stem in (0, 1, 0, 0):
        player.play([Submit(stem=stem, n_prompt=45, n_predict=1, borders=(12,))])
    assert max(learned) >= SLOW_MS


def test_what_moving_states_that_failed_took_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = slowed("load", monkeypatch)
    player = Player(Setup(unified=False, n_slots=1, n_ctx=60, bad_loads=frozenset(range(99)), faults=((999, FAILED),)))
    for stem in (0, 1, 0):
        player.play([Submit(stem=stem, n_prompt=45, n_predict=1)])
    assert player.context.n_loads > 0
    assert 0 < max(learned) < SLOW_MS


def test_what_steps_take_is_learned() -> None:
    player = Player(Setup(unified=True, n_slots=1, n_ctx=60))
    player.play([Submit(n_prompt=20, n_predict=5)])
    counters, _ = player.engine.books.metrics.publish()
    assert player.engine.books.cost.n_learned == counters.n_decode > 4


@MEMORIES
@pytest.mark.parametrize("kind", [Kind.ATTENTION, Kind.HYBRID])
@pytest.mark.parametrize("every", [1, 2])
def test_where_there_is_no_memory_for_a_prefix_it_is_not_kept_and_everybody_goes_on(
    unified: bool, kind: Kind, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are checked against what they would be alone."""
    player = Player(Setup(unified, kind, n_slots=2, n_ctx=60, n_batch=64, n_ubatch=64))
    n_tried = count()

    def scarce(save: Callable[..., bytes]) -> Callable[..., bytes]:
        def tried(context: SimContext, row: RowId, start: int = 0) -> bytes:
            if next(n_tried) % every == 0:
                raise MemoryError
            return save(context, row, start) if start else save(context, row)

        return tried

    for name in ("save", "checkpoint"):
        monkeypatch.setattr(SimContext, name, scarce(getattr(SimContext, name)))
    for i in range(6):
        player.submit(Submit(stem=i % 3, n_prompt=30 + i, n_predict=12, n=1 + i % 2, borders=(12,)))
    player.drain()
    assert not player.failed
    assert next(n_tried) > 0


@MEMORIES
def test_s21_a_batch_is_computed_in_pieces_the_memory_takes(unified: bool) -> None:
    player = Player(Setup(unified, n_slots=4, n_ctx=200 if unified else 100, n_batch=8, n_ubatch=4))
    for i in range(4):
        player.submit(Submit(stem=i % 3, n_prompt=40, n_predict=6, tail=(100 + i,)))
    while player.engine.has_work:
        player.step()
        assert player.engine.last_plan.n_tokens <= 8
    player.drain()
    assert len(player.finished) == 4
