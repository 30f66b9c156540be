"""The engine's whole mutable state. ``commit`` writes it; the planner gets a view of it; everyone else a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from corral.config import EngineConfig
from corral.engine.cost import CostModel
from corral.engine.disk_index import DiskIndex
from corral.engine.draft import View, Waiting
from corral.engine.fair import Shares
from corral.engine.ledger import KvLedger
from corral.engine.metrics import Metrics
from corral.engine.pins import Pin
from corral.engine.sampling import RowSampler
from corral.engine.slot import Generation, Slot
from corral.engine.snapshots import SnapshotStore
from corral.engine.turns import Turns
from corral.ids import CacheKey, SlotId, SnapshotId, TaskId
from corral.ports import MemoryTraits
from corral.tasks import Task


@dataclass(slots=True, eq=False)
class Books:
    """One engine's state.

    ``held``: tasks that were parked and left their slots to others. ``samplers`` of every task that is somewhere.
    ``discarded``: keys whose prefixes nobody may use any more. ``disk``: what is on disk, if there is such a tier.
    ``pins`` by name.

    ``n_margin`` and ``n_no_room``: cells to leave free, and passes in a row that found no room. ``gap_rent_ms``: what
    gaps between busy rows have cost since they opened. ``n_admitted`` is the serial of the youngest generation.
    """

    config: EngineConfig
    traits: MemoryTraits
    ledger: KvLedger
    cost: CostModel
    slots: list[Slot]
    store: SnapshotStore
    metrics: Metrics = field(default_factory=Metrics)
    turns: Turns = field(default_factory=Turns)
    waiting: list[Waiting] = field(default_factory=list)
    held: list[Waiting] = field(default_factory=list)
    shares: Shares = field(default_factory=Shares)
    samplers: dict[TaskId, RowSampler] = field(default_factory=dict)
    discarded: list[CacheKey] = field(default_factory=list)
    disk: DiskIndex | None = None
    pins: dict[str, Pin] = field(default_factory=dict)
    next_snapshot: int = 0
    n_margin: int = 0
    n_no_room: int = 0
    gap_rent_ms: float = 0.0
    n_admitted: int = 0
    n_released: int = 0

    @staticmethod
    def open(config: EngineConfig, traits: MemoryTraits, store: SnapshotStore) -> Books:
        """Empty books for a context with these traits. Raises ValueError if it has fewer rows than there are slots."""
        if traits.n_rows < config.n_slots:
            raise ValueError(f"{config.n_slots} slots need as many rows, the context has {traits.n_rows}")
        slots = [Slot(SlotId(i)) for i in range(config.n_slots)]
        shares = Shares(config.priority_age_ms)
        return Books(config, traits, KvLedger(traits), CostModel(traits), slots, store, shares=shares)

    @property
    def n_ctx_slot(self) -> int:
        """The most tokens that one task may hold."""
        return self.traits.n_cells_row

    @property
    def has_work(self) -> bool:
        """Whether a step would do something: a task is there, or a prefix is to be forgotten."""
        return bool(self.waiting or self.held or self.discarded) or any(not s.is_idle for s in self.slots)

    def keep(self, data: bytes) -> SnapshotId:
        """Put bytes from elsewhere into RAM under a new id, for the ledger to adopt."""
        snapshot = SnapshotId(self.next_snapshot)
        self.next_snapshot += 1
        self.store.put(snapshot, data)
        return snapshot

    def view(self, now_ms: float) -> View:
        """What the planner may depend on."""
        return View(
            now_ms=now_ms,
            config=self.config,
            slots=self.slots,
            waiting=self.waiting,
            ledger=self.ledger,
            cost=self.cost,
            next_snapshot=self.next_snapshot,
            turns=self.turns,
            n_margin=self.n_margin,
            gap_rent_ms=self.gap_rent_ms,
            discarded=tuple(self.discarded),
            held=self.held,
            shares=self.shares,
            disk=self.disk,
        )

    def generations(self) -> Iterator[Generation]:
        """Of all tasks that were admitted and have not ended, in slots and held."""
        yield from (s.generation for s in self.slots if s.generation)
        yield from (w.generation for w in self.held if w.generation)

    def queued(self) -> Iterator[Task]:
        """All tasks without a slot."""
        return (task for waiting in (*self.held, *self.waiting) for task in waiting.group)

    def forget_slot(self, slot: Slot) -> None:
        """The idle slot stands for nothing any more; what was moved was for it alone."""
        if slot.memory is not None and slot.memory.is_shifted:
            self.discarded.append(slot.memory.key)
        slot.memory = None

    def forget_memory(self) -> None:
        """All rows are empty, nobody holds one, and nothing is kept in RAM. Tasks that had rows cannot go on."""
        n_shifted = self.ledger.n_shifted
        self.ledger = KvLedger(self.traits)
        self.ledger.n_shifted = n_shifted  # keys of moved rows are never used again: idle slots may remember them
        self.store.clear()
        self.discarded.clear()
        for slot in self.slots:
            slot.lease = None

    def close_sampler(self, task: TaskId) -> None:
        """Does nothing if the task has none."""
        sampler = self.samplers.pop(task, None)
        if sampler is not None:
            sampler.close()
