"""Nobody computes twice what somebody has: reuse, forks, shared prompts; and never the last token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.props.engine_machine import STEMS, Player, Reply, Setup, Submit
from tests.props.histories import PATIENT, ops

from corral.engine.ledger import Tier
from corral.engine.plan import Begin, Deferral
from corral.engine.radix import common_prefix
from corral.engine.reuse import n_runs
from corral.engine.slot import prefix_key
from corral.engine.state import SlotState
from corral.events import Event, Started
from corral.ids import RowId, TaskId
from corral.ops import Copy, Load, Save
from corral.tasks import Task

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


def n_cached(player: Player, task: TaskId) -> int:
    return player.drain().starts[task].n_cached


def n_computed(player: Player) -> int:
    """Prompt tokens that went through a forward pass so far."""
    return player.engine.snapshot.counters.n_prompt


def state_of(player: Player, task: TaskId) -> SlotState | None:
    return next(
        (s.state for s in player.engine.snapshot.slots if s.is_processing and s.task and s.task.id == task), None
    )


@MEMORIES
@pytest.mark.parametrize("n_prompt", [1, 2, 20, 50])
def test_s14_s20_a_repeated_prompt_computes_its_last_token_only(unified: bool, n_prompt: int) -> None:
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=100)).play([Submit(n_prompt=n_prompt, n_predict=3)])
    (again,) = player.submit(Submit(n_prompt=n_prompt, n_predict=3))
    assert n_cached(player, again) == n_prompt - 1


@MEMORIES
def test_s14_a_longer_prompt_computes_what_is_new(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=100)).play([Submit(n_prompt=30, n_predict=1)])
    (longer,) = player.submit(Submit(n_prompt=50, n_predict=1))
    assert n_cached(player, longer) == 30


class Thrifty(Player):
    """One slot: whoever begins gets the longest prefix that a row, or on split KV anything, holds."""

    def step(self) -> list[Event]:
        best = {w.group[0].id: self.longest(w.group[0]) for w in self.engine.books.waiting}
        events = super().step()
        for start in (e for e in events if isinstance(e, Started) and e.task_id in best):
            assert start.n_cached >= best[start.task_id], f"{start}, but {best[start.task_id]} tokens were there"
        return events

    def longest(self, task: Task) -> int:
        levels = self.engine.books.ledger.match(prefix_key(task), list(task.prompt[:-1]))
        near = [v for v in levels if not self.setup.unified or any(h.tier is Tier.ROW for h in v.holders)]
        return near[-1].n if near else 0


@given(unified=st.booleans(), data=st.data())
@PATIENT
def test_s14_the_longest_prefix_there_is_is_reused(unified: bool, data: st.DataObject) -> None:
    setup = Setup(unified=unified, n_slots=1, n_ctx=64, n_spare=3)
    Thrifty(setup).play(data.draw(st.lists(ops(setup), min_size=4, max_size=24)))


@MEMORIES
def test_s12_a_released_slot_leaves_its_conversation_in_the_cache(unified: bool) -> None:
    """The next turn finds the prompt and the whole answer but its last token, which was never computed."""
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=100)).play([Submit(n_prompt=30, n_predict=10)])
    _, answer = player.finished[TaskId(1)]
    player.reply(Reply(tail=(97, 98, 99)))
    assert n_cached(player, TaskId(2)) == 30 + len(answer.tokens) - 1


@MEMORIES
def test_s12_an_idle_slot_still_shows_what_it_last_held(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=1, n_ctx=100)).play([Submit(n_prompt=30, n_predict=4)])
    (slot,) = player.engine.snapshot.slots
    assert slot.n_tokens == 33
    assert slot.kept == "row 0"


@MEMORIES
def test_a_conversation_moves_to_whichever_slot_it_names(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=100)).play([Submit(n_prompt=30, n_predict=1, id_slot=0)])
    (other,) = player.submit(Submit(n_prompt=40, n_predict=1, id_slot=1))
    assert n_cached(player, other) == 30
    assert player.starts[other].slot_id == 1


@MEMORIES
def test_without_cache_prompt_nothing_is_reused_and_nothing_left(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=1, n_ctx=100)).play([Submit(n_prompt=30, n_predict=1)])
    (private,) = player.submit(Submit(n_prompt=30, n_predict=1, cache_prompt=False))
    assert n_cached(player, private) == 0
    (longer,) = player.submit(Submit(n_prompt=30, tail=(100, 101), n_predict=1, cache_prompt=False))
    assert n_cached(player, longer) == 0


@MEMORIES
def test_n7_tenants_do_not_find_each_others_prefixes(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=100)).play([Submit(n_prompt=30, n_predict=1)])
    (stranger,) = player.submit(Submit(n_prompt=30, n_predict=1, salt="other"))
    assert n_cached(player, stranger) == 0
    (friend,) = player.submit(Submit(n_prompt=30, n_predict=1, salt="other"))
    assert n_cached(player, friend) == 29


def test_n1_on_unified_kv_a_fork_from_a_busy_row_shares_its_cells() -> None:
    player = Player(Setup(unified=True, n_slots=2, n_ctx=100, n_spare=2))
    (busy,) = player.submit(Submit(n_prompt=40, n_predict=20))
    player.until(lambda: busy in player.open and len(player.open[busy].tokens) > 3)
    player.submit(Submit(n_prompt=30, tail=(100, 101, 102), n_predict=5))
    n_before = player.engine.snapshot.n_used
    player.step()
    ((n_reused, begun_by),) = [
        (a.effect.n_reused, a.ops) for a in player.engine.last_plan.actions if isinstance(a.effect, Begin)
    ]
    assert [type(op) for op in begun_by] == [Copy]
    assert n_reused == 27
    assert player.engine.snapshot.n_used - n_before == 1 + 3, "shared cells were taken a second time"
    player.drain()


@pytest.mark.parametrize("cache_ram_bytes", [-1, 0])
def test_n1_on_split_kv_a_fork_from_a_busy_row_travels_as_bytes(cache_ram_bytes: int) -> None:
    player = Player(Setup(unified=False, n_slots=2, n_ctx=100, cache_ram_bytes=cache_ram_bytes))
    (busy,) = player.submit(Submit(n_prompt=40, n_predict=20))
    player.until(lambda: busy in player.open and len(player.open[busy].tokens) > 3)
    (fork,) = player.submit(Submit(n_prompt=30, tail=(100, 101, 102), n_predict=5))
    player.step()
    done = [type(op) for action in player.engine.last_plan.actions for op in action.ops]
    assert Save in done
    assert Load in done
    assert n_cached(player, fork) == 27
    assert cache_ram_bytes or not player.engine.snapshot.n_snapshots, "bytes in a tier that is switched off"


@MEMORIES
def test_n2_prompts_that_arrive_together_share_one_prefill(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=4, n_ctx=200 if unified else 100, n_spare=4, min_shared_prefill=1))
    tails = [(100 + i, 101, 102) for i in range(4)]
    ids = [player.submit(Submit(n_prompt=60, tail=tail, n_predict=4))[0] for tail in tails]
    player.step()
    assert [state_of(player, i) for i in ids[1:]] == [SlotState.WAIT_OTHER] * 3
    player.drain()
    assert n_computed(player) == 57 + 4 * 3


@MEMORIES
def test_n2_when_the_one_who_computes_is_cancelled_another_takes_over(unified: bool) -> None:
    n_ctx = 200 if unified else 100
    player = Player(Setup(unified, n_slots=3, n_ctx=n_ctx, n_spare=3, n_batch=8, min_shared_prefill=1))
    leader, second, third = (player.submit(Submit(n_prompt=60, tail=(t,), n_predict=4))[0] for t in (100, 101, 102))
    for _ in range(3):
        player.step()
    n_before = n_computed(player)
    assert 0 < n_before < 60
    player.forget(leader)
    player.step()
    assert state_of(player, second) is SlotState.PROCESSING_PROMPT
    assert state_of(player, third) is SlotState.WAIT_OTHER
    player.drain()
    assert n_computed(player) == 59 + 2, "what the cancelled one had computed was computed again"


def test_n2_short_common_beginnings_are_not_waited_for() -> None:
    player = Player(Setup(n_slots=2, n_ctx=200, min_shared_prefill=32))
    a, b = (player.submit(Submit(n_prompt=30, tail=(t,), n_predict=4))[0] for t in (100, 101))
    player.step()
    assert state_of(player, a) is state_of(player, b) is SlotState.PROCESSING_PROMPT
    player.drain()


@MEMORIES
def test_s8_s24_siblings_compute_the_prompt_once_and_go_their_own_ways(unified: bool) -> None:
    setup = Setup(unified=unified, n_slots=4, n_ctx=200 if unified else 60, n_spare=4)
    player = Player(replace(setup, min_shared_prefill=64))  # others would not wait for so few tokens
    ids = player.submit(Submit(n_prompt=40, n=4, n_predict=12, seed=3))
    player.until(lambda: ids[0] in player.starts and bool(player.open[ids[0]].tokens))
    assert list(player.starts) == ids, "siblings draw their first token from the parent's logits, in the same step"
    player.drain()
    assert n_computed(player) == 40
    assert len({player.finished[i][1].tokens for i in ids}) == 4


@MEMORIES
def test_s24_when_the_parent_is_cancelled_a_sibling_computes_the_prompt(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=3, n_ctx=200 if unified else 60, n_spare=3, n_batch=8))
    ids = player.submit(Submit(n_prompt=40, n=3, n_predict=6, seed=3))
    for _ in range(3):
        player.step()
    player.forget(ids[0])
    player.drain()
    assert set(player.finished) == set(ids[1:])
    assert n_computed(player) == 40


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [((1, 2, 3), [1, 2, 3], 3), ([1, 2, 3, 4], (1, 2, 9, 4), 2), ((), [1], 0), ([5], (6,), 0), ((1, 2), (1, 2, 3), 2)],
)
def test_the_common_prefix_of_a_list_and_a_tuple_is_found(a: tuple[int, ...], b: list[int], n: int) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == n


def test_runs_of_consecutive_rows_are_counted() -> None:
    assert n_runs([]) == 0
    assert n_runs([RowId(2), RowId(1), RowId(0)]) == 1
    assert n_runs([RowId(0), RowId(2), RowId(3), RowId(5)]) == 3


def test_the_stems_of_these_tests_part_early() -> None:
    assert max(common_prefix(STEMS[0], STEMS[i]) for i in (1, 2)) < 5


@MEMORIES
@pytest.mark.parametrize("shared_cache", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_n7_tenants_do_not_wait_for_each_others_prompts_unless_they_share(
    unified: bool, shared_cache: bool, is_late: bool
) -> None:
    """Waiting would tell as much as reusing: that somebody else is asking the same."""
    setup = Setup(unified, n_slots=2, n_ctx=300, n_spare=2, n_batch=16, n_ubatch=16, min_shared_prefill=8)
    player = Player(replace(setup, shared_cache=shared_cache))
    tasks = player.submit(Submit(n_prompt=100, n_predict=1, tenant="a"))
    if is_late:
        player.step()
    tasks += player.submit(Submit(n_prompt=100, n_predict=1, tenant="b"))
    player.step()
    deferral = player.engine.last_plan.deferrals.get(tasks[1])
    assert (deferral is Deferral.OTHER_PROMPT) == shared_cache
    player.drain()
    assert (player.starts[tasks[1]].n_cached > 0) == shared_cache
