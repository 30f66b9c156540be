"""The disk tier over every kind of memory, where RAM has no room for all checkpoints: what a restart costs."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.props.engine_machine import STEMS, Player, Setup, Submit

from corral.engine import disk_worth
from corral.ids import CacheKey, Token
from corral.sim.shape import Kind

KINDS = pytest.mark.parametrize("kind", list(Kind), ids=[kind.name.lower() for kind in Kind])
MODES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
SETUP = Setup(n_slots=2, n_ctx=200, n_spare=2, n_shares=3, n_batch=64, n_ubatch=64, min_step=0, disk_bytes=1 << 30)
BORDERS = (70, 105, 140)
CHAT = STEMS[0][:170]
N_TILE = 28
"""So many tokens of plain memory may be computed again to fill a tile of the kernel."""

RAM = {Kind.ATTENTION: 700, Kind.SLIDING: 400, Kind.RECURRENT: 130, Kind.HYBRID: 130, Kind.SLIDING_HYBRID: 460}
"""Room for about four checkpoints."""


def n_computed(player: Player, prompt: tuple[Token, ...], borders: tuple[int, ...] = BORDERS) -> int:
    """Of a prompt, whose answer the player checks."""
    (task,) = player._submit(Submit(n_predict=3, borders=borders), prompt)
    player.drain()
    return len(prompt) - player.starts[task].n_cached


def crowd(player: Player, n: int = 3) -> None:
    for i in range(n):
        player.submit(Submit(stem=1 + i % 2, n_prompt=150, borders=BORDERS, salt=str(i)))
        player.drain()


@MODES
@KINDS
@pytest.mark.parametrize("n", BORDERS)
def test_after_a_restart_a_conversation_goes_back_to_an_earlier_message(
    tmp_path: Path, kind: Kind, unified: bool, n: int
) -> None:
    """Its checkpoints left RAM long before its row did."""
    setup = replace(SETUP, kind=kind, unified=unified, n_spare=2 * unified, n_shares=3 if unified else 1)
    player = Player(replace(setup, cache_ram_bytes=RAM[kind]), tmp_path)
    n_computed(player, CHAT)
    crowd(player)
    player.restart()
    assert n_computed(player, (*CHAT[:n], *[120] * 20)) <= 20 + (N_TILE if kind is Kind.ATTENTION else 0)


def split(kind: Kind, folder: Path, **fields: int) -> Player:
    setup = replace(SETUP, kind=kind, unified=False, n_spare=0, n_shares=1, cache_ram_bytes=RAM[kind])
    return Player(replace(setup, **fields), folder)


ROWS_WITH_MORE = pytest.mark.parametrize(
    "kind", [Kind.SLIDING, Kind.HYBRID, Kind.SLIDING_HYBRID], ids=["sliding", "hybrid", "sliding-hybrid"]
)


@ROWS_WITH_MORE
def test_all_checkpoints_of_a_conversation_are_written_with_it_and_once(tmp_path: Path, kind: Kind) -> None:
    player = split(kind, tmp_path)
    n_computed(player, CHAT)
    disk, n_shelved = player.engine.books.disk, []
    assert disk is not None
    for i in range(3):  # each needs room for three checkpoints
        player.submit(Submit(stem=1, n_prompt=150, borders=BORDERS, salt=str(i), id_slot=1))
        player.drain()
        n_shelved.append(player.engine.snapshot.counters.n_shelved)
    (entry,) = disk.entries(CacheKey(""))
    assert tuple(n for n, _ in entry.checkpoints) == BORDERS
    assert n_shelved[0] == 1 and not disk.coming
    assert disk.n_entries == n_shelved[-1] == 3


def test_a_checkpoint_that_saves_little_costs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_worth, "MIN_SAVED_MS", 150.0)  # all of it takes longer, the way between two does not
    player = split(Kind.SLIDING, tmp_path)
    n_computed(player, CHAT)
    player.submit(Submit(stem=1, n_prompt=150, borders=BORDERS, id_slot=1))
    player.drain()
    assert player.engine.snapshot.counters.n_shelved == 0
    player.restart()
    assert len(list(tmp_path.iterdir())) == 2


@ROWS_WITH_MORE
def test_a_row_at_work_is_not_written_for_a_checkpoint(tmp_path: Path, kind: Kind) -> None:
    """It will be longer soon, and its file of no use then."""
    player = split(kind, tmp_path, n_slots=1, n_checkpoints=32)
    n_computed(player, CHAT, borders=(20, 40, 60, 80, 100, 120, 140))
    assert player.engine.snapshot.counters.n_shelved == 0


def test_what_a_full_disk_did_not_take_does_not_count_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = split(Kind.SLIDING, tmp_path)
    n_computed(player, CHAT)
    crowd(player)
    counters = player.engine.snapshot.counters
    assert counters.n_written == counters.n_shelved == len(list(tmp_path.glob("*.kv")))

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    crowd(player, 6)
    after = player.engine.snapshot.counters
    assert after.n_shelved > counters.n_shelved
    assert after.n_written == counters.n_written
