"""Ending the thoughts of a running reply: whose, where it is, and what is answered."""

from __future__ import annotations

from dataclasses import replace

from corral.config import ContextConfig, EngineConfig
from corral.engine.core import Engine
from corral.errors import Unavailable
from corral.events import Chunk, ControlDone, Event, Failed, Finished
from corral.ids import TaskId, TenantId
from corral.sim.clock import VirtualClock
from corral.sim.model import SimModel, SimSpec
from corral.tasks import ControlAction, Limits, Sampling, Task, ThoughtBudget

MODEL = SimModel(SimSpec(eos_every=0))
FORCED = tuple(b" So.</t>")
ARMED = ThoughtBudget(-1, ("<t>",), ("</t>",), FORCED, n_open=0, can_end=True)
NOT_THERE = "no active completion for this id"
NOT_ARMED = "reasoning control not enabled for this completion"
N_PREDICT = 40


def engine(n_slots: int = 2) -> Engine:
    clock = VirtualClock()
    context = MODEL.new_context(ContextConfig(n_ctx=512, n_slots=n_slots, n_rows=n_slots, n_batch=32), clock)
    return Engine(MODEL, context, clock, EngineConfig(n_slots=n_slots, park_min_tokens=1, audit=True))


def task(i: int, thoughts: ThoughtBudget | None = ARMED, priority: int = 0, tenant: str = "") -> Task:
    sampling = Sampling(temperature=0, thoughts=thoughts)
    return Task(
        TaskId(i),
        (97, 98, 96 + i),
        sampling=sampling,
        limits=Limits(N_PREDICT),
        priority=priority,
        tenant=TenantId(tenant),
        request_id=f"chatcmpl-{i}",
    )


def steps(core: Engine, n: int) -> list[Event]:
    return [event for _ in range(n) for event in core.step()]


def ends(core: Engine) -> dict[TaskId, tuple[int, ...]]:
    """The tokens of all tasks that run."""
    found = {}
    while core.has_work:
        for event in core.step():
            assert not isinstance(event, Failed)
            if isinstance(event, Finished):
                found[event.task_id] = event.tokens
    return found


def ask(core: Engine, name: str = "chatcmpl-1", tenant: str = "") -> str:
    """The fault that a control action is answered with; "" for none."""
    core.act(ControlAction(TaskId(99), name, TenantId(tenant)))
    assert core.has_work
    (done,) = [event for event in core.step() if isinstance(event, ControlDone)]
    assert done.task_id == 99
    return done.fault


def n_thoughts(tokens: tuple[int, ...]) -> int:
    """How many tokens were generated before the forced ones, which must be there."""
    (n,) = [i for i in range(len(tokens)) if tokens[i : i + len(FORCED)] == FORCED]
    return n


def test_a_running_reply_ends_its_thoughts_with_the_next_token() -> None:
    core = engine()
    core.submit((task(1),))
    core.submit((task(2),))
    n_before = sum(len(e.tokens) for e in steps(core, 6) if isinstance(e, Chunk) and e.task_id == 1)
    assert ask(core) == ""
    told = ends(core)
    assert n_thoughts(told[TaskId(1)]) in (n_before, n_before + 1)
    assert len(told[TaskId(1)]) == N_PREDICT, "the answer goes on"
    other = engine()
    other.submit((task(2),))
    assert told[TaskId(2)] == ends(other)[TaskId(2)]


def test_all_choices_of_a_reply_end_theirs() -> None:
    core = engine()
    first = task(1)
    core.submit((first, replace(first, id=TaskId(2), parent=first.id, index=1)))
    steps(core, 4)
    assert ask(core) == ""
    assert all(n_thoughts(tokens) < 6 for tokens in ends(core).values())


def test_a_reply_that_had_to_leave_its_slot_ends_them_when_it_is_back() -> None:
    core = engine(n_slots=1)
    core.submit((task(1),))
    steps(core, 5)
    core.submit((task(2, priority=5),))
    while not core.books.held:
        core.step()
    n_before = core.books.held[0].generation
    assert n_before is not None
    n = n_before.n_decoded
    assert ask(core) == ""
    assert n_thoughts(ends(core)[TaskId(1)]) == n


def test_thoughts_that_have_not_begun_are_ended_when_they_do() -> None:
    core = engine()
    core.submit((replace(task(1), prompt=tuple(range(97, 123)) * 4),))
    steps(core, 1)
    assert ask(core) == ""
    assert n_thoughts(ends(core)[TaskId(1)]) == 0


def test_what_there_is_nothing_to_act_on() -> None:
    core = engine(n_slots=1)
    assert ask(core) == NOT_THERE
    core.submit((task(1, tenant="a"),))
    assert ask(core, tenant="a") == NOT_THERE, "it waits for a slot"
    steps(core, 2)
    assert ask(core, tenant="b") == NOT_THERE
    assert ask(core) == NOT_THERE
    assert ask(core, "chatcmpl-2", "a") == NOT_THERE
    assert ask(core, tenant="a") == ""
    ends(core)
    assert ask(core, tenant="a") == NOT_THERE


def test_only_who_was_armed_is_ended() -> None:
    limited = replace(ARMED, n_tokens=30, can_end=False)
    for thoughts in (None, limited):
        core = engine()
        core.submit((task(1, thoughts),))
        steps(core, 3)
        assert ask(core) == NOT_ARMED
        (tokens,) = ends(core).values()
        assert thoughts is None or n_thoughts(tokens) == 30


def test_who_asks_while_the_engine_ends_is_answered() -> None:
    core = engine()
    core.submit((task(1),))
    steps(core, 3)
    core.act(ControlAction(TaskId(99), "chatcmpl-1"))
    events = core.retire(Unavailable("over", retry_after_s=1))
    assert [type(event) for event in events if event.task_id == 99] == [ControlDone]


def test_who_does_not_wait_for_the_answer_gets_none() -> None:
    core = engine()
    core.act(ControlAction(TaskId(99), "chatcmpl-1"))
    core.cancel([TaskId(99)])
    assert not core.has_work
