"""Pins over every kind of memory: whatever else comes, a prompt that begins with the pinned text computes its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.props.engine_machine import STEMS, Player, Setup, Submit
from tests.props.histories import Pin, Unpin

from corral.engine.checkpoints import TAIL
from corral.ids import TaskId, Token
from corral.sim.shape import Kind
from corral.tasks import CacheAction, TaskKind

KINDS = pytest.mark.parametrize("kind", list(Kind), ids=[kind.name.lower() for kind in Kind])
MODES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
SETUP = Setup(n_slots=2, n_ctx=100, n_spare=0, n_batch=64, n_ubatch=64, min_step=0)
PINNED = STEMS[0][:40]
N_TILE = 28
"""So many tokens of plain memory may be computed again to fill a tile of the kernel."""


def setup_of(kind: Kind, unified: bool = True, n_shares: int = 1) -> Setup:
    """With room in RAM for the pin and not much more: a state has 32 bytes here."""
    ram = n_shares * {Kind.RECURRENT: 130, Kind.SLIDING_HYBRID: 1050}.get(kind, 1000)
    return replace(SETUP, kind=kind, unified=unified, n_shares=n_shares, cache_ram_bytes=ram)


def pinned(kind: Kind, unified: bool, n_shares: int = 1) -> Player:
    player = Player(setup_of(kind, unified, n_shares))
    player.operators.ask(Pin(Submit(n_prompt=len(PINNED))))
    player.drain()
    assert len(player.operators.pins) == 1
    return player


def crowd(player: Player, n: int = 6) -> None:
    """So many others, all different, each nearly as long as a row can be, and the last ones side by side."""
    for i in range(n):
        player.submit(Submit(stem=1, n_prompt=90, tail=(97 + i % 3,) * 80, n_predict=2, salt=str(i)))
        if i < n - 2:
            player.drain()
    player.drain()


def n_computed(player: Player, prompt: tuple[Token, ...]) -> int:
    """Of a prompt under the key of the pin, whose answer the player checks."""
    (task,) = player._submit(Submit(n_predict=3), prompt)
    player.drain()
    return len(prompt) - player.starts[task].n_cached


@MODES
@KINDS
def test_who_begins_with_a_pinned_text_computes_only_the_rest(kind: Kind, unified: bool) -> None:
    player = pinned(kind, unified)
    crowd(player)
    for n_own in (1, 7, 30):
        n = n_computed(player, (*PINNED, *([100 + n_own] * n_own)))
        assert n_own <= n <= n_own + (N_TILE if kind is Kind.ATTENTION else 0)
        crowd(player)


@MODES
@KINDS
def test_the_pinned_text_itself_and_one_whose_last_word_goes_on_compute_a_few_tokens(kind: Kind, unified: bool) -> None:
    player = pinned(kind, unified)
    for prompt in (PINNED, (*PINNED[:-2], 120, 121)):
        crowd(player)
        assert n_computed(player, prompt) <= (N_TILE if kind is Kind.ATTENTION else TAIL)


@MODES
@KINDS
def test_all_that_a_pin_holds_counts_and_goes_with_it(kind: Kind, unified: bool) -> None:
    player = pinned(kind, unified)
    ledger, (pin,) = player.engine.books.ledger, player.engine.books.pins.values()
    assert ledger.pins == set(pin.parts) and len(pin.parts) == 1 + (kind is not Kind.ATTENTION)
    (told,) = player.engine.snapshot.pins
    assert told.n_bytes == sum(map(ledger.snapshot_bytes, pin.parts))
    player.operators.ask(Unpin())
    crowd(player)
    assert not ledger.pins and not {*pin.parts} & {*ledger.snapshots()}


@MODES
@KINDS
def test_pins_share_a_checkpoint_until_the_last_of_them_goes(kind: Kind, unified: bool) -> None:
    """The second one ends a few tokens behind the first."""
    player = pinned(kind, unified, n_shares=2)
    player.operators.ask(Pin(Submit(n_prompt=len(PINNED) + TAIL)))
    player.drain()
    first, second = player.engine.books.pins.values()
    player.operators.ask(Unpin())
    player.drain()
    assert player.engine.books.ledger.pins >= set(second.parts)
    crowd(player, 12)
    assert n_computed(player, (*STEMS[0][: len(PINNED) + TAIL], 120)) <= 1 + (N_TILE if kind is Kind.ATTENTION else 0)
    assert first.key == second.key


def test_a_pin_that_is_given_up_before_the_next_step_is_not_kept() -> None:
    """Its prompt is there: nothing else would keep it from being pinned."""
    player = Player(setup_of(Kind.ATTENTION))
    (computed,) = player.submit(Submit(n_prompt=len(PINNED), n_predict=0))
    player.drain()
    action = CacheAction(player.new_id(), TaskKind.CACHE_PIN, task=player.finished[computed][0])
    player.engine.act(action)
    player.engine.cancel([action.id])
    player.engine.step()
    assert not player.engine.books.pins


@KINDS
def test_pins_fill_half_of_the_ram_tier_and_no_more(kind: Kind) -> None:
    player = Player(setup_of(kind, n_shares=3))
    for i in range(8):
        player.operators.ask(Pin(Submit(stem=i % 3, n_prompt=12, tail=(97 + i,) * 10)))
        player.drain()
    pinned_bytes = sum(pin.n_bytes for pin in player.engine.snapshot.pins)
    assert 0 < pinned_bytes <= player.setup.cache_ram_bytes / 2 + 8 * 20
    assert TaskId(1) in player.finished


@MODES
@KINDS
def test_who_waits_for_the_prompt_does_not_take_its_row_away_before_it_is_pinned(kind: Kind, unified: bool) -> None:
    """A row that ends where the pinned text does is just what others that begin with it go on with."""
    player = Player(setup_of(kind, unified))
    player.operators.ask(Pin(Submit(n_prompt=len(PINNED))))
    for i in range(4):
        player.submit(Submit(n_prompt=len(PINNED) + 5, tail=(110 + i,) * 5))
    player.drain()
    assert len(player.operators.pins) == 1
