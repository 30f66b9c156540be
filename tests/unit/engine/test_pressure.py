"""When room is short: what goes first, who is parked, and that everyone still gets the whole answer."""

from __future__ import annotations

import pytest
from tests.props.engine_machine import Player, Setup, Submit

from corral.engine.plan import Evict, Park, Relocate
from corral.engine.pressure import MIN_KEPT_TOKENS
from corral.engine.state import SlotState
from corral.ids import TaskId
from corral.ops import Save

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


def kept(player: Player) -> list[str]:
    return [slot.kept for slot in player.engine.snapshot.slots]


@MEMORIES
def test_s27_the_least_recently_used_conversation_goes_to_ram_and_comes_back(unified: bool) -> None:
    n_slots = 3 if unified else 2
    player = Player(Setup(unified=unified, n_slots=n_slots, n_ctx=100))
    for stem in range(3):  # the third has room only where the first was
        player.submit(Submit(stem=stem, n_prompt=45, n_predict=1))
        player.drain()
    rows = [list(player.engine.books.ledger.tokens(row)) for row in player.engine.books.ledger.rows()]
    first, third = (list(player.finished[TaskId(i)][0].prompt) for i in (1, 3))
    assert first not in rows
    assert third in rows
    (again,) = player.submit(Submit(stem=0, n_prompt=48, n_predict=1))
    player.drain()
    assert player.starts[again].n_cached == 45
    assert player.engine.snapshot.counters.n_loaded >= 1


def test_s27_of_idle_conversations_the_one_used_longest_ago_goes_first() -> None:
    player = Player(Setup(unified=True, n_slots=1, n_ctx=100, n_spare=3, cache_ram_bytes=0))

    def n_cached(stem: int) -> int:
        (task,) = player.submit(Submit(stem=stem, n_prompt=35, n_predict=1))
        player.drain()
        return player.starts[task].n_cached

    for stem in (0, 1, 0, 2):  # the last has room only where another was
        n_cached(stem)
    assert n_cached(0) == 34
    assert n_cached(1) < 5


@MEMORIES
def test_s27_without_a_ram_tier_what_is_evicted_is_gone(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=1, n_ctx=60, cache_ram_bytes=0))
    player.play([Submit(stem=0, n_prompt=45, n_predict=1)]).play([Submit(stem=1, n_prompt=45, n_predict=1)])
    player.play([Submit(stem=0, n_prompt=45, n_predict=1)])
    assert player.starts[TaskId(3)].n_cached < 5
    assert player.engine.snapshot.n_snapshots == 0


def test_conversations_too_short_to_matter_are_not_kept_in_ram() -> None:
    player = Player(Setup(unified=False, n_slots=1, n_ctx=60))
    player.play([Submit(stem=0, n_prompt=MIN_KEPT_TOKENS - 2, n_predict=1)])
    player.play([Submit(stem=1, n_prompt=45, n_predict=1)])
    assert player.engine.snapshot.counters.n_saved == 0


@MEMORIES
def test_the_ram_tier_keeps_its_budget_and_forgets_the_oldest(unified: bool) -> None:
    limit = 1000  # two conversations of 45 tokens of 8 bytes
    player = Player(Setup(unified=unified, n_slots=1, n_ctx=60, cache_ram_bytes=limit))
    for stem in (0, 1, 2, 1):
        player.play([Submit(stem=stem, n_prompt=45, n_predict=1, salt=f"tenant {stem}")])
        assert player.engine.snapshot.snapshot_bytes <= limit
    player.play([Submit(stem=2, n_prompt=45, n_predict=1, salt="tenant 2")])
    assert player.starts[TaskId(5)].n_cached == 44
    player.play([Submit(stem=0, n_prompt=45, n_predict=1, salt="tenant 0")])
    assert player.starts[TaskId(6)].n_cached == 0


@MEMORIES
def test_s27_the_ram_tier_keeps_those_used_last(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=1, n_ctx=60, cache_ram_bytes=1000))  # two conversations, as above
    for tenant in "0123":
        player.play([Submit(n_prompt=45, n_predict=1, salt=tenant)])
    player.play([Submit(n_prompt=45, n_predict=1, salt="1")])
    assert player.starts[TaskId(5)].n_cached == 44


@MEMORIES
def test_what_is_about_to_be_loaded_does_not_make_room_for_what_has_to_leave(unified: bool) -> None:
    """llama.cpp#22756: two conversations take turns on one row, and RAM has room for one."""
    player = Player(Setup(unified=unified, n_slots=1, n_ctx=60, cache_ram_bytes=500))
    for stem in (0, 1, 0):
        player.play([Submit(stem=stem, n_prompt=45, n_predict=1, salt=f"tenant {stem}")])
    assert player.starts[TaskId(3)].n_cached == 44


def test_s27_when_running_tasks_outgrow_the_cache_the_youngest_is_parked_and_resumes() -> None:
    """Each fits alone; the two do not. The older is never disturbed, and both answers are whole."""
    player = Player(Setup(unified=True, n_slots=2, n_ctx=64, n_spare=2))
    old, young = (player.submit(Submit(stem=i, n_prompt=10, n_predict=45))[0] for i in (0, 1))
    player.until(lambda: any(s.state is SlotState.PARKED for s in player.engine.snapshot.slots))
    parked = [s.task.id for s in player.engine.snapshot.slots if s.state is SlotState.PARKED and s.task]
    assert parked == [young]
    text = player.open[young].text
    player.drain()
    assert list(player.finished) == [old, young]
    assert player.finished[young][1].text.startswith(text)
    assert player.finished[young][1].timings.n_parked >= 1
    assert player.finished[old][1].timings.n_parked == 0


def test_a_parked_task_does_not_compute_its_prompt_again() -> None:
    player = Player(Setup(unified=True, n_slots=2, n_ctx=64, n_spare=2))
    _, young = (player.submit(Submit(stem=i, n_prompt=20, n_predict=25))[0] for i in (0, 1))
    player.until(lambda: player.engine.snapshot.counters.n_parked > 0)
    player.drain()
    assert player.engine.snapshot.counters.n_prompt == 40
    assert player.finished[young][1].timings.n_prompt == 20


def test_n2_a_leader_that_is_parked_does_not_leave_the_others_waiting() -> None:
    """The oldest generates until the cache is full, while another computes what a third waits for."""
    player = Player(Setup(unified=True, n_slots=3, n_ctx=100, n_spare=3, n_batch=4, n_ubatch=4, itl_target_ms=1.0))
    player.submit(Submit(stem=0, n_prompt=30, n_predict=60))
    player.until(lambda: bool(player.starts) and bool(player.open[TaskId(1)].tokens))
    player.submit(Submit(stem=1, n_prompt=50, n_predict=2))
    player.submit(Submit(stem=1, n_prompt=50, tail=(100,), n_predict=2))
    player.drain()
    assert len(player.finished) == 3


def test_s27_n6_running_tasks_are_not_sacrificed_for_new_ones() -> None:
    player = Player(Setup(unified=True, n_slots=4, n_ctx=64, n_spare=4))
    (running,) = player.submit(Submit(n_prompt=20, n_predict=40))
    player.until(lambda: running in player.open and bool(player.open[running].tokens))
    for stem in (1, 2, 1):
        player.submit(Submit(stem=stem, n_prompt=40, n_predict=5))
    player.until(lambda: running in player.finished)
    assert player.finished[running][1].timings.n_parked == 0
    assert player.engine.snapshot.counters.n_parked == 0, "one that does not fit beside it waits, and is not begun"
    player.drain()
    assert len(player.finished) == 4


@MEMORIES
def test_s27_only_what_cannot_fit_alone_is_refused(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=3, n_ctx=50))
    fits = [player.submit(Submit(stem=i, n_prompt=49, n_predict=-1))[0] for i in range(3)]
    (too_long,) = player.submit(Submit(n_prompt=50))
    player.drain()
    assert set(player.finished) == set(fits)
    assert set(player.failed) == {too_long}


def test_a_cold_row_that_has_cost_more_than_the_way_to_ram_goes_there() -> None:
    """On unified KV every step scans it."""
    player = Player(Setup(unified=True, n_slots=1, n_ctx=160, n_spare=2)).play([Submit(n_prompt=60, n_predict=1)])
    assert kept(player) == ["row 0"]
    player.submit(Submit(stem=1, n_prompt=20, n_predict=60))
    player.until(lambda: player.engine.snapshot.n_snapshots == 1)
    assert player.engine.snapshot.n_used < 160 - 60, "nobody was short of cells"
    player.drain()
    (again,) = player.submit(Submit(n_prompt=60, n_predict=1))
    player.drain()
    assert player.starts[again].n_cached == 59


def test_a_gap_between_busy_rows_is_closed_once_it_has_cost_as_much_as_the_move() -> None:
    """On split KV rows that are not neighbours are computed one after the other."""
    player = Player(Setup(unified=False, n_slots=3, n_ctx=100))
    ids = [player.submit(Submit(stem=i, n_prompt=10, n_predict=n, id_slot=i))[0] for i, n in enumerate((60, 60, 60))]
    player.until(lambda: len(player.starts) == 3 and all(player.open[i].tokens for i in ids))
    rows = {s.id: s.row for s in player.engine.books.slots}
    middle = next(s for s, row in rows.items() if row == 1)
    task = player.engine.books.slots[middle].work.task.id
    player.forget(task)
    moves: list[Relocate] = []
    while player.engine.has_work:
        player.step()
        moves += [a.effect for a in player.engine.last_plan.actions if isinstance(a.effect, Relocate)]
    assert len(moves) == 1
    assert moves[0].row == 1
    player.drain()


def test_evictions_are_told_apart_by_what_is_kept() -> None:
    player = Player(Setup(unified=False, n_slots=1, n_ctx=60)).play([Submit(n_prompt=45, n_predict=1)])
    player.submit(Submit(stem=1, n_prompt=45, n_predict=1))
    player.step()
    effects = [a.effect for a in player.engine.last_plan.actions]
    assert Evict(kept=True) in effects
    assert any(isinstance(op, Save) for a in player.engine.last_plan.actions for op in a.ops)
    assert not any(isinstance(effect, Park) for effect in effects)
    assert player.engine.snapshot.counters.n_evicted == 0
    player.drain()


def test_n6_a_margin_that_leaves_nothing_parks_the_youngest_prompt_and_not_everyone() -> None:
    """The younger prompt is shorter and so comes first; the older holds the cells. Neither may wait for the other."""
    player = Player(Setup(n_slots=2, n_ctx=64, n_batch=8, n_ubatch=8))
    for stem, n_prompt in ((0, 60), (1, 20)):
        player.submit(Submit(stem=stem, n_prompt=n_prompt, n_predict=1))
        player.step()
    books = player.engine.books
    books.n_margin = books.traits.n_cells - books.ledger.n_used
    player.drain()
    assert len(player.finished) == 2


def test_cold_rows_that_a_step_would_pay_dearly_for_leave_before_it() -> None:
    """A long prompt is computed beside idle conversations: each of its tokens would scan all of them."""
    player = Player(Setup(n_slots=4, n_ctx=1000, n_spare=6, n_batch=512, n_ubatch=512, n_shares=1))
    for i in range(4):
        player.submit(Submit(stem=i % 3, n_prompt=40, tail=(97 + i % 3,) * 4, n_predict=2))
        player.until(lambda n=i + 1: len(player.finished) == n)
    ledger = player.engine.books.ledger
    player.engine.books.cost.weights = player.engine.books.cost.weights._replace(masked=1.0)
    assert len(ledger.cold_rows()) >= 2
    player.submit(Submit(stem=0, n_prompt=400, n_predict=2, salt="other"))
    player.step()
    assert not player.engine.books.ledger.cold_rows()
    player.drain()
