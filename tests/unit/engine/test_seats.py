"""Who takes whose slot: priorities, held tasks, age. A task that left its slot says what it would have said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.props.engine_machine import Player, Setup, Submit

from corral.engine.plan import Deferral
from corral.engine.state import SlotState
from corral.events import Event
from corral.ids import TaskId

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])

LOW = Submit(n_prompt=20, n_predict=30, salt="low", seed=7)
HIGH = Submit(stem=2, n_prompt=40, n_predict=6, priority=1, salt="high")


class Counting(Player):
    """Knows which positions of which task were computed, and when it heard its first token."""

    computed: dict[TaskId, list[int]]
    first_step: dict[TaskId, int]

    def step(self) -> list[Event]:
        if self.n_steps == 0:
            self.computed, self.first_step = {}, {}
        events = super().step()
        for span in self.engine.last_plan.spans:
            task = self.engine.books.slots[span.slot].last_task
            assert task is not None
            positions = range(span.span.pos0, span.span.pos0 + len(span.span.tokens))
            self.computed.setdefault(task.id, []).extend(positions)
        for task_id, heard in self.open.items():
            if heard.tokens:
                self.first_step.setdefault(task_id, self.n_steps)
        return events


def busy_with_low(unified: bool, n_slots: int = 2, **settings: object) -> tuple[Counting, list[TaskId]]:
    """All slots generate for tasks of priority 0."""
    setup = Setup(unified, n_slots=n_slots, n_ctx=400, n_batch=64, n_ubatch=64)
    player = Counting(replace(setup, **settings))  # type: ignore[arg-type]
    low = [player.submit(replace(LOW, stem=i, seed=i))[0] for i in range(n_slots)]
    player.until(lambda: all(len(player.open[task].tokens) >= 3 for task in low))
    return player, low


@MEMORIES
def test_n5_a_higher_priority_gets_a_slot_in_the_next_step_and_its_first_token_within_three(unified: bool) -> None:
    player, low = busy_with_low(unified, itl_target_ms=1000.0)
    (high,) = player.submit(HIGH)
    submitted = player.n_steps
    player.step()
    (place,) = [s for s in player.engine.snapshot.slots if s.task and s.task.id == high]
    assert place.state is not SlotState.IDLE
    assert player.engine.snapshot.held == (low[1],), "the younger of the two goes"
    assert player.engine.snapshot.waiting == ()
    player.until(lambda: high in player.first_step)
    n_prefill = 1  # 40 tokens in a batch of 64
    assert player.first_step[high] <= submitted + n_prefill + 3
    player.drain()
    assert next(iter(player.finished)) == high


@MEMORIES
@pytest.mark.parametrize("n_spare", [0, 3])
def test_n5_a_held_task_goes_on_where_it_was_and_computes_nothing_twice(unified: bool, n_spare: int) -> None:
    """Its text is checked against what it would be alone; it is drawn at random, from a sampler with a state."""
    player, low = busy_with_low(unified, n_slots=1, n_spare=n_spare if unified else 0)
    player.submit(HIGH)
    player.drain()
    assert player.finished[low[0]][1].timings.n_parked == 1
    assert player.engine.snapshot.counters.n_parked == 1
    computed = player.computed[low[0]]
    assert len(computed) == len(set(computed)), "a token was computed a second time"


def test_n5_without_a_place_to_keep_it_a_held_task_is_computed_again() -> None:
    player, low = busy_with_low(False, n_slots=1, cache_ram_bytes=0)
    player.submit(HIGH)
    player.drain()
    assert low[0] in player.finished
    computed = player.computed[low[0]]
    assert len(computed) > len(set(computed))


def test_n5_a_held_task_goes_on_in_whichever_slot_is_idle_first() -> None:
    player, low = busy_with_low(True, n_slots=2)
    first, second = (player.submit(replace(HIGH, stem=i, n_predict=n))[0] for i, n in ((0, 25), (1, 3)))
    player.step()
    held = player.engine.snapshot.held
    assert set(held) == set(low)
    homes = {task: player.starts[task].slot_id for task in (first, second)}
    player.until(lambda: second in player.finished)
    player.step()
    (back,) = [s for s in player.engine.snapshot.slots if s.task and s.task.id in low]
    assert back.id == homes[second]
    assert back.task is not None and back.task.id == low[0], "the older one comes back first"
    player.drain()


@MEMORIES
def test_n5_equal_and_lower_priorities_wait(unified: bool) -> None:
    player, low = busy_with_low(unified)
    for priority in (0, -5):
        (late,) = player.submit(replace(HIGH, priority=priority))
        player.step()
        assert player.engine.snapshot.held == ()
        assert player.engine.last_plan.deferrals[late] is Deferral.NO_SLOT
    player.drain()
    assert set(list(player.finished)[:2]) == set(low)


def test_n5_higher_priorities_pass_lower_ones_in_the_queue_and_equal_ones_keep_their_order() -> None:
    player = Player(Setup(n_slots=1, n_ctx=100))
    player.submit(Submit(n_predict=5, priority=9))
    player.step()
    by_priority = [(0, "a"), (2, "b"), (0, "c"), (2, "d"), (-1, "e")]
    ids = {name: player.submit(Submit(stem=1, n_predict=1, priority=p))[0] for p, name in by_priority}
    player.drain()
    assert list(player.starts)[1:] == [ids[name] for name in "bdace"]


def test_n5_a_group_takes_all_its_slots_or_none() -> None:
    player, low = busy_with_low(True, n_slots=3)
    (equal,) = [player.submit(replace(HIGH, n_predict=12))[0]]
    player.step()
    assert len(player.engine.snapshot.held) == 1
    group = player.submit(replace(HIGH, stem=1, n=3, seed=3))
    player.step()
    assert len(player.engine.snapshot.held) == 1, "two slots would not have been enough"
    player.until(lambda: equal in player.finished)
    player.step()
    assert set(player.engine.snapshot.held) == set(low)
    assert {s.task.id for s in player.engine.snapshot.slots if s.task} == set(group)
    player.drain()


def test_n5_a_higher_priority_that_names_a_slot_takes_that_one() -> None:
    player, low = busy_with_low(True)
    home = player.starts[low[0]].slot_id
    (named,) = player.submit(replace(HIGH, id_slot=home))
    player.step()
    assert player.engine.snapshot.held == (low[0],), "the younger would have gone otherwise"
    player.drain()
    assert player.starts[named].slot_id == home


def test_n5_a_higher_priority_takes_cells_from_a_lower_one() -> None:
    """Slots are there, but the one who runs holds most of the pool."""
    player = Player(Setup(n_slots=2, n_ctx=100, n_spare=2, n_batch=128, n_ubatch=128))
    (low,) = player.submit(replace(LOW, n_prompt=70, n_predict=25))
    player.until(lambda: bool(player.open[low].tokens))
    (equal,) = player.submit(replace(HIGH, priority=0, n_prompt=60))
    player.step()
    assert player.engine.last_plan.deferrals[equal] is Deferral.NO_CELLS
    player.forget(equal)
    (high,) = player.submit(replace(HIGH, n_prompt=60))
    player.until(lambda: high in player.finished)
    assert low in player.open
    player.drain()
    assert player.finished[low][1].timings.n_parked >= 1


def test_n5_chunks_of_higher_priorities_come_first() -> None:
    player = Player(Setup(unified=False, n_slots=2, n_ctx=160, n_batch=8, n_ubatch=8))
    (low,) = player.submit(Submit(n_prompt=20, n_predict=1))
    (high,) = player.submit(Submit(stem=1, n_prompt=150, n_predict=1, priority=1))
    player.until(lambda: high in player.finished)
    assert low in player.open
    player.drain()


def test_n5_under_pressure_the_lowest_priority_is_parked_though_it_is_the_oldest() -> None:
    player = Player(Setup(n_slots=2, n_ctx=64, n_spare=2))
    old, young = (player.submit(Submit(stem=i, n_prompt=10, n_predict=45, priority=i))[0] for i in (0, 1))
    player.drain()
    assert player.finished[young][1].timings.n_parked == 0
    assert player.finished[old][1].timings.n_parked >= 1


def test_n5_nobody_waits_for_a_prompt_that_is_less_urgent() -> None:
    """It would come after everything else, and who waits for it with it."""
    player = Player(Setup(unified=False, n_slots=3, n_ctx=160, n_batch=8, n_ubatch=8, min_shared_prefill=1))
    player.submit(Submit(n_prompt=150, n_predict=1))
    player.step()
    (high,) = player.submit(Submit(n_prompt=60, tail=(100,), n_predict=1, priority=1))
    player.step()
    assert high in player.starts
    player.drain()


# --- held tasks are tasks --------------------------------------------------------------------------------------------


@MEMORIES
def test_n5_a_held_task_can_be_cancelled(unified: bool) -> None:
    player, low = busy_with_low(unified, n_slots=1)
    (high,) = player.submit(HIGH)
    player.step()
    assert player.engine.snapshot.held == (low[0],)
    player.forget(low[0])
    assert player.engine.snapshot.held == ()
    player.drain()
    assert list(player.finished) == [high]
    assert player.engine.snapshot.counters.n_cancelled == 1


def test_n5_a_held_task_fails_with_everybody_when_the_engine_does() -> None:
    player, low = busy_with_low(True, n_slots=1)
    (high,) = player.submit(HIGH)
    player.step()
    ends = player.engine.fail_all(RuntimeError("gone"))  # type: ignore[arg-type]
    assert {end.task_id for end in ends} == {low[0], high}
    assert not player.engine.has_work
    assert not player.engine.books.samplers


def test_n5_what_is_private_to_held_siblings_is_kept_until_the_last_of_them_ends() -> None:
    player = Player(Setup(n_slots=2, n_ctx=100, n_spare=2))
    group = player.submit(replace(LOW, n=2, n_predict=12, cache_prompt=False, stop=""))
    player.until(lambda: all(player.open[task].tokens for task in group))
    player.submit(replace(HIGH, n_predict=20))
    player.step()
    assert len(player.engine.snapshot.held) == 1
    player.drain()  # checks that no private prefix is left
    assert set(group) <= set(player.finished)


def test_n5_what_was_reused_and_is_lost_before_anything_was_computed_is_not_subtracted() -> None:
    """It had begun with 30 tokens of another's, its chunks came later, and then it had to go."""
    player = Player(Setup(False, n_slots=2, n_ctx=200, n_batch=8, n_ubatch=8, cache_ram_bytes=0))
    player.play([Submit(n_prompt=30, n_predict=1)])
    player.submit(Submit(stem=1, n_prompt=150, n_predict=1, priority=1))
    (low,) = player.submit(Submit(n_prompt=60, n_predict=1))
    player.step()
    assert player.starts[low].n_cached == 30
    player.submit(Submit(stem=2, n_prompt=20, n_predict=1, priority=2))
    player.step()
    assert player.engine.snapshot.held == (low,)
    player.drain()
    counters = player.engine.snapshot.counters
    assert counters.n_prompt + counters.n_prompt_cached == 30 + 150 + 60 + 20


# --- age -------------------------------------------------------------------------------------------------------------


@MEMORIES
def test_n5_low_priorities_get_their_turn_under_endless_pressure_from_above(unified: bool) -> None:
    """A stream of urgent tasks that alone would keep the slot busy for ever."""
    player = Player(Setup(unified, n_slots=1, n_ctx=100, n_batch=64, n_ubatch=64, priority_age_ms=300.0))
    player.submit(replace(HIGH, priority=3))
    player.step()
    low = [player.submit(replace(LOW, stem=i, n_predict=5))[0] for i in range(3)]
    n_urgent = 0
    while not set(low) <= set(player.finished):
        if len(player.engine.snapshot.waiting) + len(player.engine.snapshot.held) < 6:
            player.submit(replace(HIGH, stem=n_urgent % 3, priority=3))
            n_urgent += 1
        player.step()
        assert player.n_steps < 2000, "the low ones wait for ever"
    starts = [player.finished[task][1].timings for task in low]
    assert all(t.n_parked == 0 for t in starts), "who got a slot by waiting keeps it"
    assert n_urgent > 6, "the urgent ones went first most of the time"
    player.drain()


def test_n5_one_of_a_priority_that_has_waited_goes_first_and_the_others_wait_again() -> None:
    player = Player(Setup(n_slots=1, n_ctx=100, n_batch=64, n_ubatch=64, priority_age_ms=50.0))
    player.submit(replace(HIGH, stem=1, n_predict=40))
    player.step()
    low = [player.submit(replace(LOW, stem=i, n_predict=20))[0] for i in range(2)]
    high = [player.submit(replace(HIGH, stem=i))[0] for i in range(2)]
    player.drain()
    order = [task for task in player.starts if task in (*low, *high)]
    assert order == [high[0], low[0], high[1], low[1]]
    assert player.finished[low[0]][1].timings.n_parked == 0


@MEMORIES
def test_the_slot_of_a_reply_does_not_tell_what_another_tenant_asked(unified: bool) -> None:
    """It is the one that held the prompt for who asked before, and any for the others."""
    player = Player(Setup(unified, n_slots=4))
    (first,) = player.submit(Submit(n_prompt=30, n_predict=2, tenant="a"))
    player.drain()
    (guess,) = player.submit(Submit(n_prompt=30, n_predict=2, tenant="b"))
    player.drain()
    (again,) = player.submit(Submit(n_prompt=30, n_predict=2, tenant="a"))
    player.drain()
    assert player.starts[guess].slot_id != player.starts[first].slot_id == player.starts[again].slot_id
