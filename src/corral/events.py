"""What the engine says about a task: a Started at most, any Progress, a PromptProbs at most, any Chunk, and one end."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import overload

from corral.errors import CorralError
from corral.ids import SlotId, TaskId, Token
from corral.ops import SavedCheckpoint


class StopReason(Enum):
    """Why generation ended; the value is llama-server's ``stop_type``."""

    NONE = "none"
    EOS = "eos"
    WORD = "word"
    LIMIT = "limit"


class Ranked(Sequence[tuple[Token, float]]):
    """Tokens, each with a number, packed: as tuples those of a whole vocabulary take many MB. Numpy reads the parts."""

    __slots__ = ("tokens", "values")

    def __init__(self, tokens: Iterable[Token], values: Iterable[float]) -> None:
        self.tokens = array("q", tokens)
        self.values = array("d", values)

    @staticmethod
    def of(pairs: Sequence[tuple[Token, float]]) -> Ranked:
        """The same if they are packed already."""
        if isinstance(pairs, Ranked):
            return pairs
        return Ranked((token for token, _ in pairs), (value for _, value in pairs))

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[tuple[Token, float]]:
        return zip(self.tokens, self.values, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[Token, float]: ...
    @overload
    def __getitem__(self, index: slice) -> Ranked: ...
    def __getitem__(self, index: int | slice) -> tuple[Token, float] | Ranked:
        if isinstance(index, slice):
            return Ranked(self.tokens[index], self.values[index])
        return self.tokens[index], self.values[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, slots=True)
class TokenProbs:
    """Probabilities at one generated position.

    ``p`` is a log-probability (natural) before sampling, or a probability after it when ``post_sampling``.
    ``top`` is sorted, most likely first.
    """

    token: Token
    p: float
    top: Sequence[tuple[Token, float]]
    post_sampling: bool


@dataclass(frozen=True, slots=True)
class Timings:
    """Counts and times of one task, in milliseconds. ``n_cached + n_prompt`` is the prompt's length.

    ``queue_ms``: until the prompt had a slot and cells, and began.
    """

    n_cached: int
    n_prompt: int
    prompt_ms: float
    n_predicted: int
    predicted_ms: float
    queue_ms: float = 0.0
    n_parked: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt begins to be processed: a reply may send its status line."""

    task_id: TaskId
    slot_id: SlotId
    n_prompt: int
    n_cached: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Prompt tokens in the cache so far (``n_cached`` of them reused), after ``time_ms``."""

    task_id: TaskId
    n_total: int
    n_cached: int
    n_processed: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class PromptProbs:
    """The prompt of a streamed task that asks for its log-probabilities is done: those from its second token on."""

    task_id: TaskId
    probs: tuple[TokenProbs, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text that is final: whole characters, nothing that could still become a stop string. Never empty text.

    ``tokens`` are those whose text it completes (several when some were held back), ``probs`` theirs if asked for.
    ``n_decoded`` counts generated tokens up to the last of them. ``timings`` if the task asks for them, and of a chunk
    that a stop string ends.
    """

    task_id: TaskId
    text: str
    tokens: tuple[Token, ...]
    n_decoded: int
    timings: Timings | None = None
    probs: tuple[TokenProbs, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a task that worked. ``tokens`` and ``probs`` are all generated ones, ``text`` the whole text.

    ``n_tokens_cached`` is the cache length at the end. ``truncated``: the context was full, and that was the end or it
    was shifted (``n_shifts`` times). ``prompt_probs`` are those of the prompt from its second token on, if they were
    asked for.
    """

    task_id: TaskId
    slot_id: SlotId
    reason: StopReason
    stopping_word: str
    text: str
    tokens: tuple[Token, ...]
    probs: tuple[TokenProbs, ...]
    timings: Timings
    n_tokens_cached: int
    truncated: bool
    has_new_line: bool
    seed: int
    prompt_probs: tuple[TokenProbs, ...] = ()
    n_shifts: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a task that did not work."""

    task_id: TaskId
    error: CorralError


@dataclass(frozen=True, slots=True)
class SlotDone:
    """A slot action worked: ``n_tokens`` were saved, restored or erased.

    Saved: ``tokens``, the row's ``data``, and ``checkpoints`` of its beginnings, shortest first.
    """

    task_id: TaskId
    n_tokens: int
    tokens: tuple[Token, ...] = ()
    data: bytes = b""
    checkpoints: tuple[SavedCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """A prefix that is kept: in a "row", in "ram", on "disk", or of it a "checkpoint".

    ``place`` is the row, snapshot or file; ``owner`` stands for whose it is; ``recency`` 0 is the one used last.
    ``is_busy``: a running request holds it. ``pin``: its pin, if any. ``tokens`` if they were asked for.
    """

    tier: str
    place: str
    owner: str
    n_tokens: int
    n_bytes: int
    recency: int
    is_busy: bool = False
    pin: str = ""
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheDone:
    """A cache action worked. ``pin`` and its ``n_bytes``; or the ``prefixes``, those used last first in each tier."""

    task_id: TaskId
    pin: str = ""
    n_bytes: int = 0
    prefixes: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True)
class ControlDone:
    """A control action was taken in, or it had nothing to act on for the reason ``fault``."""

    task_id: TaskId
    fault: str = ""


Event = Started | Progress | PromptProbs | Chunk | Finished | Failed | SlotDone | CacheDone | ControlDone
End = Finished | Failed | SlotDone | CacheDone | ControlDone
"""The last that is heard of a task or an action."""
