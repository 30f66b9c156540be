"""Slot files over every kind of memory: what is restored goes on at any message, and every token is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from corral.config import ContextConfig, EngineConfig
from corral.engine.core import Engine
from corral.errors import CorralError
from corral.events import Event, Failed, Finished, SlotDone
from corral.ids import SlotId, TaskId, Token
from corral.ops import SavedCheckpoint
from corral.sim.clock import VirtualClock
from corral.sim.model import SimModel, SimSpec
from corral.sim.oracle import solo
from corral.sim.shape import Kind
from corral.tasks import Limits, Sampling, SlotAction, Task, TaskKind

KINDS = pytest.mark.parametrize("kind", list(Kind), ids=[kind.name.lower() for kind in Kind])
MODES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
CHAT = tuple(Random(1).choices(range(97, 123), k=90))
BORDERS = (30, 60, 75)


class Server:
    """An engine over the fake that is asked one thing at a time and checked against the oracle."""

    def __init__(
        self, kind: Kind, unified: bool = True, n_ctx: int = 256, n_batch: int = 32, n_slots: int = 2, **config: int
    ) -> None:
        unified = unified and kind is not Kind.SLIDING_HYBRID  # it would be split into smaller shares
        shape = ContextConfig(
            n_ctx=n_ctx * (1 if unified else n_slots),
            n_slots=n_slots,
            n_rows=n_slots + 2 * unified,
            n_batch=n_batch,
            n_ubatch=n_batch,
            kv_unified=unified,
        )
        self.model = SimModel(SimSpec(kind=kind, window=6 if kind.has_window else 0))
        settings = EngineConfig(n_slots=n_slots, audit=True, min_checkpoint=2, checkpoint_min_step=0)
        settings = replace(settings, **config)  # type: ignore[arg-type]
        self.context = self.model.new_context(shape)
        self.engine = Engine(self.model, self.context, VirtualClock(), settings)
        self.n_tasks = 0

    def _run(self) -> Event:
        events: list[Event] = []
        while self.engine.has_work:
            events += self.engine.step()
        return events[-1]

    def ask(self, prompt: Sequence[Token], slot: int = 0, borders: tuple[int, ...] = BORDERS) -> Finished:
        self.n_tasks += 1
        task = Task(
            TaskId(self.n_tasks),
            tuple(prompt),
            sampling=GREEDY,
            limits=Limits(n_predict=6),
            id_slot=SlotId(slot),
            borders=borders,
        )
        self.engine.submit((task,))
        end = self._run()
        assert isinstance(end, Finished), end
        assert end.tokens == solo(tuple(prompt), 6, model=self.model, sampling=GREEDY)
        return end

    def act(self, kind: TaskKind, slot: int = 0, saved: SlotDone | None = None) -> SlotDone | CorralError:
        self.n_tasks += 1
        action = SlotAction(TaskId(self.n_tasks), kind, SlotId(slot))
        if saved:
            action = replace(action, tokens=saved.tokens, data=saved.data, checkpoints=saved.checkpoints)
        self.engine.act(action)
        end = self._run()
        return end.error if isinstance(end, Failed) else end  # type: ignore[return-value]

    def save(self, slot: int = 0) -> SlotDone:
        done = self.act(TaskKind.SLOT_SAVE, slot)
        assert isinstance(done, SlotDone), done
        return done

    def restore(self, saved: SlotDone, slot: int = 0) -> SlotDone:
        done = self.act(TaskKind.SLOT_RESTORE, slot, saved)
        assert isinstance(done, SlotDone), done
        assert done.n_tokens == saved.n_tokens
        return done


def saved_chat(kind: Kind, unified: bool) -> SlotDone:
    first = Server(kind, unified)
    first.ask(CHAT)
    return first.save()


@MODES
@KINDS
def test_s28_a_restored_slot_goes_on_at_its_end(kind: Kind, unified: bool) -> None:
    saved = saved_chat(kind, unified)
    second = Server(kind, unified)
    second.restore(saved)
    assert second.ask((*saved.tokens, 97, 98)).timings.n_cached == len(saved.tokens)


@MODES
@KINDS
@pytest.mark.parametrize("n", BORDERS)
def test_s28_a_prompt_that_parts_at_an_earlier_message_computes_only_what_is_new(
    kind: Kind, unified: bool, n: int
) -> None:
    saved = saved_chat(kind, unified)
    second = Server(kind, unified)
    second.restore(saved)
    n_tile = 28 if kind is Kind.ATTENTION else 0  # so many may be computed again to fill a tile of the kernel
    assert n - n_tile <= second.ask((*CHAT[:n], 10, 11, 12), slot=1).timings.n_cached <= n
    second.restore(saved)
    assert second.ask((*saved.tokens, 97, 98)).timings.n_cached == len(saved.tokens)


def test_s28_a_restore_that_finds_no_room_leaves_the_slot_as_it_was() -> None:
    """That is known only when the bytes were about to go into a row."""
    saved = saved_chat(Kind.ATTENTION, True)
    server = Server(Kind.ATTENTION, n_ctx=128)
    server.ask(CHAT[:20])
    before = server.engine.snapshot.slots[0]
    server.engine.submit((Task(TaskId(50), CHAT[::-1], sampling=GREEDY, id_slot=SlotId(1)),))
    for _ in range(4):
        server.engine.step()
    action = SlotAction(TaskId(51), TaskKind.SLOT_RESTORE, SlotId(0), tokens=saved.tokens, data=saved.data)
    server.engine.act(action)
    (end,) = (event for event in server.engine.step() if isinstance(event, Failed))
    assert "No available space" in str(end.error)
    after = server.engine.snapshot.slots[0]
    assert (after.n_tokens, after.task) == (before.n_tokens, before.task) and after.n_tokens > 20


@KINDS
def test_checkpoints_are_as_many_as_a_prompt_may_have(kind: Kind) -> None:
    server = Server(kind, n_ctx_checkpoints=2)
    server.ask(CHAT)
    server.ask((*CHAT, *server.ask(CHAT).tokens, *range(97, 110)), borders=(*BORDERS, 96))
    n_expected = 0 if kind is Kind.ATTENTION else 2
    assert len(server.save().checkpoints) == n_expected


@KINDS
@pytest.mark.parametrize("ram", [0, 100, 200])
def test_restored_checkpoints_keep_to_the_ram_budget(kind: Kind, ram: int) -> None:
    saved = saved_chat(kind, True)
    second = Server(kind, cache_ram_bytes=ram)
    second.restore(saved)
    assert second.engine.snapshot.snapshot_bytes <= ram
    assert second.ask((*CHAT[:60], 10, 11, 12), slot=1).timings.n_cached <= 60
    assert second.ask((*saved.tokens, 97, 98)).timings.n_cached > 60


@MODES
@KINDS
def test_the_beginning_of_what_another_slot_went_on_from_is_saved(kind: Kind, unified: bool) -> None:
    server = Server(kind, unified)
    first = server.ask(CHAT)
    server.ask((*CHAT, *first.tokens, *range(97, 107)), slot=1, borders=(*BORDERS, 96))
    saved = server.save(0)
    assert saved.n_tokens >= BORDERS[-1]
    second = Server(kind, unified)
    second.restore(saved, 1)
    assert second.ask((*saved.tokens, 97, 98)).timings.n_cached == saved.n_tokens


@pytest.mark.parametrize("kind", [Kind.SLIDING, Kind.RECURRENT, Kind.HYBRID, Kind.SLIDING_HYBRID])
@pytest.mark.parametrize("lengths", [(0,), (60, 30), (95,)])
def test_checkpoints_that_are_not_of_the_tokens_are_refused(kind: Kind, lengths: tuple[int, ...]) -> None:
    saved = saved_chat(kind, True)
    second = Server(kind)
    marks = tuple(SavedCheckpoint(n, saved.checkpoints[0].data) for n in lengths)
    error = second.act(TaskKind.SLOT_RESTORE, 0, replace(saved, checkpoints=marks))
    assert "its checkpoints are not of its 95 tokens" in str(error)
    assert second.ask(CHAT).timings.n_cached == 0


@pytest.mark.parametrize("kind", [Kind.SLIDING, Kind.RECURRENT, Kind.HYBRID, Kind.SLIDING_HYBRID])
def test_a_checkpoint_of_other_bytes_is_a_miss(kind: Kind) -> None:
    """It says 60 tokens and is of 30: the context finds out, and the prompt is computed."""
    saved = saved_chat(kind, True)
    second = Server(kind)
    early = next(mark for mark in saved.checkpoints if mark.n == 30)
    wrong = replace(saved, checkpoints=(SavedCheckpoint(60, early.data),))
    if kind is Kind.RECURRENT:  # its checkpoints are rows, which are looked at before
        assert "not the state of 60 tokens" in str(second.act(TaskKind.SLOT_RESTORE, 0, wrong))
    else:
        second.restore(wrong)
    second.ask((*CHAT[:60], 10, 11, 12), slot=1)


@KINDS
def test_rows_longer_than_the_pool_of_windows_are_restored_and_loaded(kind: Kind) -> None:
    """Of that pool, 28 cells here or less, a row that comes back takes its window only."""
    saved = saved_chat(kind, True)
    server = Server(kind, n_ctx=128, n_batch=4)
    server.restore(saved)
    server.ask(CHAT[::-1], slot=1)
    assert kind in (Kind.RECURRENT, Kind.SLIDING_HYBRID) or server.engine.snapshot.slots[0].kept == "ram"
    assert server.ask((*saved.tokens, 97, 98)).timings.n_cached == len(saved.tokens)
