"""Histories of a whole engine over the fake, as plain values, and the referee who watches one being played.

A history is a setup and a list of operations: short to print, to shrink and to keep as a regression test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from corral.config import ContextConfig, EngineConfig
from corral.engine.adapted import marked, plain
from corral.engine.core import Engine
from corral.engine.disk_tier import DiskTier
from corral.engine.plan import Begin, Park, Shorten
from corral.engine.sampling import RowSampler, new_row_sampler, pick_rows
from corral.engine.shift import n_kept
from corral.engine.slot import PRIVATE, prefix_key
from corral.errors import DecodeFailed, ExceedContext
from corral.events import Chunk, Event, Failed, Finished, Started, StopReason
from corral.ids import AdapterId, AdapterSet, CacheKey, RowId, SlotId, TaskId, TenantId, Token
from corral.ops import Trim
from corral.ports import AdapterInfo, DecodeStatus, Picked
from corral.sim.clock import VirtualClock
from corral.sim.context import Faults, SimContext
from corral.sim.model import SimModel, SimSpec
from corral.sim.oracle import Shifting, solo
from corral.sim.shape import Kind
from corral.tasks import Constraint, ConstraintKind, Limits, Sampling, Task, ThoughtBudget, Trigger

if TYPE_CHECKING:
    from corral.ports import Logits

INVOCATIONS: tuple[tuple[Token, ...], ...] = ((), (), (98, 99), (99, 97, 97))
"""Two ordinary adapters and two aLoRAs, whose activations come up in many prompts."""

ADAPTERS = tuple(AdapterInfo(AdapterId(i), "", invocation=tokens) for i, tokens in enumerate(INVOCATIONS))
WINDOW = 6
MODELS = {
    kind: SimModel(SimSpec(eos_every=40, adapters=ADAPTERS, kind=kind, window=WINDOW if kind is Kind.SLIDING else 0))
    for kind in Kind
}
"""One of each kind of memory. The window is smaller than nearly all prompts."""

MODEL = MODELS[Kind.ATTENTION]
EOG = MODEL.info.eog_tokens
WEIGHTS = {"": 1.0, "a": 1.0, "b": 3.0}
STEMS = [tuple(Random(i).choices(range(97, 100), k=1000)) for i in range(3)]
"""Prompts of one stem begin alike; those of different stems part after a few tokens or at once."""

PATIENT = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For properties outside of this directory: a busy machine is no failure."""

WILD = Sampling(temperature=2.0, top_k=20, top_p=1.0, min_p=0.0)
"""The fake's favourite wins about half of the draws."""

HELD = (
    Constraint(ConstraintKind.REGEX, "[a-z ]{2,12}"),
    Constraint(
        ConstraintKind.LARK,
        'start: "be"+ | /[0-9]{1,3}/',
        triggers=(
            Trigger("e"),
            Trigger("t "),
        ),
    ),
    Constraint(ConstraintKind.JSON_SCHEMA, '{"enum": [true, false, 10, 1000]}'),
    Constraint(ConstraintKind.LARK, 'start: ("these" | "those are the ones, " /[ab]/)+'),
)


def _forced(text: str) -> tuple[Token, ...]:
    return tuple(MODEL.tokenizer.tokenize(text, add_special=False, parse_special=True))


THOUGHTS = (
    ThoughtBudget(5, ("<t>",), ("</t>", "e"), _forced("\n!</t>"), n_open=1),
    ThoughtBudget(9, ("<t>",), ("</t>",), _forced("</t>"), n_open=0),
    ThoughtBudget(2, ("e", "s"), ("zz",), _forced("€ zz"), anywhere=True),
)
"""Two that are open when generation begins, and one that begins again and again."""

MAX_STEPS = 3000
"""Any history here is over long before; more steps mean that nothing moves."""


@dataclass(frozen=True)
class Setup:
    """The engine and the memory under it. ``n_ctx`` is what one task may use; the keys of ``faults`` count decodes.

    On unified KV the pool is ``n_shares`` times as large.
    """

    unified: bool = True
    kind: Kind = Kind.ATTENTION
    swa_full: bool = False
    n_checkpoints: int = 3
    min_step: int = 8
    n_slots: int = 2
    n_ctx: int = 40
    n_spare: int = 0
    n_shares: int = 1
    n_batch: int = 16
    n_ubatch: int = 8
    itl_target_ms: float = 20.0
    cache_ram_bytes: int = -1
    min_shared_prefill: int = 4
    min_reuse: int = 1
    cont_batching: bool = True
    with_adapters: bool = False
    shared_cache: bool = False
    park_min_tokens: int = 4
    priority_age_ms: float = 10_000.0
    shift: bool = False
    faults: tuple[tuple[int, DecodeStatus], ...] = ()
    bad_loads: frozenset[int] = frozenset()

    @property
    def n_cells(self) -> int:
        """Of the whole pool on unified KV, of all rows together on split KV."""
        return self.n_ctx * self.n_shares if self.unified else self.n_ctx * self.n_slots


@dataclass(frozen=True)
class Submit:
    """``n`` siblings. The prompt is the first ``n_prompt`` tokens of a stem, ending in ``tail``.

    ``seed`` None is greedy; sibling i draws with ``seed + i``. ``id_slot`` is taken modulo the number of slots.
    """

    stem: int = 0
    n_prompt: int = 8
    tail: tuple[Token, ...] = ()
    n_predict: int = 4
    n: int = 1
    salt: str = ""
    tenant: str = ""
    priority: int = 0
    cache_prompt: bool = True
    id_slot: int | None = None
    held: Constraint | None = None
    thoughts: ThoughtBudget | None = None
    n_probs: int = 0
    stop: str = ""
    seed: int | None = None
    adapters: AdapterSet = ()
    n_keep: int = 0
    n_discard: int = 0
    n_cache_reuse: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True)
class Reply:
    """The next turn of a conversation that ended: its prompt and answer, then ``tail``. Nothing if none has ended."""

    which: int = 0
    tail: tuple[Token, ...] = (97,)
    n_predict: int = 4


@dataclass(frozen=True)
class Cancel:
    """One of the open tasks, by its number modulo how many there are."""

    which: int = 0


@dataclass(frozen=True)
class Steps:
    n: int = 1


Op = Submit | Reply | Cancel | Steps


@dataclass(frozen=True)
class History:
    setup: Setup
    ops: tuple[Op, ...]


# --- what may happen -------------------------------------------------------------------------------------------------

STATUSES = st.sampled_from([DecodeStatus.NO_ROOM, DecodeStatus.NO_ROOM, DecodeStatus.ABORTED, DecodeStatus.FAILED])
SETS: SearchStrategy[AdapterSet] = st.sampled_from(
    [
        (),
        ((AdapterId(0), 1.0),),
        ((AdapterId(0), 0.5),),
        ((AdapterId(0), 1.0), (AdapterId(1), 1.0)),
        ((AdapterId(1), 1.0), (AdapterId(2), 1.0)),
        ((AdapterId(2), 1.0),),
        ((AdapterId(2), -1.0),),
        ((AdapterId(3), 1.0),),
    ]
)
BORDERS = st.lists(st.integers(0, 60), max_size=4).map(lambda found: tuple(sorted(found)))
TAILS = st.lists(st.integers(97, 99), max_size=5).map(tuple)


@st.composite
def setups(draw: DrawFn, unified: bool, faulty: bool, shift: bool | None, kinds: tuple[Kind, ...]) -> Setup:
    kind = draw(st.sampled_from(kinds))
    n_slots = draw(st.integers(1, 5))
    n_ubatch = draw(st.sampled_from([4, 8, 16, 64]))
    faults = draw(st.dictionaries(st.integers(0, 60), STATUSES, max_size=8)) if faulty else {}
    return Setup(
        unified=unified,
        kind=kind,
        swa_full=draw(st.integers(0, 3)) == 0,
        n_checkpoints=draw(st.sampled_from([0, 1, 3, 32])),
        min_step=draw(st.sampled_from([0, 3, 8, 100])),
        n_slots=n_slots,
        n_ctx=draw(st.sampled_from([24, 40, 64, 100])),
        n_spare=draw(st.integers(0, 4)) if unified else 0,
        n_shares=draw(st.sampled_from([1, 1, 2, 3])) if unified else 1,
        n_batch=max(n_slots, n_ubatch, draw(st.sampled_from([8, 16, 64]))),
        n_ubatch=n_ubatch,
        itl_target_ms=draw(st.sampled_from([5.0, 20.0, 100.0, 1000.0])),
        cache_ram_bytes=draw(st.sampled_from([-1, 0, 400, 1000])),
        min_shared_prefill=draw(st.sampled_from([1, 4, 32])),
        min_reuse=draw(st.sampled_from([1, 1, 8])),
        cont_batching=draw(st.integers(0, 7)) > 0,
        with_adapters=draw(st.booleans()),
        shared_cache=draw(st.booleans()),
        park_min_tokens=draw(st.sampled_from([0, 1, 4, 12])),
        priority_age_ms=draw(st.sampled_from([20.0, 200.0, 10_000.0])),
        shift=kind is Kind.ATTENTION and (draw(st.integers(0, 3)) == 0 if shift is None else shift),
        faults=tuple(sorted(faults.items())),
        bad_loads=draw(st.frozensets(st.integers(0, 8), max_size=4)) if faulty else frozenset(),
    )


@st.composite
def submits(draw: DrawFn, setup: Setup) -> Submit:
    n_ctx = setup.n_ctx
    lengths = st.one_of(st.integers(1, 20), st.integers(1, n_ctx - 1), st.integers(n_ctx - 3, n_ctx))
    return Submit(
        stem=draw(st.integers(0, len(STEMS) - 1)),
        n_prompt=draw(lengths),
        tail=draw(st.one_of(st.just(()), TAILS)),
        n_predict=draw(st.one_of(st.integers(0, 30), st.just(-1))),
        n=draw(st.one_of(st.just(1), st.integers(1, setup.n_slots))),
        salt=draw(st.sampled_from(["", "", "", "other"])),
        tenant=draw(st.sampled_from(["", "a", "b"])),
        priority=draw(st.sampled_from([0, 0, 0, 1, 5, -3])),
        cache_prompt=draw(st.integers(0, 7)) > 0,
        id_slot=draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 4))),
        stop=draw(st.sampled_from(["", "", "", "e", "th", "t\n"])),
        held=draw(st.sampled_from([None, None, None, *HELD])),
        thoughts=draw(st.sampled_from([None, None, None, *THOUGHTS])),
        n_probs=draw(st.sampled_from([0, 0, 0, 1, 3])),
        seed=draw(st.one_of(st.none(), st.integers(0, 99))),
        adapters=draw(SETS) if setup.with_adapters else (),
        n_keep=draw(st.sampled_from([0, 0, 5, -1])) if setup.shift else 0,
        n_discard=draw(st.sampled_from([0, 0, 1, 7, 99])) if setup.shift else 0,
        n_cache_reuse=draw(st.sampled_from([0, 0, 0, 3, 8])) if setup.shift else 0,
    )


def ops(setup: Setup) -> SearchStrategy[Op]:
    steps = st.builds(Steps, st.integers(1, 8))
    reply = st.builds(Reply, st.integers(0, 9), TAILS.filter(bool), st.integers(0, 20))
    return st.one_of(submits(setup), submits(setup), steps, steps, reply, st.builds(Cancel, st.integers(0, 9)))


@st.composite
def histories(
    draw: DrawFn,
    unified: bool = True,
    faulty: bool = False,
    shift: bool | None = None,
    kinds: tuple[Kind, ...] = (Kind.ATTENTION,),
) -> History:
    """Four lists rather than one: they are longer that way, and each still shrinks to nothing."""
    setup = draw(setups(unified, faulty, shift, kinds))
    several = st.lists(ops(setup), max_size=12)
    return History(setup, tuple(op for _ in range(4) for op in draw(several)))


# --- what each task must say -----------------------------------------------------------------------------------------


class OneRow:
    """A sampler of the engine as the oracle wants it: one row at a time."""

    def __init__(self, sampler: RowSampler) -> None:
        self._sampler = sampler
        self.n_picked = 0
        self.n_whole: int | None = None

    def pick(self, logits: Logits, allowed: object = None) -> Picked:
        picked = pick_rows(logits[None], [(0, self._sampler)])[0]
        self.n_picked += 1
        if self.n_whole is None and self._sampler.is_complete:
            self.n_whole = self.n_picked
        return picked

    def feed(self, tokens: Sequence[Token]) -> None:
        pass

    def close(self) -> None:
        pass


@lru_cache(maxsize=4096)
def alone(
    prompt: tuple[Token, ...],
    n_predict: int,
    sampling: Sampling,
    adapters: AdapterSet,
    n_base: int,
    shifting: Shifting | None = None,
    kind: Kind = Kind.ATTENTION,
) -> tuple[tuple[Token, ...], bool]:
    """What the task would draw alone and cold, and whether that is all it was held to."""
    sampler = OneRow(new_row_sampler(sampling, MODEL, EOG, prompt))
    model = MODELS[kind]
    tokens = solo(prompt, n_predict, model=model, sampler=sampler, adapters=adapters, n_base=n_base, shifting=shifting)
    return tokens[: sampler.n_whole], sampler.n_whole is not None


def activated(task: Task) -> tuple[AdapterSet, int]:
    """The adapters that act, and from which token on."""
    invocations = [INVOCATIONS[i] for i, _ in task.adapters]
    if not all(invocations) or not invocations:
        return task.adapters, 0
    n, tokens = len(invocations[0]), task.prompt
    n_base = max((i for i in range(len(tokens)) if tokens[i : i + n] == invocations[0]), default=-1)
    return (task.adapters, n_base) if n_base >= 0 else ((), 0)


Cell = tuple[Token, AdapterSet]


def cells(task: Task, answer: tuple[Token, ...] = ()) -> list[Cell]:
    """The task's tokens, each with the adapters under which it is computed."""
    adapters, n_base = activated(task)
    return [(token, adapters if i >= n_base else ()) for i, token in enumerate(task.prompt + answer)]


def expected(
    task: Task, n_ctx: int, kind: Kind = Kind.ATTENTION, shift: bool = False
) -> tuple[tuple[Token, ...], str, StopReason]:
    """Tokens, text and reason of the whole answer, with at most one stop string, of ASCII."""
    n_max = n_ctx - len(task.prompt)
    n_predict = task.limits.n_predict
    shifting = None
    if shift:
        shifting = Shifting(n_ctx, n_kept(task.n_keep, len(task.prompt), MODEL.info.add_bos, n_ctx), task.n_discard)
    else:
        n_predict = n_max if n_predict < 0 else min(n_predict, n_max)
    return ended(task, *alone(task.prompt, n_predict, task.sampling, *activated(task), shifting, kind))


def ended(task: Task, tokens: tuple[Token, ...], is_whole: bool = False) -> tuple[tuple[Token, ...], str, StopReason]:
    """Where a stop string ends these tokens, if one does, with their text and the reason.

    ``is_whole``: they end because they are all that they were held to.
    """
    said, searched = b"", b""
    for n, is_thought in enumerate(in_thoughts(task, tokens) if task.limits.stop else (), 1):
        piece = MODEL.tokenizer.piece(tokens[n - 1], special=False)
        said += piece
        searched += bytes(len(piece)) if is_thought else piece
        if (at := searched.find(task.limits.stop[0].encode())) >= 0:
            return tokens[:n], said[:at].decode("utf-8", "replace"), StopReason.WORD
    reason = StopReason.EOS if is_whole or (tokens and tokens[-1] in EOG) else StopReason.LIMIT
    return tokens, MODEL.tokenizer.detokenize(tokens, special=False), reason


def in_thoughts(task: Task, tokens: tuple[Token, ...]) -> list[bool]:
    """Of each token whether it is of thoughts, in which stop strings do not count."""
    sampler = new_row_sampler(task.sampling, MODEL, EOG, task.prompt)
    found = []
    for token in tokens:
        sampler.take_forced()
        found.append(sampler.took(Picked(token)).is_thought)
    return found


# --- playing ---------------------------------------------------------------------------------------------------------


@dataclass
class Heard:
    """The events of one open task so far."""

    task: Task
    started: Started | None = None
    text: str = ""
    tokens: tuple[Token, ...] = ()


@dataclass
class Player:
    """Plays a history and raises AssertionError as soon as something is not as it must be."""

    setup: Setup
    disk: DiskTier | None = None
    engine: Engine = field(init=False)
    context: SimContext = field(init=False)
    open: dict[TaskId, Heard] = field(default_factory=dict)
    finished: dict[TaskId, tuple[Task, Finished]] = field(default_factory=dict)
    failed: dict[TaskId, Failed] = field(default_factory=dict)
    starts: dict[TaskId, Started] = field(default_factory=dict)
    kept: dict[CacheKey, list[list[Cell]]] = field(default_factory=dict)
    left: list[tuple[CacheKey, tuple[Token, ...]]] = field(default_factory=list)
    inexact: set[TaskId] = field(default_factory=set)
    n_tasks: int = 0
    n_steps: int = 0

    def __post_init__(self) -> None:
        setup, clock = self.setup, VirtualClock()
        config = ContextConfig(
            n_ctx=setup.n_cells,
            n_slots=setup.n_slots,
            n_rows=setup.n_slots + setup.n_spare,
            n_batch=setup.n_batch,
            n_ubatch=setup.n_ubatch,
            kv_unified=setup.unified,
            swa_full=setup.swa_full,
        )
        faults = Faults(decode=dict(setup.faults).get, load=setup.bad_loads.__contains__)
        model = SimModel(replace(MODELS[setup.kind].spec, n_ctx_train=setup.n_ctx))
        self.context = model.new_context(config, clock, faults=faults)
        scheduling = EngineConfig(
            n_slots=setup.n_slots,
            itl_target_ms=setup.itl_target_ms,
            cache_ram_bytes=setup.cache_ram_bytes,
            cont_batching=setup.cont_batching,
            min_shared_prefill=setup.min_shared_prefill,
            min_reuse=setup.min_reuse,
            n_ctx_checkpoints=setup.n_checkpoints,
            checkpoint_min_step=setup.min_step,
            min_checkpoint=2,
            park_min_tokens=setup.park_min_tokens,
            priority_age_ms=setup.priority_age_ms,
            context_shift=setup.shift,
            audit=True,
        )
        self.engine = Engine(MODEL, self.context, clock, scheduling, self.disk)

    def play(self, ops: Sequence[Op]) -> Player:
        """Carry out everything, then step until all tasks have ended."""
        for op in ops:
            match op:
                case Submit():
                    self.submit(op)
                case Reply():
                    self.reply(op)
                case Cancel(which):
                    self.cancel(which)
                case Steps(n):
                    for _ in range(n):
                        self.step()
        return self.drain()

    def submit(self, op: Submit) -> list[TaskId]:
        stem = STEMS[op.stem][: max(0, op.n_prompt - len(op.tail))]
        return self._submit(op, (stem + op.tail)[: op.n_prompt])

    def reply(self, op: Reply) -> None:
        if self.finished:
            task, end = list(self.finished.values())[op.which % len(self.finished)]
            turn = Submit(n_predict=op.n_predict, tenant=task.tenant, priority=task.priority, adapters=task.adapters)
            prompt = (task.prompt + end.tokens + op.tail)[: self.setup.n_ctx - 1]
            self._submit(turn, prompt, task.cache_key)

    def _cache_key(self, op: Submit) -> CacheKey:
        tenant = "" if self.setup.shared_cache else op.tenant
        return CacheKey(f"{tenant}:{op.salt}" if tenant or op.salt else "")

    def _submit(self, op: Submit, prompt: tuple[Token, ...], key: CacheKey | None = None) -> list[TaskId]:
        parent = TaskId(self.n_tasks + 1)
        n_predict = 2 * self.setup.n_ctx if self.setup.shift and op.n_predict < 0 else op.n_predict
        greedy = Sampling(temperature=0.0)
        drawn = [greedy if op.seed is None else replace(WILD, seed=op.seed + i) for i in range(op.n)]
        sampling = [
            replace(s, ignore_eos=op.ignore_eos, constraint=op.held, thoughts=op.thoughts, n_probs=op.n_probs)
            for s in drawn
        ]
        group = tuple(
            Task(
                TaskId(parent + i),
                prompt,
                sampling=sampling[i],
                limits=Limits(n_predict=n_predict, stop=(op.stop,) if op.stop else ()),
                cache_key=self._cache_key(op) if key is None else key,
                tenant=TenantId(op.tenant),
                weight=WEIGHTS[op.tenant],
                priority=op.priority,
                cache_prompt=op.cache_prompt,
                id_slot=None if op.id_slot is None else SlotId(op.id_slot % self.setup.n_slots),
                index=i,
                parent=None if i == 0 else parent,
                adapters=op.adapters,
                n_keep=op.n_keep,
                n_discard=op.n_discard,
                n_cache_reuse=op.n_cache_reuse,
            )
            for i in range(op.n)
        )
        self.n_tasks += op.n
        self.open |= {task.id: Heard(task) for task in group}
        self.engine.submit(group)
        return [task.id for task in group]

    def cancel(self, which: int) -> None:
        if self.open:
            self.forget(list(self.open)[which % len(self.open)])

    def forget(self, task: TaskId) -> None:
        """Nobody wants this task any more: no event of it may come."""
        del self.open[task]
        self.engine.cancel([task])
        self.engine.publish()

    def drain(self) -> Player:
        while self.engine.has_work:
            self.step()
        assert not self.open, f"nothing to do, but these never ended: {list(self.open)}"
        snapshot = self.engine.snapshot
        assert snapshot.n_leased == 0, f"{snapshot.n_leased} cells belong to nobody"
        assert snapshot.n_busy == 0
        private = [row for row in self.engine.books.ledger.rows() if self._key(row).startswith(PRIVATE)]
        assert not private, f"rows {private} keep what was not to be kept"
        return self

    def until(self, reached: Callable[[], bool]) -> Player:
        """Step until something is so; fails where it never is."""
        while not reached():
            assert self.engine.has_work, "everything is over and it never was so"
            self.step()
        return self

    def step(self) -> list[Event]:
        self.n_steps += 1
        assert self.n_steps <= MAX_STEPS, f"no end: {[s.state.value for s in self.engine.books.slots]}"
        n_prompt = self.engine.snapshot.counters.n_prompt
        events = self.engine.step()
        assert self.engine.snapshot.counters.n_prompt >= n_prompt, "a counter shrank"
        self._note_inexact()
        for event in events:
            assert event.task_id in self.open, f"an event of a task that is over: {event}"
            self._hear(self.open[event.task_id], event)
        self._check_memory()
        return events

    def _note_inexact(self) -> None:
        """Who need not say what the oracle of shifts says: what it moved was computed anew, or it goes on with moved
        cells, which only one may do that begins with all that such a conversation left."""
        books = self.engine.books
        for action in self.engine.last_plan.actions:
            match action.effect:
                case Shorten(slot, _) if any(isinstance(op, Trim) for op in action.ops) or not action.ops:
                    self._disturb(books.slots[slot].last_task)
                case Park(slot) if books.slots[slot].generation is None or books.slots[slot].work.truncated:
                    self._disturb(books.slots[slot].last_task)
                case Begin(slot, row, n) if n and books.ledger.own_key(row) is not None:
                    self._note_moved(books.slots[slot].last_task)
        for held in books.held:
            if held.generation and held.generation.truncated:
                self._disturb(held.group[0])
        for memory in (s.memory for s in books.slots):
            if memory and memory.is_shifted:
                self.left.append((memory.owner, tuple(memory.tokens)))

    def _note_moved(self, task: Task | None) -> None:
        assert task is not None
        if task.n_cache_reuse > 0:
            return self._disturb(task)
        known = [tokens for key, tokens in self.left if key == prefix_key(task)]
        given = task.id in self.inexact or any(tuple(marked(task))[: len(t)] == t for t in known)
        assert given, f"task {task.id} was given moved cells"
        self._disturb(task)

    def _disturb(self, task: Task | None) -> None:
        assert task is not None and (self.setup.shift or task.n_cache_reuse)
        self.inexact.add(task.id)

    # --- the referee -----------------------------------------------------------------------------------------------

    def _hear(self, heard: Heard, event: Event) -> None:
        match event:
            case Started():
                assert heard.started is None, "started twice"
                heard.started = self.starts[event.task_id] = event
                self._check_start(heard.task, event)
            case Chunk():
                assert heard.started is not None, "text before the start"
                assert event.text, "an empty chunk"
                heard.text += event.text
                heard.tokens += event.tokens
            case Finished():
                assert heard.started is not None, "finished without a start"
                del self.open[event.task_id]
                self.finished[event.task_id] = heard.task, event
                self._check_answer(heard, event)
            case Failed():
                del self.open[event.task_id]
                self.failed[event.task_id] = event
                self._check_failure(heard.task, event)

    def _check_start(self, task: Task, started: Started) -> None:
        """It runs where it asked to, and knows no prefix but from its own tenant."""
        if task.id_slot is not None and task.parent is None:
            assert started.slot_id == task.id_slot, f"asked for slot {task.id_slot}: {started}"
        assert started.n_prompt == len(task.prompt)
        assert 0 <= started.n_cached < started.n_prompt, f"nothing left to compute: {started}"
        if task.parent is None and not self.setup.shift and not task.n_cache_reuse:
            others = self.kept.get(task.cache_key, []) if task.cache_prompt else []
            n_known = max((n_alike(seen, cells(task)) for seen in others), default=0)
            assert started.n_cached <= n_known, f"{started} with {n_known} tokens known under its key"
        if task.cache_prompt:
            answer, _, _ = expected(task, self.setup.n_ctx, self.setup.kind)
            self.kept.setdefault(task.cache_key, []).append(cells(task, answer))

    def _check_answer(self, heard: Heard, end: Finished) -> None:
        task = heard.task
        n_ctx, shift = self.setup.n_ctx, self.setup.shift
        tokens, text, reason = expected(task, n_ctx, self.setup.kind, shift)
        if task.id in self.inexact:
            is_whole = task.sampling.constraint is not None and end.reason is StopReason.EOS
            tokens, text, reason = ended(task, end.tokens, is_whole)
            assert len(tokens) == task.limits.n_predict or reason is not StopReason.LIMIT, f"ended early: {end}"
        assert end.tokens == tokens, f"task {task.id}: {end.tokens} is not {tokens}"
        assert end.text == text == heard.text, f"task {task.id}: {heard.text!r}, {end.text!r}, expected {text!r}"
        assert end.reason is reason, f"task {task.id}: {end.reason} is not {reason}"
        assert heard.tokens == tokens[: len(heard.tokens)], "chunks carry other tokens than the answer"
        check_thoughts(task, end.tokens)
        is_full = len(task.prompt + tokens) > n_ctx if shift else len(task.prompt + tokens) == n_ctx
        assert end.truncated == (is_full and (shift or reason is StopReason.LIMIT))
        assert end.timings.n_cached + end.timings.n_prompt == len(task.prompt)
        assert end.timings.n_predicted == len(tokens)

    def _check_failure(self, task: Task, end: Failed) -> None:
        """Only what can never fit is refused, and only a failed pass harms, and only those who were in it."""
        if len(task.prompt) >= self.setup.n_ctx:
            assert isinstance(end.error, ExceedContext), f"{task}: {end.error!r}"
            return
        assert self.setup.faults, f"task {task.id} failed without a fault: {end.error!r}"
        assert isinstance(end.error, DecodeFailed), f"{end.error!r}"
        in_batch = [self.engine.books.slots[s.slot].last_task for s in self.engine.last_plan.spans]
        assert task.id in [t.id for t in in_batch if t], f"task {task.id} failed with a batch that it was not in"

    def _check_memory(self) -> None:
        """The cells hold what the ledger says, and the RAM tier keeps its budget (saved rows have a header each)."""
        self.context.check()
        ledger, limit = self.engine.books.ledger, self.setup.cache_ram_bytes
        for row in ledger.rows() if self.setup.kind is not Kind.RECURRENT else ():
            assert self.context.tokens(row) == plain(ledger.tokens(row)), f"row {row} holds other tokens"
        if limit >= 0 and not self.setup.bad_loads:
            books = self.engine.books
            store, arrived = books.store, books.disk.arrived if books.disk else ()
            n_arrived = sum(ledger.snapshot_bytes(s) for s in arrived if s in store)
            assert store.n_bytes - 20 * len(store) - n_arrived <= limit, f"{store.n_bytes} bytes kept, {limit} allowed"

    def _key(self, row: RowId) -> str:
        ledger = self.engine.books.ledger
        return ledger.key(row) if ledger.length(row) else ""


def check_thoughts(task: Task, tokens: tuple[Token, ...]) -> None:
    """Thoughts that were open end in time: by themselves, or as they have to."""
    budget = task.sampling.thoughts
    if budget is None or budget.n_open < 0 or task.sampling.constraint is not None:
        return
    n = max(0, budget.n_tokens - budget.n_open)
    if any(tokens[at : at + len(budget.forced)] == budget.forced[: len(tokens[at:])] for at in range(n, n + 4)):
        return
    said = b"".join(MODEL.tokenizer.piece(token, special=True) for token in tokens[: n + 3])
    assert any(end.encode() in said for end in budget.ends), f"thoughts of {budget.n_tokens} tokens go on: {tokens}"


def n_alike(a: list[Cell], b: list[Cell]) -> int:
    """How many cells from the start are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def play(history: History) -> Player:
    """Raises AssertionError, or whatever the engine raises, where the history goes wrong."""
    return Player(history.setup).play(history.ops)
