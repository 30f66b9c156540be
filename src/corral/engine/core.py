"""The engine: takes tasks in, moves them on by one step at a time, says what happened.

A step is plan -> execute -> commit. The planner is pure, the executor touches only the context, commit is the only
writer of the books.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.config import MIB, EngineConfig
from corral.engine import audit
from corral.engine.adapted import settle
from corral.engine.books import Books
from corral.engine.cache_work import CacheWork
from corral.engine.commit import Commit
from corral.engine.disk_tier import DiskTier
from corral.engine.disk_work import DiskWork
from corral.engine.draft import Waiting
from corral.engine.executor import Executor
from corral.engine.life import Life
from corral.engine.plan import Plan
from corral.engine.policy import plan
from corral.engine.publish import publish
from corral.engine.sampling import RowSampler, new_row_sampler, used_seed
from corral.engine.slot_work import SlotWork
from corral.engine.snapshots import SnapshotStore
from corral.engine.state import EngineSnapshot
from corral.errors import CorralError, ExceedContext, InvalidRequest, Unavailable
from corral.events import ControlDone, Event, Failed, Finished, StopReason, Timings
from corral.ids import SlotId, TaskId
from corral.ops import Trim
from corral.ports import Clock, Context, Model
from corral.tasks import Action, CacheAction, ControlAction, Task, TaskGroup

LINGER = 0.05
MAX_LINGER_MS = 10.0
MAX_HELD_BYTES = 512 * MIB
"""What samplers of waiting tasks may keep in memory; one group may have more."""
WRITE_OUT_S = 15.0
"""So long may the end of the engine be put off by what is to be kept on disk."""


class Engine:
    """Not thread-safe: one thread calls it (``thread.EngineThread`` does).

    ``books`` are for reading; ``snapshot`` is what other threads read; ``last_plan`` is that of the last step.
    """

    def __init__(
        self, model: Model, context: Context, clock: Clock, config: EngineConfig, disk: DiskTier | None = None
    ) -> None:
        """``disk`` becomes the engine's, which closes it."""
        self.books = Books.open(config, context.traits, SnapshotStore(context.give_back))
        self.last_plan = Plan()
        self._model = model
        self._context = context
        self._clock = clock
        self._unbooked_ms = 0.0
        self._executor = Executor(context, self.books.store, clock, disk)
        self._life = Life(self.books, model.info, model.tokenizer)
        self._commit = Commit(self.books, self._life)
        self._slot_work = SlotWork(self.books, context, self._executor, self._commit, clock)
        self._cache_work = CacheWork(self.books, self._slot_work, model.adapters)
        self._disk_work = DiskWork(self.books, disk, clock) if disk else None
        self.snapshot: EngineSnapshot = publish(self.books)

    # --- from outside ----------------------------------------------------------------------------------------------

    def now_ms(self) -> float:
        """The engine's time; from any thread."""
        return self._clock.now_ms()

    def submit(self, group: TaskGroup, arrived_ms: float | None = None) -> None:
        """Take a group in. What cannot be served is answered at once, by an event of the next ``step``.

        ``arrived_ms``: when it came, now unless given; during a forward pass it waits to be taken in.
        """
        books = self.books
        try:
            self._check(group)
            group = settle(group, self._model.adapters)
            samplers = self._open_samplers(group) if group[0].prompt else {}
        except CorralError as error:
            books.metrics.add("n_refused", len(group))
            self._life.events.extend(Failed(task.id, error) for task in group)
            return
        if not group[0].prompt:
            self._life.events.extend(_nothing(task) for task in group)
            return
        books.samplers.update(samplers)
        now_ms = self._clock.now_ms()
        books.shares.arrive(group[0], books.queued(), now_ms)
        arrived_ms = now_ms if arrived_ms is None else arrived_ms
        books.waiting.append(Waiting(group, arrived_ms, held_bytes=_held_bytes(group)))

    def _check(self, group: TaskGroup) -> None:
        """Raises the error of a group that can never run, or not now."""
        n_slots, n_ctx, n_vocab = len(self.books.slots), self.books.n_ctx_slot, self._model.info.n_vocab
        prompt, id_slot = group[0].prompt, group[0].id_slot
        bad = next((t for t in prompt if not 0 <= t < n_vocab), None)
        if bad is not None:
            raise InvalidRequest(f"Prompt contains invalid tokens: {bad} is not in [0, {n_vocab})")
        if len(prompt) >= n_ctx:
            raise ExceedContext(len(prompt), n_ctx)
        if len(group) > n_slots:
            raise InvalidRequest(f"n is {len(group)}, but there are only {n_slots} slots (-np)")
        if id_slot is not None and not 0 <= id_slot < n_slots:
            raise InvalidRequest(f"id_slot is {id_slot}, but slots are 0 to {n_slots - 1}")
        self._check_queue(group)

    def _check_queue(self, group: TaskGroup) -> None:
        books, limit = self.books, self.books.config.max_queue
        n_idle = sum(s.is_idle for s in books.slots)
        n_queued = sum(len(w.group) for w in books.waiting) + len(group)
        if n_queued - n_idle > limit and not self._within_share(group, len, limit):
            raise self._full(f"{limit} tasks wait (--max-queue)", n_queued)
        held_bytes = sum(w.held_bytes for w in books.waiting)
        is_over = held_bytes and held_bytes + _held_bytes(group) > MAX_HELD_BYTES
        if is_over and not self._within_share(group, _held_bytes, MAX_HELD_BYTES):
            raise self._full(f"grammars and the like of tasks that wait take {held_bytes >> 20} MiB", n_queued)

    def _within_share(self, group: TaskGroup, measure: Callable[[TaskGroup], int], limit: int) -> bool:
        """Whether the group's tenant has, with it, no more than an even share among those that wait.

        So none is kept out by what others sent. With k tenants at most 1 + 1/2 + ... + 1/k times the limit wait.
        """
        tenant = group[0].tenant
        tenants = {tenant, *(w.group[0].tenant for w in self.books.waiting)}
        own = sum(measure(w.group) for w in self.books.waiting if w.group[0].tenant == tenant)
        return own + measure(group) <= limit // len(tenants)

    def _full(self, why: str, n_queued: int) -> Unavailable:
        books, e2e = self.books, self.books.metrics.e2e.publish()
        mean_s = e2e.total / e2e.n if e2e.n else 2.0
        half_s = mean_s * n_queued / (2 * len(books.slots))  # by then about half of the queue is gone
        retry_after_s = max(1, min(600, round(half_s)))
        return Unavailable(f"the queue is full: {why}; try again later", retry_after_s)

    def _open_samplers(self, group: TaskGroup) -> dict[TaskId, RowSampler]:
        samplers: dict[TaskId, RowSampler] = {}
        eog = self._model.info.eog_tokens
        try:
            for task in group:
                samplers[task.id] = new_row_sampler(task.sampling, self._model, eog, task.prompt)
        except BaseException:
            for sampler in samplers.values():
                sampler.close()
            raise
        return samplers

    def act(self, action: Action) -> None:
        """Take in what is asked of the cache, or of a slot: that is done by the first ``step`` that finds it idle.

        What is asked of a running task is done at once. Answers are among the events of the next ``step``.
        """
        if isinstance(action, CacheAction):
            self._cache_work.add(action)
            return
        if isinstance(action, ControlAction):
            self._life.events.append(self._control(action))
            return
        n_slots, n_vocab = len(self.books.slots), self._model.info.n_vocab
        if not 0 <= action.slot < n_slots:
            raise ValueError(f"slot {action.slot} is not in [0, {n_slots})")  # over HTTP the number wraps around
        if any(not 0 <= token < n_vocab for token in action.tokens):
            error = InvalidRequest("Unable to restore slot: Invalid tokens in slot save file")
            self._life.events.append(Failed(action.id, error))
            return
        self._slot_work.add(action)

    def _control(self, action: ControlAction) -> ControlDone:
        running = (g.task for g in self.books.generations() if g.task.request_id == action.request_id)
        asked = [self.books.samplers[task.id].thoughts for task in running if task.tenant == action.tenant]
        if not asked:
            return ControlDone(action.id, "no active completion for this id")
        armed = [thoughts for thoughts in asked if thoughts is not None and thoughts.can_end]
        for thoughts in armed:
            thoughts.end()
        return ControlDone(action.id, "" if armed else "reasoning control not enabled for this completion")

    def cancel(self, tasks: Sequence[TaskId]) -> None:
        """Forget these tasks wherever they are. Ended and unknown ones are ignored; no event is sent for any."""
        gone, books = set(tasks), self.books
        for slot in books.slots:
            if slot.generation and slot.work.task.id in gone:
                self._life.cancel(slot)
        for held in [w for w in books.held if w.group[0].id in gone]:
            self._life.drop(held)
        for waiting in books.waiting:
            for task in waiting.group:
                if task.id in gone:
                    books.metrics.add("n_cancelled")
                    books.close_sampler(task.id)
            waiting.group = tuple(t for t in waiting.group if t.id not in gone)
        books.waiting = [w for w in books.waiting if w.group]
        self._slot_work.forget(gone)
        self._cache_work.forget(gone)
        self._life.events = [e for e in self._life.events if e.task_id not in gone]

    def linger_ms(self) -> float:
        """How long a step may wait for company: while nobody runs, a small part of what those that wait will take.

        Prompts that arrive together are computed together; one alone loses next to nothing.
        """
        books = self.books
        if not books.waiting or any(not s.is_idle for s in books.slots):
            return 0.0
        n_tokens = sum(len(w.group[0].prompt) for w in books.waiting)
        return min(MAX_LINGER_MS, LINGER * books.cost.weights.n_tokens * n_tokens)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return self.books.has_work or self._slot_work.is_ready or self._cache_work.is_ready or bool(self._life.events)

    # --- a step ----------------------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Move everything on by one forward pass at most; returns the events since the last step, in order."""
        if self._disk_work:
            self._disk_work.take_in()
        self._life.events += self._cache_work.run()
        self._life.events += self._slot_work.run()
        start_ms = self._clock.now_ms()
        self.last_plan = chosen = plan(self.books.view(start_ms))
        if self.books.config.audit:
            audit.check_progress(self.books, chosen)
            audit.check_batch(self.books, chosen)
        outcome = self._executor.run(chosen, self._slot_samplers(chosen))
        self._commit.record(chosen, outcome, start_ms)
        if self._disk_work:
            self._disk_work.start(chosen)
            self._disk_work.fetch(self._slot_work.take_fetches())
        if self.books.config.audit:
            audit.check(self.books, self._context)
        recorded_ms = self._clock.now_ms()
        self.books.metrics.add("step_ms", recorded_ms - start_ms + self._unbooked_ms)
        self.publish()
        self._unbooked_ms = self._clock.now_ms() - recorded_ms
        events, self._life.events = self._life.events, []
        return events

    def publish(self) -> None:
        """Let other threads see the books as they are now."""
        self.snapshot = publish(self.books)

    def _slot_samplers(self, chosen: Plan) -> dict[SlotId, RowSampler]:
        """Samplers of the tasks that hold slots once the plan's admissions are done."""
        books = self.books
        found = {s.id: books.samplers[s.work.task.id] for s in books.slots if s.generation}
        found.update({a.slot: books.samplers[a.task] for a in chosen.admissions})
        return found

    def fail_all(self, error: CorralError) -> list[Event]:
        """Every task fails, and nothing in memory is trusted any more: what is left to do after a fault of our own."""
        for row in self.books.ledger.rows():
            self._context.apply(Trim(row, 0))
        self.books.forget_memory()
        events = self._end_tasks(error)
        self.publish()
        return events

    def retire(self, error: CorralError) -> list[Event]:
        """Every task that is left fails, then what is worth it goes to disk. The engine is of no use after it."""
        failed = self._end_tasks(error)
        if self._disk_work:
            self._disk_work.write_out(self._carry_out, WRITE_OUT_S)
        self.publish()
        untold, self._life.events = self._life.events, []
        return [*untold, *failed]

    def _carry_out(self, chosen: Plan) -> None:
        self._commit.record(chosen, self._executor.run(chosen, {}), self._clock.now_ms())

    def _end_tasks(self, error: CorralError) -> list[Event]:
        books = self.books
        tasks = [t.id for t in books.queued()]
        tasks += [s.work.task.id for s in books.slots if s.generation]
        tasks += [*self._slot_work.waiting(), *self._cache_work.waiting()]
        self.cancel(tasks)
        return [Failed(task, error) for task in tasks]

    def close(self) -> None:
        """Free samplers and context. The model stays the caller's."""
        for task in list(self.books.samplers):
            self.books.close_sampler(task)
        if self._disk_work:
            self._disk_work.close()
            self.publish()  # what was written to the end
        self._context.close()


def _held_bytes(group: TaskGroup) -> int:
    return sum(task.sampling.held_bytes for task in group)


def _nothing(task: Task) -> Finished:
    """The answer to a prompt of no tokens."""
    none = Timings(n_cached=0, n_prompt=0, prompt_ms=0.0, n_predicted=0, predicted_ms=0.0)
    return Finished(
        task_id=task.id,
        slot_id=SlotId(-1),
        reason=StopReason.NONE,
        stopping_word="",
        text="",
        tokens=(),
        probs=(),
        timings=none,
        n_tokens_cached=0,
        truncated=False,
        has_new_line=False,
        seed=used_seed(task.sampling.seed),
    )
