"""A plan: what one step will do, as values. Made by ``policy``, carried out by ``executor``, recorded by ``commit``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from corral.engine.cost import NO_FEATURES, Features
from corral.engine.shift import Cut
from corral.ids import AdapterSet, RowId, SlotId, TaskId, Token
from corral.ops import Op, Span


class Deferral(Enum):
    """Why a task has no row, or no share of this step."""

    NO_SLOT = "no idle slot"
    SLOT_BUSY = "the slot it names is busy"
    SIBLINGS = "not enough idle slots for all siblings"
    OTHER_PROMPT = "another slot is computing its prefix"
    NO_CELLS = "no room in the KV cache"
    FROM_DISK = "its prefix is being read from disk"
    NO_BUDGET = "the step is full"
    COMPANY = "the prompts that came with it are not done"
    OTHER_ADAPTERS = "another set of adapters has its turn"


@dataclass(frozen=True, slots=True)
class Admission:
    """A task from the queue or a held one is bound to an idle slot, and runs with this urgency."""

    task: TaskId
    slot: SlotId
    urgency: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """The slot leases ``row``, which after the action's ops holds the first ``n_reused`` of its tokens."""

    slot: SlotId
    row: RowId
    n_reused: int


@dataclass(frozen=True, slots=True)
class Park:
    """The slot gives its row back and waits; the row turns cold."""

    slot: SlotId


@dataclass(frozen=True, slots=True)
class Relocate:
    """The slot's tokens now live in ``row``; its old row is empty."""

    slot: SlotId
    row: RowId


@dataclass(frozen=True, slots=True)
class Evict:
    """A cold row or a snapshot makes room; ``kept`` if its tokens remain in RAM."""

    kept: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """A checkpoint of the slot's prompt is kept."""

    slot: SlotId


@dataclass(frozen=True, slots=True)
class Arrange:
    """Memory is put in order for a slot's file; no slot changes."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A file of the disk tier is to be read into RAM for a task that waits for it."""

    task: TaskId
    name: str


@dataclass(frozen=True, slots=True)
class Shorten:
    """The slot's generation fills its context and goes on without a piece of it."""

    slot: SlotId
    cut: Cut


Effect = Begin | Park | Relocate | Evict | Keep | Arrange | Shorten


@dataclass(frozen=True, slots=True)
class Action:
    """Ops and what they bring about. The effect holds only if every op was carried out."""

    effect: Effect
    ops: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """Tokens that a slot computes. ``samples`` are the slots that draw a token from its last position: itself first,
    then siblings that wait for this prompt.

    ``n_more``: so many tokens that must follow the drawn one are taken with it, without logits.
    ``targets``: tokens whose probabilities are asked for, each in the place behind a position, the first behind the
    first; and those of ``n_top`` likeliest there.
    """

    slot: SlotId
    span: Span
    samples: tuple[SlotId, ...] = ()
    n_more: int = 0
    targets: tuple[Token, ...] = ()
    n_top: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: tasks of ``holds`` leave their slots, admissions, actions in order, one forward pass over ``spans``.

    All spans are computed with ``adapters``, in ascending order of rows. ``shape`` is what the cost model sees of the
    pass, which it expects to take ``expected_ms``.
    """

    holds: tuple[SlotId, ...] = ()
    admissions: tuple[Admission, ...] = ()
    waits: tuple[SlotId, ...] = ()
    actions: tuple[Action, ...] = ()
    fetches: tuple[Fetch, ...] = ()
    spans: tuple[SlotSpan, ...] = ()
    adapters: AdapterSet = ()
    deferrals: dict[TaskId, Deferral] = field(default_factory=dict)
    shape: Features = NO_FEATURES
    expected_ms: float = 0.0

    @property
    def n_tokens(self) -> int:
        return sum(len(s.span.tokens) for s in self.spans)

    @property
    def only_waits(self) -> bool:
        """Nothing is done: those who are there wait for something."""
        return not (self.admissions or self.actions or self.fetches or self.spans)

    @property
    def is_empty(self) -> bool:
        """Nothing to carry out and nothing to record."""
        return not (self.holds or self.admissions or self.waits or self.actions or self.spans)
