"""Who runs when: admission, slots, siblings, and what a step holds. And that planning changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.props.engine_machine import History, Player, Setup, Submit
from tests.props.histories import PATIENT, histories

from corral.engine.books import Books
from corral.engine.plan import Deferral
from corral.engine.policy import plan
from corral.engine.seats import MAX_OVERTAKEN
from corral.engine.state import SlotState
from corral.events import Event
from corral.ids import SlotId, TaskId

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


def order_of_starts(player: Player) -> list[TaskId]:
    player.drain()
    return list(player.starts)


def picture(books: Books) -> object:
    """Everything a plan could have changed, as values."""
    ledger = books.ledger
    return (
        [(row, ledger.tokens(row), ledger.length(row), ledger.is_leased(row)) for row in ledger.rows()],
        [(s, ledger.snapshot_length(s), ledger.snapshot_bytes(s)) for s in ledger.snapshots()],
        (
            ledger.n_used,
            set(ledger._unsettled),
            dict(ledger._used_at),
            dict(ledger.rent_ms),
            ledger._tick,
            ledger._serial,
        ),
        [(s.state, s.lease, s.memory, s.generation and (s.work.computed, list(s.work.tokens))) for s in books.slots],
        [(w.group, w.n_overtaken, w.queued_ms) for w in (*books.waiting, *books.held)],
        (dict(books.shares.served), dict(books.shares.since_ms), dict(books.shares.last)),
        (books.cost.weights, books.next_snapshot, books.n_margin, books.gap_rent_ms, list(books.discarded)),
        (books.turns.current, books.turns.ran_ms, dict(books.turns.served_ms)),
    )


class Doubting(Player):
    """Plans each step twice before it happens."""

    def step(self) -> list[Event]:
        books, now_ms = self.engine.books, self.engine._clock.now_ms()
        before = picture(books)
        first, second = plan(books.view(now_ms)), plan(books.view(now_ms))
        assert picture(books) == before, "planning changed the books"
        events = super().step()
        assert first == second == self.engine.last_plan, "a plan depends on something else than the view"
        return events


@given(st.booleans().flatmap(lambda unified: histories(unified=unified)))
@PATIENT
def test_n10_a_plan_depends_on_the_view_alone_and_changes_nothing(history: History) -> None:
    Doubting(history.setup).play(history.ops)


@MEMORIES
def test_s1_tasks_that_find_no_slot_wait_and_are_served_in_order(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=2))
    ids = [player.submit(Submit(stem=i % 3, n_predict=3))[0] for i in range(7)]
    player.step()
    assert player.engine.snapshot.waiting == tuple(ids[2:])
    assert {player.engine.last_plan.deferrals[i] for i in ids[2:]} == {Deferral.NO_SLOT}
    assert order_of_starts(player) == ids


def test_s7_a_task_that_names_a_busy_slot_waits_for_that_slot() -> None:
    player = Player(Setup(n_slots=2, n_ctx=100))
    player.submit(Submit(n_predict=20, id_slot=0))
    player.step()
    (named,) = player.submit(Submit(stem=1, n_predict=1, id_slot=0))
    player.step()
    assert player.engine.last_plan.deferrals[named] is Deferral.SLOT_BUSY
    assert player.engine.snapshot.slots[1].state is SlotState.IDLE
    player.drain()
    assert player.starts[named].slot_id == 0


def test_s7_when_a_slot_frees_the_task_that_names_it_goes_before_older_ones() -> None:
    player = Player(Setup(n_slots=1, n_ctx=60))
    player.submit(Submit(n_predict=5))
    player.step()
    (older,) = player.submit(Submit(stem=1, n_predict=1))
    (named,) = player.submit(Submit(stem=2, n_predict=1, id_slot=0))
    assert order_of_starts(player)[1:] == [named, older]


def test_s7_nobody_is_overtaken_for_ever_by_tasks_that_name_a_slot() -> None:
    player = Player(Setup(n_slots=1, n_ctx=60))
    player.submit(Submit(n_predict=2))
    player.step()
    (older,) = player.submit(Submit(stem=1, n_predict=1))
    for _ in range(MAX_OVERTAKEN + 10):
        player.submit(Submit(stem=2, n_predict=1, id_slot=0))
    assert order_of_starts(player).index(older) == MAX_OVERTAKEN + 1


@MEMORIES
def test_s8_siblings_are_admitted_together_or_not_at_all(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=3, n_ctx=60))
    player.submit(Submit(n_predict=12, seed=None))
    player.step()
    group = player.submit(Submit(stem=1, n=3, n_predict=4, seed=5))
    player.until(lambda: bool(player.finished))
    assert not set(group) & set(player.starts), "some of them began while one had no slot"
    player.step()
    running = {s.task.id for s in player.engine.snapshot.slots if s.is_processing and s.task}
    assert running == set(group)
    player.drain()


def test_siblings_that_name_a_slot_are_not_starved_by_single_tasks() -> None:
    """Both slots are never idle at once while singles keep coming, unless they give way."""
    player = Player(Setup(n_slots=2, n_ctx=100))
    player.submit(Submit(n_predict=3, id_slot=0))
    player.submit(Submit(n_predict=6, id_slot=1))
    player.step()
    group = player.submit(Submit(stem=1, n=2, id_slot=0, n_predict=2))
    for i in range(60):
        player.submit(Submit(stem=i % 3, n_predict=3 + i % 4))
    player.until(lambda: group[0] in player.starts)
    assert len(player.starts) < 20
    player.drain()


def test_s19_with_continuous_batching_off_prompts_wait_until_nobody_generates() -> None:
    player = Player(Setup(n_slots=2, n_ctx=100, cont_batching=False))
    (first,) = player.submit(Submit(n_predict=12))
    player.until(lambda: first in player.open and bool(player.open[first].tokens))
    (second,) = player.submit(Submit(stem=1, n_predict=2))
    player.until(lambda: first in player.finished)
    assert second not in player.finished
    assert not player.open[second].tokens
    player.drain()
    assert second in player.finished


@MEMORIES
def test_a_task_joins_and_leaves_between_the_passes_of_others(unified: bool) -> None:
    """No batch is made up for longer than one pass."""
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=100))
    (long,) = player.submit(Submit(n_predict=40))
    player.until(lambda: long in player.open and len(player.open[long].tokens) > 2)
    for stem in (1, 2):
        (short,) = player.submit(Submit(stem=stem, n_predict=3))
        player.step()
        assert {s.slot for s in player.engine.last_plan.spans} == {SlotId(0), SlotId(1)}
        player.until(lambda task=short: task in player.finished)  # type: ignore[misc]
    assert long not in player.finished
    player.drain()


@MEMORIES
def test_s19_generating_slots_come_first_and_prompts_get_what_is_left(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=100, n_batch=8, n_ubatch=8, itl_target_ms=1e9))
    (first,) = player.submit(Submit(n_predict=30))
    player.until(lambda: first in player.open and len(player.open[first].tokens) > 2)
    player.submit(Submit(stem=1, n_prompt=60, n_predict=2))
    for _ in range(5):
        player.step()
        sizes = {s.slot: len(s.span.tokens) for s in player.engine.last_plan.spans}
        assert sizes == {SlotId(0): 1, SlotId(1): 7} or sizes == {SlotId(0): 7, SlotId(1): 1}
    player.drain()


def test_a_short_prompt_does_not_wait_for_a_long_one_that_came_just_before() -> None:
    player = Player(Setup(unified=False, n_slots=2, n_ctx=160, n_batch=8, n_ubatch=8))
    (long,) = player.submit(Submit(n_prompt=150, n_predict=1))
    (short,) = player.submit(Submit(stem=1, n_prompt=8, n_predict=1))
    player.until(lambda: short in player.finished)
    assert long in player.open
    player.drain()


def test_s13_a_task_prefers_the_slot_that_last_held_its_prefix() -> None:
    player = Player(Setup(n_slots=3, n_ctx=100))
    for stem in range(3):
        player.submit(Submit(stem=stem, n_prompt=20, n_predict=1))
    player.drain()
    homes = {stem: player.starts[TaskId(stem + 1)].slot_id for stem in range(3)}
    for stem in (2, 0, 1):
        (again,) = player.submit(Submit(stem=stem, n_prompt=24, n_predict=1))
        player.drain()
        assert player.starts[again].slot_id == homes[stem]


def test_s13_without_a_prefix_the_least_recently_used_slot_is_taken() -> None:
    player = Player(Setup(n_slots=3, n_ctx=100))
    for slot in (2, 0, 1):
        player.submit(Submit(stem=0, n_prompt=20, n_predict=1, id_slot=slot))
        player.drain()
    (other,) = player.submit(Submit(stem=1, n_prompt=20, tail=(100,), n_predict=1, salt="other"))
    player.drain()
    assert player.starts[other].slot_id == 2


def test_the_other_half_of_a_step_is_not_planned_twice() -> None:
    """A plan's spans are of different rows, in ascending order, and within the batch."""
    player = Player(Setup(n_slots=4, n_ctx=100, n_spare=2, n_batch=16, n_ubatch=16))
    for i in range(9):
        player.submit(replace(Submit(stem=i % 3, n_prompt=20, n_predict=5), n=1 + i % 2))
    while player.engine.has_work:
        player.step()
        rows = [s.span.row for s in player.engine.last_plan.spans]
        assert rows == sorted(set(rows))
        assert player.engine.last_plan.n_tokens <= 16
    player.drain()
