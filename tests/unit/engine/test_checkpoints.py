"""Where prompts pause for checkpoints, and which of them stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.props.engine_machine import STEMS, Player, Setup, Submit
from tests.props.histories import Pin

from corral.config import EngineConfig
from corral.engine.checkpoints import TAIL, positions
from corral.sim.shape import Kind

CONFIG = EngineConfig(min_checkpoint=8, checkpoint_min_step=100)


def test_a_chat_pauses_where_the_last_question_and_the_answer_begin() -> None:
    assert positions(90, [20, 40, 85], CONFIG) == [40, 85]


def test_a_prompt_without_messages_pauses_near_its_end() -> None:
    assert positions(90, [], CONFIG) == [90 - TAIL]


def test_a_long_last_message_pauses_near_the_end_too() -> None:
    assert positions(90 + 200, [20, 90], replace(CONFIG, checkpoint_min_step=1000)) == [20, 90, 290 - TAIL]


def test_earlier_messages_pause_a_step_apart() -> None:
    config = replace(CONFIG, checkpoint_min_step=110)
    assert positions(600, [50, 120, 150, 260, 500, 590], config) == [120, 260, 370, 500, 590]


def test_a_long_prompt_without_messages_pauses_every_step() -> None:
    assert positions(450, [], CONFIG) == [100, 200, 300, 446]


def test_short_beginnings_and_a_limit_of_none_make_no_pause() -> None:
    assert positions(7, [2], CONFIG) == []
    assert positions(500, [100, 490], replace(CONFIG, n_ctx_checkpoints=0)) == []


@given(st.integers(1, 2000), st.lists(st.integers(-5, 2500), max_size=20), st.integers(0, 300), st.integers(1, 40))
def test_positions_ascend_inside_the_prompt(n_prompt: int, borders: list[int], step: int, n_min: int) -> None:
    config = replace(CONFIG, checkpoint_min_step=step, min_checkpoint=n_min)
    found = positions(n_prompt, borders, config)
    assert found == sorted(set(found))
    assert all(n_min <= n < n_prompt for n in found)
    last = [b for b in sorted(set(borders)) if n_min <= b < n_prompt][-2:]
    assert set(last) <= set(found)


@pytest.mark.parametrize("kind", [Kind.SLIDING, Kind.RECURRENT, Kind.HYBRID, Kind.SLIDING_HYBRID])
@pytest.mark.parametrize("what", [Submit(n_prompt_probs=0), Submit(cache_prompt=False)], ids=["shown", "private"])
def test_of_a_prompt_that_nobody_will_meet_nothing_is_kept(kind: Kind, what: Submit) -> None:
    player = Player(Setup(kind=kind))
    player.submit(replace(what, n_prompt=30))
    player.drain()
    assert player.engine.snapshot.counters.n_checkpoints == 0
    assert player.engine.snapshot.n_snapshots == 0


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("kind", [Kind.SLIDING, Kind.RECURRENT, Kind.HYBRID, Kind.SLIDING_HYBRID])
def test_a_path_that_has_all_its_checkpoints_gives_up_one_and_nothing_else(kind: Kind, unified: bool) -> None:
    """Not the rows that are kept as bytes on the way, nor pins."""
    setup = Setup(kind=kind, unified=unified, n_slots=1, n_ctx=100, n_batch=64, n_ubatch=64)
    player = Player(replace(setup, min_step=0, n_checkpoints=2))
    player.operators.ask(Pin(Submit(n_prompt=12)))
    player.drain()
    for n_prompt in (30, 45, 60, 75):
        player.submit(Submit(n_prompt=n_prompt, n_predict=0, borders=(n_prompt - 10,)))
        player.drain()
    ledger = player.engine.books.ledger
    (pin,) = player.engine.books.pins.values()
    assert pin.snapshot in ledger.snapshots()
    marks = [ledger.snapshot_length(s) for s in ledger.cut_points(pin.key, STEMS[0][:75]) if s != pin.snapshot]
    assert 65 in marks and len([n for n in marks if n > 12]) <= 2
