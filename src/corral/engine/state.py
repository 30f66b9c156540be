"""What anyone may read about the engine at any time: an immutable snapshot published by every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from corral.ids import SlotId, TaskId
from corral.tasks import Task


class SlotState(Enum):
    """Where a slot is in a task's life. The legal moves are in ``slot.MOVES``."""

    IDLE = "idle"
    STARTED = "started"
    PROCESSING_PROMPT = "processing_prompt"
    DONE_PROMPT = "done_prompt"
    GENERATING = "generating"
    WAIT_OTHER = "wait_other"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """One slot. ``task`` is the running one, or the last if idle (None before the first).

    ``n_tokens``: tokens in its cache; idle, those it last held and that are still kept. ``kept``: in words, where an
    idle slot's prefix is ("row 2", "ram", "evicted", ""). ``generated``: the text so far, if ``show_text`` asks for it.
    """

    id: SlotId
    state: SlotState
    n_ctx: int
    task: Task | None
    n_tokens: int
    n_prompt: int
    n_prompt_processed: int
    n_prompt_cached: int
    n_decoded: int
    n_remain: int
    has_new_line: bool
    kept: str = ""
    generated: str = ""

    @property
    def is_processing(self) -> bool:
        return self.state is not SlotState.IDLE


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative buckets: ``counts[i]`` observations were <= ``bounds[i]``; ``n`` in all, ``total`` their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    n: int
    total: float


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums since the start; times in ms. They only grow."""

    n_prompt: int = 0
    n_prompt_cached: int = 0
    prompt_ms: float = 0.0
    n_predicted: int = 0
    predicted_ms: float = 0.0
    n_decode: int = 0
    n_busy_slots: int = 0
    n_tokens_max: int = 0
    n_finished: int = 0
    n_failed: int = 0
    n_cancelled: int = 0
    n_refused: int = 0
    n_parked: int = 0
    n_shifted: int = 0
    n_evicted: int = 0
    n_saved: int = 0
    n_loaded: int = 0
    n_copied: int = 0
    n_shelved: int = 0
    n_written: int = 0
    n_fetched: int = 0
    n_checkpoints: int = 0
    n_restored: int = 0
    step_ms: float = 0.0
    forward_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Pinned:
    """A prefix that is pinned, by its name."""

    name: str
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine after a step. ``held`` tasks were parked and have no slot now.

    KV counts are cells of the main pool, snapshots the RAM tier. ``n_leased`` cells belong to rows that busy slots
    hold; ``n_used - n_leased`` are cold prefixes.

    ``n_disk``: prefixes on disk that this model can use; ``disk_bytes`` are those of the whole folder.
    """

    slots: tuple[SlotSnapshot, ...]
    waiting: tuple[TaskId, ...]
    n_cells: int
    n_used: int
    n_leased: int
    n_snapshots: int
    snapshot_bytes: int
    snapshot_limit_bytes: int
    held: tuple[TaskId, ...] = ()
    n_disk: int = 0
    disk_bytes: int = 0
    pins: tuple[Pinned, ...] = ()
    counters: Counters = field(default_factory=Counters)
    histograms: dict[str, Histogram] = field(default_factory=dict)

    @property
    def n_busy(self) -> int:
        return sum(s.is_processing for s in self.slots)
