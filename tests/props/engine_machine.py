"""Plays a history on a whole engine over the fake, and is the referee: of each token, of prefixes, memory, failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.props.answers import MODEL, MODELS, Cell, cells, check_thoughts, ended, expected, expected_probs, n_alike
from tests.props.harms import spoil
from tests.props.histories import (
    N_STEMS,
    Cancel,
    Erase,
    Harm,
    History,
    Op,
    Pin,
    Reply,
    Restart,
    Restore,
    Save,
    Setup,
    Steps,
    Submit,
    Unpin,
)
from tests.props.operators import Operators

from corral.config import ContextConfig, EngineConfig
from corral.engine.adapted import marked, plain
from corral.engine.core import Engine
from corral.engine.disk_entry import identity_of
from corral.engine.disk_tier import DiskTier
from corral.engine.ledger import Lease
from corral.engine.plan import Park, Shorten
from corral.engine.slot import PRIVATE, Slot, prefix_key
from corral.errors import DecodeFailed, ExceedContext, Unavailable
from corral.events import CacheDone, Chunk, Event, Failed, Finished, SlotDone, Started, StopReason
from corral.ids import CacheKey, SlotId, TaskId, TenantId, Token
from corral.ops import Trim
from corral.sim.clock import VirtualClock
from corral.sim.context import Faults, SimContext
from corral.sim.model import SimModel
from corral.sim.shape import Kind
from corral.tasks import Limits, Sampling, Task

WEIGHTS = {"": 1.0, "a": 1.0, "b": 3.0}
STEMS = [tuple(Random(i).choices(range(97, 100), k=1000)) for i in range(N_STEMS)]

WILD = Sampling(temperature=2.0, top_k=20, top_p=1.0, min_p=0.0)
"""The fake's favourite wins about half of the draws."""

MAX_STEPS = 3000
"""Any history here is over long before; more steps mean that nothing moves."""


@dataclass
class Heard:
    """The events of one open task so far."""

    task: Task
    started: Started | None = None
    text: str = ""
    tokens: tuple[Token, ...] = ()


@dataclass
class Player:
    """Plays a history and raises AssertionError as soon as something is not as it must be.

    ``folder`` is that of the disk tier, if the setup has one; ``kept``: what anybody may find, under which key.
    """

    setup: Setup
    folder: Path | None = None
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
        self.operators = Operators(self)
        self._start()

    def _start(self, n_decodes: int = 0, n_loads: int = 0) -> None:
        """So many decodes and loads there were before this engine."""
        setup, clock = self.setup, VirtualClock()
        faults = Faults(
            decode=lambda n: dict(setup.faults).get(n + n_decodes), load=lambda n: n + n_loads in setup.bad_loads
        )
        model = SimModel(replace(MODELS[setup.kind].spec, n_ctx_train=setup.n_ctx))
        self.context = model.new_context(_context_config(setup), clock, faults=faults)
        self.engine = Engine(MODEL, self.context, clock, _engine_config(setup), self._disk())
        self._watch_beginnings()

    def _disk(self) -> DiskTier | None:
        setup = self.setup
        if setup.disk_bytes < 0 or self.folder is None:
            return None
        memory = f"{setup.unified} {setup.n_slots} {setup.kind} {setup.swa_full}"
        return DiskTier(self.folder, setup.disk_bytes, identity_of(memory), threaded=False)

    # --- playing ---------------------------------------------------------------------------------------------------

    def play(self, ops: Sequence[Op]) -> Player:
        """Carry out everything, then step until all tasks have ended."""
        for op in ops:
            self.do(op)
        return self.drain()

    def do(self, op: Op) -> None:
        match op:
            case Submit():
                self.submit(op)
            case Reply():
                self.reply(op)
            case Cancel(which):
                self.cancel(which)
            case Steps(n):
                self._steps(n)
            case Restart(in_order):
                self.restart(in_order)
            case Harm(seed):
                if self.folder is not None:
                    spoil(self.folder, Random(seed))
            case Pin() | Unpin() | Save() | Restore() | Erase():
                self.operators.ask(op)

    def _steps(self, n: int) -> None:
        for _ in range(n):
            if not self.engine.has_work:
                return
            self.step()

    def submit(self, op: Submit) -> list[TaskId]:
        stem = STEMS[op.stem][: max(0, op.n_prompt - len(op.tail))]
        return self._submit(op, (stem + op.tail)[: op.n_prompt])

    def reply(self, op: Reply) -> None:
        if self.finished:
            task, end = list(self.finished.values())[op.which % len(self.finished)]
            borders = (len(task.prompt), len(task.prompt + end.tokens))
            turn = Submit(
                n_predict=op.n_predict,
                tenant=task.tenant,
                priority=task.priority,
                adapters=task.adapters,
                borders=borders,
            )
            prompt = (task.prompt + end.tokens + op.tail)[: self.setup.n_ctx - 1]
            self._submit(turn, prompt, task.cache_key)

    def cache_key(self, tenant: str, salt: str = "") -> CacheKey:
        tenant = "" if self.setup.shared_cache else tenant
        return CacheKey(f"{tenant}:{salt}" if tenant or salt else "")

    def new_id(self, n: int = 1) -> TaskId:
        """The first of ``n`` new ones."""
        self.n_tasks += n
        return TaskId(self.n_tasks - n + 1)

    def _submit(self, op: Submit, prompt: tuple[Token, ...], key: CacheKey | None = None) -> list[TaskId]:
        parent = self.new_id(op.n)
        n_predict = 2 * self.setup.n_ctx if self.setup.shift and op.n_predict < 0 else op.n_predict
        greedy = Sampling(temperature=0.0)
        drawn = [greedy if op.seed is None else replace(WILD, seed=op.seed + i) for i in range(op.n)]
        held = {"ignore_eos": op.ignore_eos, "constraint": op.held, "thoughts": op.thoughts, "n_probs": op.n_probs}
        sampling = [replace(s, **held) for s in drawn]
        group = tuple(
            Task(
                TaskId(parent + i),
                prompt,
                sampling=sampling[i],
                limits=Limits(n_predict=n_predict, stop=(op.stop,) if op.stop else ()),
                cache_key=self.cache_key(op.tenant, op.salt) if key is None else key,
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
                borders=op.borders,
                n_prompt_probs=op.n_prompt_probs,
            )
            for i in range(op.n)
        )
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

    def restart(self, in_order: bool = True) -> None:
        """Another engine, over the same folder. Out of order the old one is as if killed."""
        if in_order:
            self.stop()
        self.open.clear()
        self.left.clear()
        self.operators.forget()
        if self.folder is None:
            self.kept.clear()
        self._start(self.context.n_decodes, self.context.n_loads)

    def stop(self) -> None:
        """Whoever is there is told, and what is worth it goes to disk."""
        there = {*self.open, *self.operators.asked}
        ends = self.engine.retire(Unavailable("over"))
        assert {end.task_id for end in ends} == there, f"{there} were there, these were told: {ends}"
        self.engine.close()

    def drain(self) -> Player:
        while self.engine.has_work:
            self.step()
        assert not self.open, f"nothing to do, but these never ended: {list(self.open)}"
        assert not self.operators.asked, f"nothing to do, but these were not answered: {self.operators.asked}"
        snapshot = self.engine.snapshot
        assert snapshot.n_leased == 0, f"{snapshot.n_leased} cells belong to nobody"
        assert snapshot.n_busy == 0
        private = [key for key in self.engine.books.ledger.cache_keys() if key.startswith(PRIVATE)]
        assert not private, f"what was not to be kept is kept under {private}"
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
            if event.task_id in self.operators.asked:
                assert isinstance(event, SlotDone | CacheDone | Failed), event
                self.operators.hear(event)
                continue
            assert event.task_id in self.open, f"an event of a task that is over: {event}"
            self._hear(self.open[event.task_id], event)
        self._check_memory()
        self.operators.check()
        return events

    # --- answers that are not exact --------------------------------------------------------------------------------

    def _watch_beginnings(self) -> None:
        """Be told when a task gets its row: that is when it may get moved cells."""
        begin = self.engine._life.begin

        def watched(slot: Slot, lease: Lease, n_reused: int, now_ms: float) -> None:
            if n_reused and self.engine.books.ledger.own_key(lease.row) is not None:
                self._note_moved(slot.work.task)
            begin(slot, lease, n_reused, now_ms)

        self.engine._life.begin = watched  # type: ignore[method-assign]

    def _note_inexact(self) -> None:
        """Who need not say what the oracle of shifts says: what it moved was computed anew."""
        books = self.engine.books
        for action in self.engine.last_plan.actions:
            match action.effect:
                case Shorten(slot, _) if any(isinstance(op, Trim) for op in action.ops) or not action.ops:
                    self._disturb(books.slots[slot].last_task)
                case Park(slot) if books.slots[slot].generation is None or books.slots[slot].work.truncated:
                    self._disturb(books.slots[slot].last_task)
        for held in books.held:
            if held.generation and held.generation.truncated:
                self._disturb(held.group[0])
        for memory in (s.memory for s in books.slots):
            if memory and memory.is_shifted:
                self.left.append((memory.owner, tuple(memory.tokens)))

    def _note_moved(self, task: Task) -> None:
        """It goes on with moved cells, which only one may do that begins with all that such a conversation left."""
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
        shares = task.cache_prompt and task.n_prompt_probs < 0
        if task.parent is None and not self.setup.shift and not task.n_cache_reuse:
            others = self.kept.get(task.cache_key, []) if shares else []
            n_known = max((n_alike(seen, cells(task)) for seen in others), default=0)
            assert started.n_cached <= n_known, f"{started} with {n_known} tokens known under its key"
        if shares:
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
        self._check_prompt_probs(task, end)

    def _check_prompt_probs(self, task: Task, end: Finished) -> None:
        known = expected_probs(task, self.setup.kind) if task.n_prompt_probs >= 0 else ()
        assert end.prompt_probs == known, f"task {task.id}: {len(end.prompt_probs)} of {len(known)} probabilities"

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


def _context_config(setup: Setup) -> ContextConfig:
    return ContextConfig(
        n_ctx=setup.n_cells,
        n_slots=setup.n_slots,
        n_rows=setup.n_slots + setup.n_spare,
        n_batch=setup.n_batch,
        n_ubatch=setup.n_ubatch,
        kv_unified=setup.unified,
        swa_full=setup.swa_full,
    )


def _engine_config(setup: Setup) -> EngineConfig:
    return EngineConfig(
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


def play(history: History, folder: Path | None = None) -> Player:
    """Raises AssertionError, or whatever the engine raises, where the history goes wrong."""
    return Player(history.setup, folder).play(history.ops)
