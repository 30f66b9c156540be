"""Conversations over restarts with a disk tier whose files come to harm: no wrong token, no crash, never."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.props.answers import Cell
from tests.props.engine_machine import Player, Reply, Setup, Submit
from tests.props.harms import spoil

from corral.engine import disk_tier
from corral.engine.state import SlotState
from corral.events import Event, Failed, SlotDone
from corral.ids import CacheKey, SlotId, TaskId
from corral.sim.shape import Kind
from corral.tasks import SlotAction, TaskKind

LONG = os.environ.get("CORRAL_LONG") == "1"
MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
KINDS = pytest.mark.parametrize("kind", list(Kind), ids=[kind.name.lower() for kind in Kind])
SETUP = Setup(n_slots=2, n_ctx=100, n_batch=64, n_ubatch=64, cache_ram_bytes=500)
Kept = dict[CacheKey, list[list[Cell]]]


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes' files are seen at once."""
    monkeypatch.setattr(disk_tier, "RESCAN_S", 0.0)


def start(folder: Path, setup: Setup = SETUP, kept: Kept | None = None, budget: int = 1 << 30) -> Player:
    return Player(replace(setup, disk_bytes=budget), folder, kept=kept if kept is not None else {})


def stop(player: Player) -> None:
    assert not player.open
    player.stop()


def talk(player: Player, stem: int, n_prompt: int = 60, key: str = "") -> int:
    """One request; how many tokens of its prompt were there already."""
    (task,) = player.submit(Submit(stem=stem, n_prompt=n_prompt, n_predict=4, salt=key))
    player.drain()
    return player.starts[task].n_cached


@MEMORIES
@KINDS
@pytest.mark.parametrize("ram", [0, 500, -1])
def test_after_a_restart_conversations_go_on_from_disk(tmp_path: Path, kind: Kind, unified: bool, ram: int) -> None:
    setup = replace(SETUP, unified=unified, kind=kind, cache_ram_bytes=ram, n_checkpoints=8)
    first = start(tmp_path, setup)
    for stem in range(3):
        assert talk(first, stem) < 5
    stop(first)
    second = start(tmp_path, setup, first.kept)
    has_room = ram < 0 or (ram > 0 and kind is not Kind.RECURRENT)  # states of less than 64 tokens are let go
    for stem in range(3):
        n_cached = talk(second, stem, 80)
        # without room in RAM for checkpoints the row goes on only where it ended
        assert n_cached >= (60 if kind is Kind.ATTENTION else 56 if has_room else 0)
    if kind is Kind.ATTENTION or has_room:
        assert second.engine.snapshot.counters.n_fetched == 3
        assert second.engine.snapshot.counters.n_prompt <= 3 * 24


@MEMORIES
@KINDS
@pytest.mark.parametrize("ram", [0, 500, -1])
def test_the_next_turn_goes_on_where_the_last_one_ended(tmp_path: Path, kind: Kind, unified: bool, ram: int) -> None:
    setup = replace(SETUP, unified=unified, kind=kind, cache_ram_bytes=ram)
    first = start(tmp_path, setup)
    talk(first, 0)
    stop(first)
    second = start(tmp_path, setup, first.kept)
    second.finished, second.n_tasks = first.finished, first.n_tasks
    second.reply(Reply(tail=(97, 98)))
    second.drain()
    assert second.engine.snapshot.counters.n_fetched == 1
    assert second.engine.snapshot.counters.n_prompt <= 3


@MEMORIES
def test_who_comes_with_one_that_waits_for_the_disk_begins_with_it(tmp_path: Path, unified: bool) -> None:
    """One that began at once would be computed alone, and each later one beside it."""
    setup = replace(SETUP, unified=unified, n_ctx=200)
    first = start(tmp_path, setup)
    talk(first, 0)
    stop(first)
    second = start(tmp_path, setup, first.kept)
    tasks = [second.submit(Submit(stem=stem, n_prompt=70, n_predict=4))[0] for stem in (1, 0)]
    second.until(lambda: bool(second.starts))
    assert set(second.starts) == set(tasks)
    second.drain()


@MEMORIES
def test_what_leaves_ram_comes_back_from_disk_without_a_restart(tmp_path: Path, unified: bool) -> None:
    player = start(tmp_path, replace(SETUP, unified=unified, n_slots=1))
    for turn in range(2):
        for stem in range(3):
            n_cached = talk(player, stem, 60 + 10 * turn, key=f"user {stem}")
            assert n_cached >= 60 * turn
    assert player.engine.snapshot.counters.n_shelved >= 1
    assert player.engine.snapshot.counters.n_fetched >= 1
    assert player.engine.snapshot.n_disk >= 1


def test_the_slot_says_where_its_prefix_is(tmp_path: Path) -> None:
    player = start(tmp_path, replace(SETUP, n_slots=2, cache_ram_bytes=0))
    player.submit(Submit(stem=0, n_prompt=60, n_predict=4, id_slot=0))
    player.drain()
    for stem in (1, 2):
        player.submit(Submit(stem=stem, n_prompt=80, n_predict=4, id_slot=1))
        player.drain()
    assert player.engine.snapshot.slots[0].kept == "disk"
    assert player.engine.snapshot.slots[0].n_tokens >= 60


@KINDS
@pytest.mark.parametrize("harm", [None, "gone"])
def test_a_slot_whose_prefix_is_on_disk_is_fetched_and_saved(tmp_path: Path, kind: Kind, harm: str | None) -> None:
    player = start(tmp_path, replace(SETUP, kind=kind, n_slots=2, cache_ram_bytes=0))
    player.submit(Submit(stem=0, n_prompt=60, n_predict=4, id_slot=0))
    player.drain()
    for stem in (1, 2):
        for slot in (1, 1):
            player.submit(Submit(stem=stem, n_prompt=80, n_predict=4, id_slot=slot, salt=str(stem)))
            player.drain()
    assert player.engine.snapshot.slots[0].kept == "disk"
    if harm:
        for path in tmp_path.iterdir():
            path.unlink()
    player.engine.act(SlotAction(TaskId(1000), TaskKind.SLOT_SAVE, SlotId(0)))
    events: list[Event] = []
    while player.engine.has_work:
        events += player.engine.step()
    (end,) = events
    if harm:
        assert isinstance(end, Failed)
        assert "are not kept any more" in str(end.error)
    else:
        assert isinstance(end, SlotDone)
        assert end.n_tokens == 63
    assert not player.engine.books.disk or not player.engine.books.disk.askers


def test_each_turn_of_a_conversation_replaces_the_turn_before(tmp_path: Path) -> None:
    kept: Kept = {}
    for n_prompt in (50, 60, 70, 80):
        player = start(tmp_path, kept=kept)
        player.submit(Submit(stem=0, n_prompt=n_prompt, n_predict=0))
        stop(player.drain())
        assert len(os.listdir(tmp_path)) == 1


def test_n7_keys_do_not_meet_on_disk(tmp_path: Path) -> None:
    first = start(tmp_path)
    talk(first, 0, key="ann")
    stop(first)
    second = start(tmp_path, kept=first.kept)
    assert talk(second, 0, key="bob") == 0
    assert talk(second, 0, key="ann") == 59
    assert talk(second, 0) == 0


def test_what_is_private_never_gets_there(tmp_path: Path) -> None:
    player = start(tmp_path)
    player.submit(Submit(stem=0, n_prompt=60, n_predict=4, cache_prompt=False))
    player.drain()
    stop(player)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [TaskKind.EMBEDDING, TaskKind.RERANK])
def test_only_prompts_of_generation_have_prefixes(kind: TaskKind) -> None:
    from corral.engine.slot import PRIVATE, prefix_key
    from corral.tasks import Task

    assert prefix_key(Task(TaskId(1), (1, 2), kind=kind)).startswith(PRIVATE)
    assert not prefix_key(Task(TaskId(1), (1, 2))).startswith(PRIVATE)


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    one, other = start(tmp_path), start(tmp_path)
    other.kept = one.kept
    talk(one, 0)
    stop(one)
    talk(other, 1)  # whoever comes in is a reason to look
    assert talk(other, 0, 80) >= 60


def test_the_files_of_other_models_are_counted_where_there_are_no_own_ones(tmp_path: Path) -> None:
    one = start(tmp_path)
    talk(one, 0)
    stop(one)
    other = start(tmp_path, replace(SETUP, n_slots=3))
    other.step()
    assert other.engine.snapshot.n_disk == 0
    assert other.engine.snapshot.disk_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_task_whose_file_was_read_for_nothing_does_not_wait_again(tmp_path: Path) -> None:
    first = start(tmp_path)
    talk(first, 0)
    stop(first)
    second = start(tmp_path, replace(SETUP, bad_loads=frozenset({0})), first.kept)
    assert talk(second, 0) == 0
    assert second.engine.snapshot.counters.n_fetched == 1
    assert os.listdir(tmp_path) == []  # the context did not take it


def test_a_task_that_is_cancelled_while_it_waits(tmp_path: Path) -> None:
    first = start(tmp_path)
    talk(first, 0)
    stop(first)
    second = start(tmp_path, kept=first.kept)
    (task,) = second.submit(Submit(stem=0, n_prompt=60, n_predict=4))
    second.step()
    assert second.engine.snapshot.slots[1].state is SlotState.WAIT_OTHER
    second.forget(task)
    second.drain()
    assert second.engine.snapshot.n_snapshots == 0
    assert talk(second, 0) == 59


def test_a_file_holds_all_that_a_range_rests_on(tmp_path: Path) -> None:
    """Two conversations begin alike: RAM keeps the beginning once, and each file stands for itself."""
    setup = replace(SETUP, n_slots=1, cache_ram_bytes=-1)
    first = start(tmp_path, setup)
    for tail in (97, 98, 99):
        first.submit(Submit(stem=0, n_prompt=90, n_predict=0, tail=(tail,) * 40))
        first.drain()
    ledger = first.engine.books.ledger
    assert any(ledger.snapshot_start(snapshot) for snapshot in ledger.snapshots())
    stop(first)
    assert len(os.listdir(tmp_path)) == 3
    second = start(tmp_path, setup, first.kept)
    for tail in (99, 97, 98):
        (task,) = second.submit(Submit(stem=0, n_prompt=90, n_predict=4, tail=(tail,) * 40))
        second.drain()
        assert second.starts[task].n_cached >= 80


# --- harm ------------------------------------------------------------------------------------------------------------


class Refusing:
    """``os.open`` for files without permissions, as it is for those who are not root."""

    def __init__(self) -> None:
        self._open = os.open

    def __call__(self, path: str | Path, flags: int, *more: int) -> int:
        if str(path).endswith(".kv") and os.path.lexists(path) and not os.stat(path).st_mode & 0o400:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return self._open(path, flags, *more)


@MEMORIES
@KINDS
@pytest.mark.timeout(1800)
def test_files_that_come_to_harm_are_misses(
    tmp_path: Path, kind: Kind, unified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some come to harm before a server starts, some while it runs and knows them. The player checks every token."""
    monkeypatch.setattr(os, "open", Refusing())
    draw, n_harms, n_fetched = random.Random(unified), 300 if LONG else 60, 0
    setup, kept = replace(SETUP, unified=unified, kind=kind, cache_ram_bytes=2000), {}
    budget = 4000 if kind is Kind.ATTENTION else 12_000
    for _ in range(n_harms // 2):
        player = start(tmp_path, setup, kept, budget)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= budget
        for turn in range(3):
            if turn == 1:
                spoil(tmp_path, draw)
            talk(player, draw.randrange(3), draw.randrange(40, 95), key=draw.choice(["", "a", "b"]))
        stop(player)
        n_fetched += player.engine.snapshot.counters.n_fetched
        spoil(tmp_path, draw)
    assert n_fetched > n_harms / 4, "the files were hardly used"
