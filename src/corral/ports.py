"""The doors between the engine and what computes: implemented by ``llama`` (libllama) and by ``sim`` (the fake)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from corral.ids import AdapterId, AdapterSet, RowId, Token
from corral.ops import Copy, Shift, Span, Trim
from corral.tasks import Constraint, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]
    Mask = NDArray[np.bool_]


class Rollback(Enum):
    """How far a row can be cut back."""

    ANY = auto()
    BOUNDED = auto()
    WHOLE_ROW = auto()


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """What a context's memory can do and what it holds. Read at load, not from names.

    ``n_cells``: cells in the whole pool. ``n_cells_row``: the most cells one row may use (on split KV its stream's
    size, on unified KV ``n_cells``). ``shared_cells``: rows can share cells by Copy (unified KV); else a prefix travels
    as bytes. ``n_streams``: pools of the attention kernel (1 on unified KV, n_rows on split). A saved row has about
    ``bytes_per_row + length * bytes_per_token``, a checkpoint ``bytes_per_row``.

    ``rollback`` BOUNDED: a row whose lowest kept position is ``first`` can be cut at n if n - ``window`` >= first, or
    first = 0; that position may move up with every forward pass of any row. WHOLE_ROW: only a checkpoint brings a row
    back. ``window_cells``: size of the second pool, that of the layers with a window; each row takes up to ``window``
    of them, never shared (but see ``own_windows``). A row of recurrent memory takes no cells of the main pool.

    ``ranges``: a part of a row can be saved and loaded. A pass gives logits of one position for each row, and of
    ``n_extra_outputs`` besides.

    ``state_version``: of llama-server's slot files; these hold what ``Context.save`` gives without its first bytes,
    ``state_head``.
    """

    n_cells: int
    n_cells_row: int
    n_rows: int
    n_streams: int
    n_batch: int
    n_ubatch: int
    shared_cells: bool
    can_shift: bool = True
    rollback: Rollback = Rollback.ANY
    window: int = 0
    window_cells: int = 0
    whole_copy_only: bool = False
    bytes_per_token: int = 0
    bytes_per_row: int = 0
    ranges: bool = False
    n_extra_outputs: int = 16
    state_version: int = 0
    state_head: bytes = b""

    @property
    def own_windows(self) -> bool:
        """Whether each row has window cells of its own. Where that pool is as large as the main one rows share them."""
        return 0 < self.window_cells < self.n_cells // self.n_streams

    def can_cut(self, n: int, first: int, end: int) -> bool:
        """Whether a row that holds positions [first, end) can be cut back to its first ``n`` without a checkpoint."""
        if self.rollback is Rollback.ANY or n in (0, end):
            return True
        return self.rollback is Rollback.BOUNDED and (first == 0 or n - self.window >= first)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model says of itself. Token fields are None where the vocabulary has none.

    ``weights`` is a sum that stands for the weights, ``fingerprint`` for them and for what computes with them: where it
    is the same, the same is computed. ``meta`` holds the GGUF's scalar key-values as text. ``eog_tokens`` end a
    generation, ``suppressed_tokens`` are never to be drawn.
    """

    name: str
    path: str
    description: str
    ftype: str
    n_vocab: int
    vocab_type: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    n_bytes: int
    bos_token: Token | None
    eos_token: Token | None
    add_bos: bool
    eog_tokens: frozenset[Token]
    chat_template: str | None
    meta: dict[str, str]
    suppressed_tokens: frozenset[Token] = frozenset()
    weights: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A LoRA adapter that is loaded. ``scale`` is that of requests which name no adapters.

    ``invocation``: the tokens that activate it where it is an aLoRA: what comes before them is computed without it.
    """

    id: AdapterId
    path: str
    scale: float = 1.0
    task_name: str = ""
    prompt_prefix: str = ""
    invocation: tuple[Token, ...] = ()


class DecodeStatus(Enum):
    """What became of a forward pass.

    NO_ROOM and INVALID left memory as it was. After ABORTED and FAILED some of the batch may have been stored: the
    caller re-reads ``bounds`` of its rows and trims. No logits can be read unless OK.
    """

    OK = auto()
    NO_ROOM = auto()
    INVALID = auto()
    ABORTED = auto()
    FAILED = auto()


class Context(Protocol):
    """A KV cache and the forward pass over it. Used by one thread. It checks every call and never aborts the process.

    Programmer errors (row out of range, Copy of part of a row where ``shared_cells`` is false, a span that does not
    start at the row's end, too many tokens) raise ``ValueError`` and change nothing.
    """

    @property
    def traits(self) -> MemoryTraits: ...

    def apply(self, op: Trim | Copy | Shift) -> bool:
        """Change which cells belong to which row, and at which position.

        False: no window cells were free for a Copy; ``dst`` is empty now.
        """
        ...

    def use(self, adapters: AdapterSet) -> None:
        """Compute with these from now on. A change costs the next pass a few ms. ValueError for one not loaded."""
        ...

    def decode(self, spans: Sequence[Span]) -> DecodeStatus:
        """Compute spans, at most ``n_batch`` tokens in all, each row at most once, in the order given."""
        ...

    def logits(self) -> Logits:
        """(n_outputs, n_vocab) of the last successful decode, in span order. A view, valid until the next decode."""
        ...

    def bounds(self, row: RowId) -> tuple[int, int]:
        """Positions [first, end) held by the row; (0, 0) when empty."""
        ...

    def save(self, row: RowId, start: int = 0) -> bytes:
        """The row's state from position ``start`` on; not 0 only where ``traits.ranges``.

        ValueError after a Shift until the next decode: only that moves the cells.
        """
        ...

    def load(self, row: RowId, data: bytes, start: int = 0) -> bool:
        """Add state saved from ``start`` to a row that holds just what lies before; with 0 it is emptied first.

        False (wrong bytes or no room): the row is empty now.
        """
        ...

    def fault(self, data: bytes, n: int) -> str:
        """Why a saved state from elsewhere is not one of ``n`` tokens for this context; "" if none is seen."""
        ...

    def checkpoint(self, row: RowId) -> bytes:
        """What of the row cannot be cut back: its window, its state. ValueError where any row can be cut anywhere."""
        ...

    def restore(self, row: RowId, n: int, data: bytes) -> bool:
        """Bring the row back to its first ``n`` positions with the checkpoint taken there. False: it is empty now."""
        ...

    def give_back(self) -> None:
        """Let the system have the memory of saved states that are gone."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Picked:
    """A sampled token. ``top`` and ``p`` only if probabilities were asked for: as in ``events.TokenProbs``.

    ``is_thought``: it is of thoughts that have a budget, or begins or ends them.
    """

    token: Token
    p: float = 0.0
    top: Sequence[tuple[Token, float]] = ()
    is_thought: bool = False


class Sampler(Protocol):
    """A task's own way to draw tokens, with its own history and random numbers."""

    def pick(self, logits: Logits, allowed: Mask | None = None) -> Picked:
        """Draw from one row, shape (n_vocab,), and remember the token in the history.

        Only from ``allowed``, shape (n_vocab,), if given. Probabilities before sampling are those of all tokens.
        """
        ...

    def take(self, token: Token) -> bool:
        """Remember a token that was not drawn. False: the grammar cannot go on with it, and nothing has changed."""
        ...

    def feed(self, tokens: Sequence[Token]) -> None:
        """Add prompt tokens to the history of penalties (not to a grammar)."""
        ...

    def close(self) -> None: ...


class TokenSet(Protocol):
    """Some tokens of the vocabulary, the caller's to change."""

    def __contains__(self, token: Token) -> bool: ...

    def among(self, tokens: NDArray[np.intp]) -> Mask:
        """Which of these tokens are in it."""
        ...

    @property
    def flags(self) -> Mask:
        """Of every token, shape (n_vocab,)."""
        ...

    @property
    def is_empty(self) -> bool: ...

    def add(self, token: Token) -> None: ...

    def discard(self, token: Token) -> None: ...

    def keep(self, other: TokenSet) -> None:
        """Only what is in the other set, too."""
        ...


class Matcher(Protocol):
    """Where a text stands in what it is held to. Used by one thread."""

    def allowed(self) -> TokenSet:
        """The tokens that can come next; ends only where the text may end. The next call changes what this one gave.

        Raises InvalidRequest where the text cannot go on or it takes too long to tell.
        """
        ...

    def accept(self, token: Token) -> None:
        """The text goes on with this token. Raises InvalidRequest if it cannot."""
        ...

    def accept_text(self, data: bytes) -> None:
        """The text goes on with these bytes. Raises InvalidRequest if it cannot."""
        ...

    def would_accept(self, data: bytes) -> bool:
        """Whether the text can go on with these bytes."""
        ...

    def forced(self) -> list[Token]:
        """The usual tokens of what comes next in any case, as far as they are certain; maybe none."""
        ...

    @property
    def is_complete(self) -> bool:
        """The text is whole, and nothing but its end can come."""
        ...


class Tokenizer(Protocol):
    """Text to tokens and back. Safe to use from several threads at once."""

    @property
    def n_vocab(self) -> int: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[Token]:
        """``add_special`` adds BOS where the vocabulary wants it; ``parse_special`` reads control tokens in text."""
        ...

    def n_tokens_at_least(self, text: str) -> int:
        """How many tokens a text has at least, however they are read: known without tokenizing; 0 if it is not."""
        ...

    def piece(self, token: Token, *, special: bool) -> bytes:
        """The token's bytes, maybe part of a character; empty for control tokens unless ``special``."""
        ...

    def detokenize(self, tokens: Sequence[Token], *, special: bool) -> str:
        """The text of tokens; bad UTF-8 becomes U+FFFD."""
        ...


class Model(Protocol):
    """Loaded weights and their vocabulary."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """All that are loaded, by id."""
        ...

    def prepare(self, sampling: Sampling, n: int) -> None:
        """Make what takes long of ``n`` samplers, which ``new_sampler`` then finds. From any thread.

        Raises InvalidRequest if the grammar does not compile.
        """
        ...

    def new_sampler(self, sampling: Sampling, seed: int, n_ctx_train: int) -> Sampler:
        """libllama's full chain. Raises InvalidRequest if the settings or the grammar do not compile."""
        ...

    def new_matcher(self, constraint: Constraint) -> Matcher:
        """At the beginning of the text. The last ones are remembered, the first of a text may take up to two seconds.

        From any thread. Raises InvalidRequest with the place and the reason if it does not compile.
        """
        ...

    def close(self) -> None: ...


class Clock(Protocol):
    """Time as the engine sees it; virtual under the fake."""

    def now_ms(self) -> float: ...
