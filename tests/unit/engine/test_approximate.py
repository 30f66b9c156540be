"""Past the end of the context: what goes on, with what, for whom; and that nobody else is given what was moved."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.props.answers import expected
from tests.props.engine_machine import STEMS, Player, Setup, Steps, Submit

from corral.engine.plan import Shorten
from corral.events import StopReason
from corral.ids import TaskId, Token
from corral.ops import Shift, Trim

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
FULL = Submit(n_prompt=20, n_predict=90, seed=3, ignore_eos=True)
"""More than three contexts of 40 tokens."""


def shorten_ops(player: Player) -> list[type]:
    """Steps to the end; the kinds of op that shortened full contexts."""
    kinds = []
    while player.engine.has_work:
        player.step()
        for action in player.engine.last_plan.actions:
            if isinstance(action.effect, Shorten):
                kinds += [type(op) for op in action.ops]
    return kinds


@MEMORIES
@pytest.mark.parametrize("n_keep", [0, 6, -1])
@pytest.mark.parametrize("n_discard", [0, 3, 99])
def test_s17_a_full_context_goes_on_without_a_piece_of_it(unified: bool, n_keep: int, n_discard: int) -> None:
    """The referee checks the tokens against the oracle of shifts."""
    player = Player(Setup(unified=unified, n_ctx=40, shift=True))
    (task,) = player.submit(replace(FULL, n_keep=n_keep, n_discard=n_discard))
    kinds = shorten_ops(player)
    asked, end = player.finished[task]
    assert set(kinds) == {Shift} and task not in player.inexact
    assert (end.reason, end.truncated, end.timings.n_predicted) == (StopReason.LIMIT, True, 90)
    assert end.n_tokens_cached < 40
    assert end.tokens != expected(asked, 1000)[0][:90], "what was dropped is still seen"
    assert player.engine.snapshot.counters.n_shifted == len(kinds)


@MEMORIES
def test_s17_without_the_flag_a_full_context_ends_the_generation(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_ctx=40)).play([FULL])
    end = player.finished[TaskId(1)][1]
    assert (end.reason, end.truncated, len(end.tokens)) == (StopReason.LIMIT, True, 20)


@MEMORIES
def test_s17_a_task_that_ends_as_its_context_fills_is_not_truncated(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_ctx=40, shift=True)).play([replace(FULL, n_predict=20)])
    end = player.finished[TaskId(1)][1]
    assert (end.truncated, len(end.tokens)) == (False, 20)


@MEMORIES
def test_s17_what_was_moved_is_offered_to_nobody_else(unified: bool) -> None:
    """Not even the kept beginning: its row has left the key. The tokens are those of a cold run."""
    player = Player(Setup(unified=unified, n_slots=1, n_ctx=40, shift=True)).play([FULL])
    left = player.engine.books.slots[0].memory
    assert left is not None and left.is_shifted
    player.play([Submit(n_prompt=20, n_predict=5, seed=3)])
    assert player.starts[TaskId(2)].n_cached == 0


@MEMORIES
def test_s17_a_conversation_goes_on_with_what_was_moved_in_its_slot(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=40, shift=True)).play([FULL])
    (slot,) = [s for s in player.engine.books.slots if s.memory]
    assert slot.memory is not None
    left = tuple(slot.memory.tokens)
    player.play([Submit(stem=1, n_prompt=20, n_predict=1)])
    (other,) = player._submit(Submit(n_predict=3, tenant="b"), (*left, 97))
    player.drain()
    assert player.starts[other].n_cached == 0
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=40, shift=True)).play([FULL])
    (again,) = player._submit(Submit(n_predict=3), (*left, 97))
    player.drain()
    assert player.starts[again].n_cached == len(left)
    assert again in player.inexact


@MEMORIES
def test_s17_when_its_slot_goes_to_another_what_was_moved_is_forgotten(unified: bool) -> None:
    player = Player(Setup(unified=unified, n_slots=1, n_ctx=40, shift=True)).play([FULL])
    player.play([Submit(stem=2, n_prompt=9, n_predict=1), Steps(3)])
    assert player.engine.books.ledger.cache_keys() == {""}


def test_s17_siblings_that_share_what_would_move_compute_it_anew() -> None:
    """llama-server answers them with an error. Cells that others hold never move."""
    player = Player(Setup(n_slots=3, n_ctx=40, n_spare=4, n_shares=4, shift=True))
    tasks = player.submit(replace(FULL, n_prompt=30, n_predict=60, n=3))
    kinds = shorten_ops(player)
    assert Trim in kinds and Shift in kinds
    ends = [player.finished[task][1] for task in tasks]
    assert all(end.truncated and len(end.tokens) == 60 for end in ends)


def test_s17_siblings_that_fill_a_shared_pool_go_on_one_after_the_other() -> None:
    player = Player(Setup(n_slots=3, n_ctx=40, n_spare=4, shift=True))
    tasks = player.submit(replace(FULL, n_prompt=30, n_predict=60, n=3))
    player.drain()
    assert all(len(player.finished[task][1].tokens) == 60 for task in tasks)


@MEMORIES
def test_s17_a_neighbour_does_not_notice(unified: bool) -> None:
    """Its tokens are those of a cold run (the referee), though it shares the beginning of what is moved."""
    player = Player(Setup(unified=unified, n_slots=2, n_ctx=64, n_spare=2, n_shares=3, shift=True))
    player.submit(replace(FULL, n_prompt=40, n_predict=200))
    player.play([Steps(6), Submit(n_prompt=35, n_predict=20), Steps(9), Submit(n_prompt=39, n_predict=4)])
    assert STEMS[0][:35] == player.finished[TaskId(2)][0].prompt
    assert player.starts[TaskId(2)].n_cached == 34


def text(*pieces: tuple[int, int]) -> tuple[Token, ...]:
    """Tokens [i, j) of a text without repeats, for each (i, j)."""
    tokens = Random(5).sample(range(97, 240), 120)
    return tuple(t for i, j in pieces for t in tokens[i:j])


def chunked(unified: bool, n_cache_reuse: int, n_slots: int = 2, **kinds: int) -> tuple[Player, TaskId]:
    """A conversation, then the same without a paragraph in the middle."""
    player = Player(Setup(unified=unified, n_slots=n_slots, n_ctx=150, n_spare=2))
    player._submit(Submit(n_predict=1), text((0, 60)))
    player.drain()
    task, *_ = player._submit(
        Submit(n_predict=4, n_cache_reuse=n_cache_reuse, **kinds), text((0, 20), (30, 60), (70, 75))
    )
    player.drain()
    return player, task


@MEMORIES
def test_s15_what_follows_a_gap_is_moved_instead_of_computed(unified: bool) -> None:
    player, task = chunked(unified, n_cache_reuse=8)
    assert player.starts[task].n_cached == 50
    assert player.finished[task][1].timings.n_prompt == 5


@MEMORIES
@pytest.mark.parametrize("n_cache_reuse", [0, 31])
def test_s15_chunks_that_are_too_small_or_not_asked_for_are_computed(unified: bool, n_cache_reuse: int) -> None:
    """And the answer is that of a cold run (the referee)."""
    player, task = chunked(unified, n_cache_reuse)
    assert player.starts[task].n_cached == 20
    assert task not in player.inexact


@MEMORIES
def test_s15_what_was_moved_serves_its_conversation_and_nobody_else(unified: bool) -> None:
    player, task = chunked(unified, n_cache_reuse=8, n_slots=1)
    prompt = player.finished[task][0].prompt
    (exact,) = player._submit(Submit(n_predict=4), (*prompt, 99))
    player.drain()
    assert player.starts[exact].n_cached == 20
    player, task = chunked(unified, n_cache_reuse=8, n_slots=1)
    (again,) = player._submit(Submit(n_predict=4, n_cache_reuse=8), (*prompt, *player.finished[task][1].tokens, 99))
    player.drain()
    assert player.starts[again].n_cached == len(prompt) + 3


@MEMORIES
def test_s15_siblings_compute_what_they_could_not_share(unified: bool) -> None:
    player, task = chunked(unified, n_cache_reuse=8, n_slots=2, n=2)
    assert player.starts[task].n_cached == 20
    assert task not in player.inexact
