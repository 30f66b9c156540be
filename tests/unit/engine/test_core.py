"""What the engine takes in: bounds, bad requests, cancels before the first step, and what anyone may read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corral.config import ContextConfig, EngineConfig
from corral.engine import core as core_module
from corral.engine.core import Engine
from corral.errors import CorralError, ExceedContext, InvalidRequest, ServerError, Unavailable
from corral.events import Event, Failed, Finished, StopReason
from corral.ids import CacheKey, RowId, SlotId, TaskId, TenantId, Token
from corral.sim.clock import VirtualClock
from corral.sim.context import SimContext
from corral.sim.model import SimModel, SimSpec
from corral.tasks import CacheAction, Limits, Sampling, Task, TaskKind

PROMPT = (97, 98, 99)


def engine(n_slots: int = 2, max_queue: int = 1024, n_ctx: int = 64) -> Engine:
    model, clock = SimModel(), VirtualClock()
    context = model.new_context(ContextConfig(n_ctx=n_ctx, n_slots=n_slots, n_rows=n_slots, n_batch=32), clock)
    return Engine(model, context, clock, EngineConfig(n_slots=n_slots, max_queue=max_queue, audit=True))


def task(i: int, prompt: tuple[Token, ...] = PROMPT, n_predict: int = 4) -> Task:
    return Task(TaskId(i), prompt, sampling=Sampling(temperature=0), limits=Limits(n_predict))


def ends(core: Engine) -> dict[TaskId, Event]:
    found: dict[TaskId, Event] = {}
    while core.has_work:
        found |= {e.task_id: e for e in core.step() if isinstance(e, Finished | Failed)}
    return found


def refusal(core: Engine, *group: Task) -> CorralError:
    """The error of the first of a group, which must come with the next step."""
    core.submit(group)
    ids = [t.id for t in group]
    events = [e for e in core.step() if e.task_id in ids]
    assert [e.task_id for e in events] == ids
    (first, *_) = events
    assert isinstance(first, Failed)
    return first.error


@pytest.mark.parametrize("token", [-1, 272, 1 << 40])
def test_a_token_outside_the_vocabulary_is_a_bad_request(token: int) -> None:
    error = refusal(engine(), task(1, (97, token, 98)))
    assert isinstance(error, InvalidRequest)
    assert str(token) in str(error)


def test_a_prompt_over_the_context_is_refused_with_both_numbers() -> None:
    error = refusal(engine(n_ctx=64), task(1, (97,) * 64))
    assert isinstance(error, ExceedContext)
    assert error.extra == {"n_prompt_tokens": 64, "n_ctx": 64}


def test_s8_more_siblings_than_slots_are_refused_all_together() -> None:
    core = engine(n_slots=2)
    parent = task(1)
    error = refusal(core, parent, *(replace(task(i), parent=parent.id, index=i - 1) for i in (2, 3)))
    assert isinstance(error, InvalidRequest)
    assert "-np" in str(error)
    assert not core.books.samplers


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_does_not_exist_is_a_bad_request(slot: int) -> None:
    assert isinstance(refusal(engine(n_slots=2), replace(task(1), id_slot=SlotId(slot))), InvalidRequest)


def test_a_grammar_that_does_not_compile_is_a_bad_request() -> None:
    core = engine()
    parent, bad = task(1), replace(task(2), parent=TaskId(1), sampling=Sampling(grammar="root ::= [a-z]+"))
    assert isinstance(refusal(core, parent, bad), InvalidRequest)
    assert not core.books.samplers, "the sampler of the first sibling was left open"


def test_an_empty_prompt_gets_an_empty_answer() -> None:
    core = engine()
    core.submit((task(1, ()),))
    (event,) = core.step()
    assert isinstance(event, Finished)
    assert (event.text, event.tokens, event.reason) == ("", (), StopReason.NONE)
    assert not core.has_work


@pytest.mark.parametrize(("asked", "shown"), [(5, 5), (2**32 + 5, 5), (None, None)])
def test_an_empty_answer_shows_its_seed(asked: int | None, shown: int | None) -> None:
    core = engine()
    core.submit((replace(task(1, ()), sampling=Sampling(seed=asked)),))
    (event,) = core.step()
    assert isinstance(event, Finished)
    assert 0 <= event.seed < 2**32 - 1
    assert shown in (None, event.seed)
    assert event.seed > 0, "a drawn seed is 0 once in 4 billion runs"


def test_s7_tasks_beyond_the_queue_are_refused_and_told_when_to_come_again() -> None:
    core = engine(n_slots=2, max_queue=3)
    for i in range(1, 6):
        core.submit((task(i),))
    error = refusal(core, task(6))
    assert isinstance(error, Unavailable)
    assert error.retry_after_s is not None
    assert 1 <= error.retry_after_s <= 600
    found = ends(core)
    assert [found[TaskId(i)].__class__ for i in range(1, 6)] == [Finished] * 5
    assert core.snapshot.counters.n_refused == 1
    core.submit((task(7),))
    assert isinstance(ends(core)[TaskId(7)], Finished)


def test_a_tenant_that_fills_the_queue_keeps_nobody_else_out() -> None:
    core = engine(n_slots=1, max_queue=4)
    for i in range(1, 6):
        core.submit((task(i),))
    other = TenantId("other")
    for i in (6, 7):
        core.submit((replace(task(i), tenant=other),))
    error = refusal(core, replace(task(8), tenant=other))
    assert isinstance(error, Unavailable), "more than its half"
    assert isinstance(refusal(core, task(9)), Unavailable)
    found = ends(core)
    assert [found[TaskId(i)].__class__ for i in range(1, 8)] == [Finished] * 7


def test_a_tenant_whose_grammars_fill_memory_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "MAX_HELD_BYTES", 250)
    monkeypatch.setattr(Sampling, "held_bytes", 100)
    core, other = engine(n_slots=1), TenantId("other")
    for i in (1, 2):
        core.submit((task(i),))
    core.submit((replace(task(3), tenant=other),))
    assert isinstance(refusal(core, replace(task(4), tenant=other)), Unavailable)
    found = ends(core)
    assert [found[TaskId(i)].__class__ for i in (1, 2, 3)] == [Finished] * 3


def test_a_queue_of_0_still_serves_the_slots() -> None:
    core = engine(n_slots=2, max_queue=0)
    for i in (1, 2, 3):
        core.submit((task(i),))
    found = ends(core)
    assert [isinstance(found[TaskId(i)], Finished) for i in (1, 2, 3)] == [True, True, False]


def test_a_task_cancelled_before_the_first_step_is_never_heard_of() -> None:
    core = engine()
    core.submit((task(1),))
    core.submit((task(2, (97,) * 64),))
    core.cancel([TaskId(1), TaskId(2), TaskId(99)])
    assert not core.has_work
    assert core.step() == []
    assert not core.books.samplers


def test_s3_what_was_published_does_not_change_any_more() -> None:
    core = engine(n_slots=1)
    core.submit((task(1),))
    core.submit((task(2),))
    core.step()
    read = core.snapshot
    assert read.waiting == (TaskId(2),)
    before = repr(read)
    ends(core)
    assert repr(read) == before
    assert core.snapshot.waiting == ()


def test_when_the_engine_cannot_go_on_every_task_is_told() -> None:
    core = engine(n_slots=1)
    for i in (1, 2, 3):
        core.submit((task(i),))
    core.step()
    events = core.fail_all(ServerError("broken"))
    assert {e.task_id for e in events} == {1, 2, 3}
    assert not core.has_work
    assert core.snapshot.n_busy == 0
    core.submit((task(4),))
    assert isinstance(ends(core)[TaskId(4)], Finished)


def test_when_the_engine_cannot_go_on_what_was_asked_of_the_cache_is_answered_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(context: SimContext, row: RowId, start: int = 0) -> bytes:
        raise RuntimeError("a fault of ours")

    core = engine()
    first = task(1, tuple(range(97, 117)), n_predict=0)
    core.submit((first,))
    assert isinstance(ends(core)[TaskId(1)], Finished)
    core.act(CacheAction(TaskId(2), TaskKind.CACHE_LIST))
    core.act(CacheAction(TaskId(3), TaskKind.CACHE_PIN, task=first))
    core.act(CacheAction(TaskId(4), TaskKind.CACHE_LIST))
    monkeypatch.setattr(SimContext, "save", broken)
    with pytest.raises(RuntimeError):
        core.step()
    told = [*core.fail_all(ServerError("broken")), *core.step()]
    assert {event.task_id for event in told} == {2, 3, 4}


def test_a_context_with_fewer_rows_than_slots_is_an_error_of_ours() -> None:
    model, clock = SimModel(), VirtualClock()
    context = model.new_context(ContextConfig(n_ctx=64, n_slots=2, n_rows=2), clock)
    with pytest.raises(ValueError, match="rows"):
        Engine(model, context, clock, EngineConfig(n_slots=3))


def test_a_closed_engine_frees_samplers_and_context() -> None:
    core = engine()
    core.submit((replace(task(1), cache_key=CacheKey("a")),))
    core.close()
    assert not core.books.samplers
    with pytest.raises(ValueError, match="closed"):
        core._context.bounds(RowId(0))


def test_generated_text_is_shown_only_when_asked_for() -> None:
    """Other users' text is nobody's business: GET /slots shows it under --slots-debug alone."""
    for show_text in (False, True):
        model = SimModel(SimSpec(eos_every=0))
        clock = VirtualClock()
        context = model.new_context(ContextConfig(n_ctx=64, n_slots=1, n_rows=1), clock)
        made = Engine(model, context, clock, EngineConfig(n_slots=1, show_text=show_text))
        made.submit((Task(TaskId(1), (97, 98), limits=Limits(n_predict=20)),))
        for _ in range(10):
            made.step()
        assert bool(made.snapshot.slots[0].generated) is show_text
        made.close()


def test_what_samplers_of_waiting_tasks_hold_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "MAX_HELD_BYTES", 250)
    core = engine(n_slots=1)
    heavy = [replace(task(i), sampling=Sampling(temperature=0, logit_bias=[(5, -1.0)] * 10)) for i in range(1, 6)]
    assert heavy[0].sampling.held_bytes == 120
    for one in heavy[:3]:
        core.submit((one,))
    core.submit((task(9),))
    found = ends(core)
    assert isinstance(found[TaskId(2)], Finished) and isinstance(found[TaskId(9)], Finished)
    refused = found[TaskId(3)]
    assert isinstance(refused, Failed) and isinstance(refused.error, Unavailable)
    assert "of tasks that wait take" in str(refused.error) and refused.error.retry_after_s is not None
    core.submit((heavy[3],))
    assert isinstance(ends(core)[TaskId(4)], Finished)
