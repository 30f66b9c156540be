"""A slot and the generation it works on: the state machine of a task's life.

Only ``life`` and ``commit`` write these; the planner reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from corral.engine.ledger import SHIFTED, Lease
from corral.engine.radix import common_prefix
from corral.engine.shift import find_chunks
from corral.engine.state import SlotState
from corral.engine.text import TextStream
from corral.events import Timings, TokenProbs
from corral.ids import CacheKey, RowId, SlotId, TaskId, Token
from corral.tasks import Task, TaskKind

MOVES: dict[SlotState, frozenset[SlotState]] = {
    SlotState.IDLE: frozenset({SlotState.STARTED, SlotState.PARKED}),
    SlotState.STARTED: frozenset({SlotState.IDLE, SlotState.WAIT_OTHER, SlotState.PROCESSING_PROMPT}),
    SlotState.WAIT_OTHER: frozenset({SlotState.IDLE, SlotState.STARTED, SlotState.PROCESSING_PROMPT}),
    SlotState.PROCESSING_PROMPT: frozenset({SlotState.IDLE, SlotState.DONE_PROMPT, SlotState.PARKED}),
    SlotState.DONE_PROMPT: frozenset({SlotState.IDLE, SlotState.GENERATING, SlotState.PARKED}),
    SlotState.GENERATING: frozenset({SlotState.IDLE, SlotState.PARKED, SlotState.PROCESSING_PROMPT}),
    SlotState.PARKED: frozenset({SlotState.IDLE, SlotState.PROCESSING_PROMPT}),
}
"""IDLE -> STARTED (bound to a task) -> PROCESSING_PROMPT (holds a row) -> DONE_PROMPT -> GENERATING -> IDLE.

WAIT_OTHER waits for a prompt that another slot computes; a sibling draws its first token there, from the parent's
logits, and has no row of its own yet. PARKED has given its row back and computes what it
lost (if anything) as PROCESSING_PROMPT, and so does a generation with a piece taken out of its context where the rest
could not be moved. A task that left its slot for another enters the next one as PARKED.
"""


def prefix_key(task: Task) -> CacheKey:
    """Whose prefixes the task may use: those of its adapters.

    Without ``cache_prompt``, if it does not generate, or if all of its prompt is to be shown, only its siblings'.
    """
    if not task.cache_prompt or task.n_prompt_probs >= 0 or task.kind not in GENERATING_KINDS:
        return CacheKey(f"{PRIVATE}{group_of(task)}")
    if task.adapters and not task.n_base:
        return CacheKey(f"{ADAPTED}{task.adapters}\0{task.cache_key}")
    return task.cache_key


GENERATING_KINDS = frozenset({TaskKind.COMPLETION, TaskKind.INFILL})
"""Prompts of embeddings, rerankings and decisions are computed otherwise: what they leave is no prefix of a text."""

PRIVATE = "\0private "
"""Begins the keys of prefixes that are dropped with their task."""

ADAPTED = "\0adapters "
"""Begins the keys of sequences that are computed with adapters from their first token on."""


def without_adapters(key: CacheKey) -> CacheKey:
    """The same key for the base model."""
    return CacheKey(key.split("\0", 2)[2]) if key.startswith(ADAPTED) else key


def group_of(task: Task) -> TaskId:
    """The same for all siblings."""
    return task.id if task.parent is None else task.parent


class IllegalMove(Exception):
    """A slot was asked for a move that ``MOVES`` does not have."""


@dataclass(slots=True, eq=False)
class Generation:
    """A task in work. ``tokens`` is what is wanted in the cache; ``computed`` of them are there.

    They are the prompt and what was ``generated``, until the context is full: then a piece is taken out, behind the
    first ``n_keep``; as the ledger keeps them (``adapted.marked``). ``own_key``: where moved cells of this conversation
    are kept, for nobody else.
    The last generated token is wanted and not yet computed. ``n_cached`` prompt tokens were reused (< 0: not begun);
    ``n_prompt_seen`` have been in the cache at one time or another. ``serial`` grows with admission: the youngest has
    the highest. ``urgency``: the priority, or what it rose to by waiting; only a higher priority takes its slot or
    cells. ``n_start`` tokens were generated when it last got a slot or row, and since ``rowless_ms`` it has had none.
    ``prompt_probs`` are by position, and one and the same for all siblings. Times are of the engine's clock, in ms;
    < 0 means not yet.
    """

    task: Task
    serial: int
    queued_ms: float
    admitted_ms: float
    tokens: list[Token]
    text: TextStream
    n_prompt: int
    seed: int = 0
    n_keep: int = 0
    own_key: CacheKey | None = None
    generated: list[Token] = field(default_factory=list)
    computed: int = 0
    n_cached: int = -1
    n_prompt_seen: int = 0
    n_parked: int = 0
    urgency: int = 0
    n_start: int = 0
    rowless_ms: float = 0.0
    truncated: bool = False
    n_shifts: int = 0
    begun_ms: float = -1.0
    prompt_done_ms: float = -1.0
    last_token_ms: float = -1.0
    probs: list[TokenProbs] = field(default_factory=list)
    prompt_probs: dict[int, TokenProbs] = field(default_factory=dict)

    @property
    def n_decoded(self) -> int:
        return len(self.generated)

    @property
    def n_since(self) -> int:
        """Tokens generated since it last got a slot or row."""
        return self.n_decoded - self.n_start

    @property
    def n_pending(self) -> int:
        """Tokens wanted and not yet computed."""
        return len(self.tokens) - self.computed

    @property
    def key(self) -> CacheKey:
        return prefix_key(self.task)

    @property
    def group(self) -> TaskId:
        return group_of(self.task)

    def timings(self) -> Timings:
        prompt_ms = max(0.0, self.prompt_done_ms - self.begun_ms) if self.prompt_done_ms >= 0 else 0.0
        predicted_ms = max(0.0, self.last_token_ms - self.prompt_done_ms) if self.n_decoded else 0.0
        return Timings(
            n_cached=max(0, self.n_cached),
            n_prompt=self.n_prompt - max(0, self.n_cached),
            prompt_ms=prompt_ms,
            n_predicted=self.n_decoded,
            predicted_ms=predicted_ms,
            queue_ms=max(0.0, (self.begun_ms if self.begun_ms >= 0 else self.admitted_ms) - self.queued_ms),
            n_parked=self.n_parked,
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """What an idle slot last held: a weak reference, nothing keeps it alive.

    ``key`` is where it is kept, ``owner`` the key of the task that left it: another one where cells were moved.
    """

    key: CacheKey
    tokens: Sequence[Token]
    owner: CacheKey

    @property
    def is_shifted(self) -> bool:
        return self.key.startswith(SHIFTED)


def inherited_key(memory: Memory | None, task: Task, tokens: Sequence[Token], context_shift: bool) -> CacheKey | None:
    """Where the moved cells are that the slot's last conversation left, if the task goes on with it and may use them.

    Its ``tokens`` must begin with all that is left of that conversation: then it is no chance. One that asks for chunks
    to be moved must have at least half of it.
    """
    n_min = task.n_cache_reuse
    if memory is None or not memory.is_shifted or memory.owner != prefix_key(task) or not (context_shift or n_min > 0):
        return None
    n_held, n = len(memory.tokens), common_prefix(memory.tokens, tokens)
    if n < n_held and n_min > 0:
        n += sum(chunk.n for chunk in find_chunks(memory.tokens, tokens, n, n_min))
        return memory.key if 2 * n >= n_held else None
    return memory.key if n == n_held else None


@dataclass(slots=True, eq=False)
class Slot:
    """A worker. Holds a generation while busy and a lease while that has a row."""

    id: SlotId
    state: SlotState = SlotState.IDLE
    generation: Generation | None = None
    lease: Lease | None = None
    memory: Memory | None = None
    last_task: Task | None = None
    last_used: int = 0

    @property
    def row(self) -> RowId | None:
        return self.lease.row if self.lease else None

    @property
    def work(self) -> Generation:
        """The generation of a busy slot."""
        assert self.generation is not None, f"slot {self.id} is {self.state.value}"
        return self.generation

    @property
    def is_idle(self) -> bool:
        return self.state is SlotState.IDLE

    @property
    def is_decoding(self) -> bool:
        """Has a row and wants just the token it generated last."""
        return self.state is SlotState.GENERATING

    @property
    def wants_row(self) -> bool:
        """Busy without a row."""
        return self.generation is not None and self.lease is None

    def move(self, state: SlotState) -> None:
        """Raises IllegalMove."""
        if state not in MOVES[self.state]:
            raise IllegalMove(f"slot {self.id}: {self.state.value} -> {state.value}")
        self.state = state
