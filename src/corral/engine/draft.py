"""The scratch object of one planning pass: the plan so far and a fork of the ledger that shows its effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from corral.config import EngineConfig
from corral.engine.adapted import marked
from corral.engine.cost import NO_FEATURES, CostModel, Features
from corral.engine.disk_index import DiskIndex
from corral.engine.fair import Shares
from corral.engine.ledger import KvLedger
from corral.engine.plan import (
    Action,
    Admission,
    Arrange,
    Begin,
    Deferral,
    Effect,
    Evict,
    Fetch,
    Keep,
    Park,
    Plan,
    Relocate,
    Shorten,
    SlotSpan,
)
from corral.engine.slot import Generation, Slot, group_of, inherited_key, prefix_key
from corral.engine.state import SlotState
from corral.engine.turns import Turns
from corral.ids import AdapterSet, CacheKey, RowId, SlotId, SnapshotId, TaskId, Token
from corral.ops import Checkpoint, Drop, Op, Save
from corral.tasks import Task, TaskGroup

NEWEST = 1 << 62
"""The serial of a task that is just being admitted."""


COMPANY_MS = 50.0
"""Tasks that arrived within so long of each other came together."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A group in the queue, or a held task with its ``generation``: it was parked and has no slot.

    ``n_overtaken`` counts admissions of groups that came later. ``held_bytes``: what its samplers keep in memory.
    """

    group: TaskGroup
    queued_ms: float
    n_overtaken: int = 0
    held_bytes: int = 0
    generation: Generation | None = None

    @property
    def priority(self) -> int:
        return self.group[0].priority

    @property
    def serial(self) -> int:
        """Age among held tasks."""
        return self.generation.serial if self.generation else NEWEST

    @property
    def names_slot(self) -> bool:
        return self.group[0].id_slot is not None


@dataclass(frozen=True, slots=True)
class View:
    """All that a plan may depend on. Read only: planning changes none of it.

    ``n_margin``: cells to leave free beyond what the ledger says, after the context found no room. ``gap_rent_ms``:
    what gaps between busy rows have cost since they opened.
    """

    now_ms: float
    config: EngineConfig
    slots: Sequence[Slot]
    waiting: Sequence[Waiting]
    ledger: KvLedger
    cost: CostModel
    next_snapshot: int
    turns: Turns
    n_margin: int = 0
    gap_rent_ms: float = 0.0
    discarded: Sequence[CacheKey] = ()
    held: Sequence[Waiting] = ()
    shares: Shares = field(default_factory=Shares)
    disk: DiskIndex | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """A task that is bound to a slot and has no row. ``tokens`` are marked (``adapted``).

    ``key`` is where it looks for prefixes, ``own_key`` where moved cells of its conversation are, if there are any.
    """

    slot: SlotId
    task: Task
    tokens: Sequence[Token]
    n_decoded: int
    key: CacheKey
    group: TaskId
    urgency: int = 0
    serial: int = NEWEST
    own_key: CacheKey | None = None
    queued_ms: float = 0.0


@dataclass(slots=True, eq=False)
class Draft:
    """A plan in the making. What reads memory reads ``ledger``; what changes it goes through ``act``.

    Neither ``transient`` snapshots, which end with the plan, nor ``spared`` ones, about to be used, make room.
    ``forks``: where others wait to fork from a slot's prompt, in tokens. ``shelved``: prefixes that go to disk. The
    pass computes with ``adapters``; ``target_ms`` is for steps that hold prompt tokens beside streams, of which
    ``others_stream`` says that some wait for their turn.
    """

    view: View
    adapters: AdapterSet = ()
    target_ms: float = field(init=False)
    others_stream: bool = False
    ledger: KvLedger = field(init=False)
    actions: list[Action] = field(default_factory=list)
    holds: list[SlotId] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    admitted: list[Waiting] = field(default_factory=list)
    wants: list[Want] = field(default_factory=list)
    waits: list[SlotId] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    deferrals: dict[TaskId, Deferral] = field(default_factory=dict)
    spans: list[SlotSpan] = field(default_factory=list)
    begun: dict[SlotId, Begin] = field(default_factory=dict)
    parked: set[SlotId] = field(default_factory=set)
    shortened: set[SlotId] = field(default_factory=set)
    moved: dict[SlotId, RowId] = field(default_factory=dict)
    transient: list[SnapshotId] = field(default_factory=list)
    spared: set[SnapshotId | None] = field(default_factory=set)
    forks: dict[SlotId, set[int]] = field(default_factory=dict)
    shelved: list[tuple[CacheKey, tuple[Token, ...]]] = field(default_factory=list)
    shape: Features = NO_FEATURES
    expected_ms: float = 0.0
    _n_snapshots: int = 0
    _forked: bool = False

    def __post_init__(self) -> None:
        self.ledger = self.view.ledger
        self.target_ms = self.view.config.itl_target_ms

    def act(self, effect: Effect, *ops: Op) -> None:
        """Add an action and show its effect on the fork of the ledger."""
        self._fork()
        for op in ops:
            self.ledger.apply(op, self._n_bytes(op))
        match effect:
            case Begin(slot, row, _):
                self.ledger.lease(row)
                self.begun[slot] = effect
            case Park(slot):
                self._release(slot)
                self.parked.add(slot)
            case Relocate(slot, row):
                self._release(slot)
                self.ledger.lease(row)
                self.moved[slot] = row
            case Shorten(slot, _):
                self.shortened.add(slot)
            case Evict() | Keep() | Arrange():
                pass
        self.actions.append(Action(effect, ops))

    def _fork(self) -> None:
        if not self._forked:
            self.ledger, self._forked = self.view.ledger.fork(), True

    def hold(self, slot: Slot) -> None:
        """The slot's task gives its row back and leaves: from here on the view shows an idle slot."""
        if slot.lease is not None:
            self._fork()
            self.ledger.release(slot.lease)
        self.holds.append(slot.id)
        self.deferrals[slot.work.task.id] = Deferral.NO_SLOT
        self._show(Slot(slot.id, last_used=slot.last_used))

    def _show(self, slot: Slot) -> None:
        slots = list(self.view.slots)
        slots[slot.id] = slot
        self.view = replace(self.view, slots=slots)

    def _release(self, slot: SlotId) -> None:
        lease = self.view.slots[slot].lease
        assert lease is not None, f"slot {slot} has no row"
        self.ledger.release(lease)

    def row_bytes(self, row: RowId, start: int = 0) -> int:
        """Size of the row when saved from ``start`` on, about."""
        traits = self.ledger.traits
        return (self.ledger.length(row) - start) * traits.bytes_per_token + traits.bytes_per_row

    def _n_bytes(self, op: Op) -> int:
        match op:
            case Save(row, _, start):
                return self.row_bytes(row, start)
            case Checkpoint():
                return self.ledger.traits.bytes_per_row
            case _:
                return 0

    def new_snapshot(self) -> SnapshotId:
        self._n_snapshots += 1
        return SnapshotId(self.view.next_snapshot + self._n_snapshots - 1)

    def admit(self, task: Task, slot: SlotId, urgency: int, queued_ms: float) -> None:
        """A task of the queue gets an idle slot."""
        self.admissions.append(Admission(task.id, slot, urgency))
        memory, tokens = self.view.slots[slot].memory, marked(task)
        own_key = inherited_key(memory, task, tokens, self.view.config.context_shift)
        key, group = prefix_key(task), group_of(task)
        self.wants.append(Want(slot, task, tokens, 0, key, group, urgency, own_key=own_key, queued_ms=queued_ms))

    def resume(self, work: Generation, slot: SlotId, urgency: int) -> None:
        """A held task gets an idle slot: from here on the view shows it parked there."""
        shown = Slot(slot, SlotState.PARKED, generation=replace(work, urgency=max(urgency, work.urgency)))
        self.admissions.append(Admission(work.task.id, slot, shown.work.urgency))
        self._show(shown)

    def row_of(self, slot: Slot) -> RowId | None:
        """The slot's row once the plan's actions are done."""
        if slot.id in self.parked:
            return None
        if slot.id in self.begun:
            return self.begun[slot.id].row
        return self.moved.get(slot.id, slot.row)

    def computed(self, slot: Slot) -> int:
        """Tokens of the slot in its row once the plan's actions are done."""
        begun = self.begun.get(slot.id)
        return begun.n_reused if begun else slot.work.computed

    def holding(self) -> list[Slot]:
        """Slots that held a row before this plan and still do; the last are the first to give it up."""
        slots = [s for s in self.view.slots if s.lease is not None and s.id not in self.parked]
        return sorted(slots, key=lambda s: standing(self.view, s))

    @property
    def n_tokens(self) -> int:
        """Tokens of the spans so far."""
        return sum(len(s.span.tokens) for s in self.spans)

    def finish(self) -> Plan:
        if self.transient:
            self.act(Evict(kept=False), *(Drop(s) for s in self.transient))
        return Plan(
            holds=tuple(self.holds),
            admissions=tuple(self.admissions),
            waits=tuple(self.waits),
            actions=tuple(self.actions),
            fetches=tuple(self.fetches),
            spans=tuple(sorted(self.spans, key=lambda s: s.span.row)),
            adapters=self.adapters,
            deferrals=self.deferrals,
            shape=self.shape,
            expected_ms=self.expected_ms,
        )


def came_together(a: Want, b: Want) -> bool:
    """Whether they arrived at about the same time."""
    return abs(a.queued_ms - b.queued_ms) <= COMPANY_MS


def want_of(slot: Slot) -> Want:
    """What a busy slot wants computed."""
    work = slot.work
    key, group = work.key, work.group
    age = (work.urgency, work.serial, work.own_key, work.queued_ms)
    return Want(slot.id, work.task, work.tokens, work.n_decoded, key, group, *age)


def standing(view: View, slot: Slot) -> tuple[int, float, int]:
    """Who of the running gives way first: the greatest. By urgency, then fair share, then age."""
    work = slot.work
    return -work.urgency, view.shares.counter(work.task), work.serial
