"""Slots with different adapters: whose turn it is, how long others wait, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from tests.props.answers import MODEL, alone
from tests.props.engine_machine import STEMS, Player, Setup, Submit

from corral.config import ContextConfig, EngineConfig
from corral.engine.core import Engine
from corral.engine.plan import Deferral
from corral.engine.turns import N_REMEMBERED, RUN_MS, Turns, run_ms
from corral.errors import InvalidRequest
from corral.events import Event, Failed, Finished
from corral.ids import AdapterId, AdapterSet, RowId, TaskId, adapter_set
from corral.ops import Span
from corral.sim.clock import VirtualClock
from corral.sim.oracle import GREEDY, solo
from corral.tasks import Limits, Task

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
A, B = adapter_set({AdapterId(0): 1.0}), adapter_set({AdapterId(1): 1.0})
ALORA = adapter_set({AdapterId(2): 1.0})
INVOCATION = MODEL.adapters[2].invocation
ROOM = Setup(n_slots=6, n_ctx=1000, n_spare=6, n_batch=512, n_ubatch=512, itl_target_ms=400.0, min_reuse=8)


@dataclass
class Watching(Player):
    """Notes the set of each pass, and the longest time between two tokens of each task."""

    sets: list[AdapterSet] = field(default_factory=list)
    gaps_ms: dict[TaskId, float] = field(default_factory=dict)
    longest_step_ms: float = 0.0
    _seen: dict[TaskId, tuple[int, float]] = field(default_factory=dict)

    def step(self) -> list[Event]:
        start_ms = self.engine._clock.now_ms()
        events = super().step()
        now_ms = self.engine._clock.now_ms()
        if self.engine.last_plan.spans:
            self.sets.append(self.engine.last_plan.adapters)
        self.longest_step_ms = max(self.longest_step_ms, now_ms - start_ms)
        for slot in self.engine.books.slots:
            if slot.generation and slot.work.n_decoded:
                self._token(slot.work.task.id, slot.work.n_decoded, now_ms)
        return events

    def _token(self, task: TaskId, n: int, now_ms: float) -> None:
        n_before, since_ms = self._seen.get(task, (n, now_ms))
        if n > n_before:
            self.gaps_ms[task] = max(self.gaps_ms.get(task, 0.0), now_ms - since_ms)
        if n != n_before or task not in self._seen:
            self._seen[task] = n, now_ms

    @property
    def n_changes(self) -> int:
        return sum(a != b for a, b in zip(self.sets, self.sets[1:], strict=False))


@MEMORIES
def test_s18_streams_of_different_adapters_take_turns_within_the_target(unified: bool) -> None:
    """Prompts of all sets come in beside them; no gap is longer than it may be, and runs are longer than a step."""
    player = Watching(replace(ROOM, unified=unified))
    for i in range(3):
        player.submit(Submit(stem=i, n_prompt=20 + i, n_predict=60, adapters=(A, B, ())[i]))
    for i in range(60):
        player.step()
        if i % 20 == 10:
            player.submit(
                Submit(stem=i % 3, n_prompt=300, tail=(97, 98, 97), n_predict=3, adapters=(B, (), A)[i // 20])
            )
    player.drain()
    assert {A, B, ()} <= set(player.sets)
    assert max(player.gaps_ms.values()) <= ROOM.itl_target_ms
    assert player.n_changes < len(player.sets) / 2


def test_s18_where_one_step_takes_longer_than_a_run_each_set_has_one_step() -> None:
    player = Watching(Setup(n_slots=3, n_ctx=100, n_spare=3, itl_target_ms=1.0))
    for i, adapters in enumerate((A, B, ())):
        n_prompt = next(n for n in range(4, 60) if len(alone(STEMS[i][:n], 30, GREEDY, adapters, 0)[0]) == 30)
        player.submit(Submit(stem=i, n_prompt=n_prompt, n_predict=30, adapters=adapters))
    player.until(lambda: len(player.finished) == 1)
    assert len(player.sets) > 60
    assert all(len(set(player.sets[i : i + 3])) == 3 for i in range(3, len(player.sets) - 5))
    assert max(player.gaps_ms.values()) <= 3 * player.longest_step_ms
    player.drain()


def test_s18_a_set_that_waits_is_not_passed_by_ever_new_ones() -> None:
    """Requests with scales of their own keep coming; each is a new set, and none of them may go first for ever."""
    player = Watching(ROOM)
    (first,) = player.submit(Submit(n_prompt=30, n_predict=50, adapters=A))
    player.step()
    for i in range(60):
        if player.engine.snapshot.n_busy < 5:
            scale = adapter_set({AdapterId(1): 1 + i / 100})
            player.submit(Submit(stem=1 + i % 2, n_prompt=10 + i, n_predict=2, adapters=scale))
        player.step()
    player.drain()
    assert player.gaps_ms[first] <= ROOM.itl_target_ms
    assert len(set(player.sets)) > 10


def test_one_set_alone_never_waits_and_is_set_once() -> None:
    player = Watching(ROOM)
    for i in range(3):
        player.submit(Submit(stem=i, n_prompt=40, n_predict=10, adapters=A))
    player.drain()
    assert set(player.sets) == {A}


def test_who_waits_for_a_turn_has_that_as_reason() -> None:
    player = Watching(ROOM)
    tasks = [player.submit(Submit(stem=i, n_prompt=9, n_predict=20, adapters=s))[0] for i, s in enumerate((A, B))]
    player.step()
    assert player.engine.last_plan.deferrals == {tasks[1]: Deferral.OTHER_ADAPTERS}
    player.drain()


def test_a_run_is_short_enough_for_all_others() -> None:
    assert run_ms(2, 1e6) == RUN_MS
    for k in range(2, 9):
        assert 2 * k * run_ms(k, 400.0) <= 400.0


def test_the_memory_of_turns_is_bounded() -> None:
    turns = Turns()
    for i in range(5 * N_REMEMBERED):
        turns.record(adapter_set({AdapterId(0): 1.0 + i}), 1.0, float(i))
    assert len(turns.served_ms) <= 2 * N_REMEMBERED
    assert turns.current in turns.served_ms


# --- the key ---------------------------------------------------------------------------------------------------------


def n_cached(player: Player, op: Submit) -> int:
    (task,) = player.submit(op)
    player.drain()
    return player.starts[task].n_cached


@MEMORIES
def test_prefixes_of_other_adapters_or_scales_are_not_reused(unified: bool) -> None:
    player = Player(replace(ROOM, unified=unified))
    half = adapter_set({AdapterId(0): 0.5})
    assert n_cached(player, Submit(n_prompt=200, n_predict=2, adapters=A)) == 0
    assert n_cached(player, Submit(n_prompt=200, n_predict=2)) == 0
    assert n_cached(player, Submit(n_prompt=200, n_predict=2, adapters=half)) == 0
    assert n_cached(player, Submit(n_prompt=200, n_predict=2, adapters=A)) > 100
    assert n_cached(player, Submit(n_prompt=200, n_predict=2)) > 100


# --- aLoRA -----------------------------------------------------------------------------------------------------------


def invoked(n: int, tail: tuple[int, ...] = (100,)) -> tuple[int, ...]:
    """A prompt of ``n`` tokens without the activation, the activation, ``tail``."""
    return (*(97 + i % 2 * 4 for i in range(n)), *INVOCATION, *tail)


class Direct:
    """An engine that is asked with prompts of any tokens."""

    def __init__(self) -> None:
        clock = VirtualClock()
        context = MODEL.new_context(ContextConfig(n_ctx=1000, n_slots=2, n_rows=6, n_batch=512), clock)
        self.engine = Engine(MODEL, context, clock, EngineConfig(n_slots=2, audit=True))
        self.n_tasks = 0

    def ask(self, prompt: tuple[int, ...], adapters: AdapterSet = ()) -> Finished | Failed:
        self.n_tasks += 1
        task = Task(TaskId(self.n_tasks), prompt, adapters=adapters, sampling=GREEDY, limits=Limits(n_predict=5))
        self.engine.submit((task,))
        events: list[Event] = []
        while self.engine.has_work:
            events += self.engine.step()
        (end,) = [e for e in events if isinstance(e, Finished | Failed)]
        return end

    def n_cached(self, prompt: tuple[int, ...], adapters: AdapterSet = ()) -> int:
        end = self.ask(prompt, adapters)
        assert isinstance(end, Finished)
        n_base = len(prompt) if not adapters else len(prompt) - prompt[::-1].index(INVOCATION[-1]) - len(INVOCATION)
        assert end.tokens == solo(prompt, 5, model=MODEL, adapters=adapters, n_base=n_base)
        return end.timings.n_cached


def test_s11_before_its_activation_an_alora_shares_the_cache_of_the_base() -> None:
    direct = Direct()
    assert direct.n_cached(invoked(200)) == 0
    assert direct.n_cached(invoked(200), ALORA) == 200  # the base's, up to the activation and no further
    assert direct.n_cached(invoked(200, (100, 101)), ALORA) > 200  # its own
    assert direct.n_cached((*invoked(200)[:200], 102)) == 200  # the base finds what the aLoRA left
    assert direct.n_cached((*invoked(200)[:200], *INVOCATION, *INVOCATION), ALORA) == 202  # a later activation


def test_s11_an_alora_that_is_not_activated_is_the_base() -> None:
    direct = Direct()
    prompt = invoked(50)[:50]
    first, second = direct.ask(prompt), direct.ask(prompt, ALORA)
    assert isinstance(first, Finished) and isinstance(second, Finished)
    assert first.tokens == second.tokens
    assert second.timings.n_cached > 0


def test_s11_adapters_that_cannot_be_used_are_refused() -> None:
    direct = Direct()
    two = adapter_set({AdapterId(2): 1.0, AdapterId(3): 1.0})
    for adapters, words in ((two, "Cannot run multiple aLoRAs"), (adapter_set({AdapterId(9): 1.0}), "id 9; ids are 0")):
        end = direct.ask(invoked(20), adapters)
        assert isinstance(end, Failed)
        assert isinstance(end.error, InvalidRequest)
        assert words in str(end.error)


def test_the_fake_gives_another_token_for_a_cell_of_other_adapters() -> None:
    context = MODEL.new_context(ContextConfig(n_ctx=64, n_slots=1, n_rows=1))
    context.use(A)
    context.decode((Span(RowId(0), 0, (1, 2, 3), 0),))
    context.use(())
    context.decode((Span(RowId(0), 3, (4,), 1),))
    mixed = int(context.logits()[0].argmax())
    assert mixed != solo((1, 2, 3, 4), 1, model=MODEL)[0]
    assert mixed != solo((1, 2, 3, 4), 1, model=MODEL, adapters=A)[0]
