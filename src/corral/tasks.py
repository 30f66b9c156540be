"""What is asked of the engine: one frozen value for each completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum, StrEnum, auto

from corral.ids import AdapterId, AdapterSet, CacheKey, SlotId, TaskId, TenantId, Token
from corral.ops import SavedCheckpoint


class TaskKind(Enum):
    """All kinds of task. Those that change something go through the inbox; pure reads are answered from a snapshot."""

    COMPLETION = auto()
    EMBEDDING = auto()
    RERANK = auto()
    DECISION = auto()
    INFILL = auto()
    CANCEL = auto()
    CONTROL = auto()
    NEXT_RESPONSE = auto()
    METRICS = auto()
    SLOT_GET = auto()
    SLOT_SAVE = auto()
    SLOT_RESTORE = auto()
    SLOT_ERASE = auto()
    CACHE_PIN = auto()
    CACHE_UNPIN = auto()
    CACHE_LIST = auto()
    GET_LORA = auto()
    SET_LORA = auto()


SAMPLERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
"""All samplers by the letter that llama-server has for each."""
_OTHER_NAMES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical": "typ_p", "typicalp": "typ_p"}
_SAMPLER_NAMES = {name.replace("_", ""): name for name in SAMPLERS.values()} | _OTHER_NAMES


def sampler_called(name: str) -> str | None:
    """The sampler of a name as llama-server takes them, with or without hyphens or underscores; None: there is none."""
    return _SAMPLER_NAMES.get(name.strip().lower().replace("-", "").replace("_", ""))


DEFAULT_SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama-server's default order ``edskypmxt``."""

DEFAULT_DRY_BREAKERS = ("\n", ":", '"', "*")


class ConstraintKind(StrEnum):
    """The languages in which a constraint can be written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"


class TriggerKind(IntEnum):
    """What can end free text; the numbers are llama.cpp's."""

    TOKEN = 0
    WORD = 1
    PATTERN = 2
    PATTERN_FULL = 3


@dataclass(frozen=True, slots=True)
class Trigger:
    """A token (``text`` shows it), a text, or an ECMAScript pattern that is in the free text or matches all of it.

    It is looked for whenever a token was generated. A pattern's first group that is not empty, or else its match, is
    where what it triggers begins; a pattern that begins with "^" and ends with "$" is first tried as one for all.
    """

    text: str
    kind: TriggerKind = TriggerKind.WORD
    token: Token = -1


@dataclass(frozen=True, slots=True)
class Constraint:
    """What generated text must be, as a JSON schema (its text), a regex, a lark grammar (llguidance's dialect) or GBNF.

    It holds from the first token, or, with ``triggers``, from behind the first of these that is generated: what comes
    before is free, the trigger's own text is no part of what ``text`` describes, but for ``with_trigger`` and for
    patterns. Once held to its end, generation ends.

    ``after``: a text, such as "</think>", before whose end nothing is constrained and no trigger counts. With
    ``opener``, such as "<think>", that is so only if generation begins with the opener (white space before it does
    not matter); without one the part that ``after`` ends is open when generation begins. ``or_after``: other texts that
    end it as well. Control tokens count in these texts as they are written.

    ``head``: a lark grammar of what stands before the text and is held, too; its rule ``start`` ends with ``@answer``,
    which is the text.
    """

    kind: ConstraintKind
    text: str
    triggers: tuple[Trigger, ...] = ()
    after: str = ""
    opener: str = ""
    with_trigger: bool = False
    or_after: tuple[str, ...] = ()
    head: str = ""


@dataclass(frozen=True, slots=True)
class ThoughtBudget:
    """How long a model may think before it answers, and what ends its thoughts then.

    Thoughts go from behind one of ``starts`` to the first of ``ends``. With ``n_open`` >= 0 generation begins within
    them, of which the prompt has so many tokens. After ``n_tokens`` of them (< 0: any number), and with a whole
    character, the tokens ``forced`` come, at least one, whatever the model would say; not where a grammar or another
    constraint holds that does not allow them. Text ends the wait for thoughts unless they may come ``anywhere``, each
    time with a new budget. ``can_end``: they may be ended from outside. Control tokens count in these texts.
    """

    n_tokens: int
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    forced: tuple[Token, ...]
    n_open: int = -1
    anywhere: bool = False
    can_end: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from a row of logits. Names, defaults and meanings are llama-server's.

    ``seed`` None draws a random one when the task starts. ``logit_bias`` pairs are (token, bias); -inf bans.
    ``n_probs`` > 0 asks for the probabilities of that many top tokens with each token. ``grammar`` is GBNF that holds
    from the first token, checked by libllama; ``constraint`` is everything else that text can be held to. ``thoughts``:
    their budget, if they have one.
    """

    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    top_n_sigma: float = -1.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = DEFAULT_DRY_BREAKERS
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    seed: int | None = None
    min_keep: int = 0
    n_probs: int = 0
    post_sampling_probs: bool = False
    logit_bias: Sequence[tuple[Token, float]] = ()
    ignore_eos: bool = False
    grammar: str = ""
    constraint: Constraint | None = None
    thoughts: ThoughtBudget | None = None
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS

    def of_choice(self, i: int) -> Sampling:
        """That of choice ``i`` for the same prompt: with another seed, if there is one."""
        return self if self.seed is None else replace(self, seed=(self.seed + i) % 2**32)

    @property
    def held_bytes(self) -> int:
        """About what a sampler of it keeps in memory besides some KiB."""
        is_dry = self.dry_multiplier != 0 and self.dry_sequence_breakers != DEFAULT_DRY_BREAKERS
        n_breakers = len(self.dry_sequence_breakers) if is_dry else 0
        return 60 * len(self.grammar) + 1_000_000 * n_breakers + 12 * len(self.logit_bias)


@dataclass(frozen=True, slots=True)
class Limits:
    """When generation ends besides an end-of-generation token.

    ``n_predict``: tokens to generate; < 0 means up to the context; 0 means none (the prompt is still computed).
    ``stop``: the text ends before the first of these. ``n_indent``: end when a line is indented less (0 off).
    ``t_max_predict_ms``: acts when a newline was generated (< 0 off).
    """

    n_predict: int = -1
    stop: tuple[str, ...] = ()
    n_indent: int = 0
    t_max_predict_ms: int = -1


NO_KEY = CacheKey("")
"""Everyone's prefixes, where there are no tenants."""

NOBODY = TenantId("")
"""Everyone, where there are no API keys."""

MAX_PRIORITY = 100
"""Priorities are -MAX_PRIORITY to MAX_PRIORITY."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One completion of one prompt.

    ``parent``: with n > 1 the id of the first sibling, whose prompt this one shares; siblings are submitted together
    and admitted together. ``index`` is the choice's number in the reply. ``cache_prompt`` False neither reuses nor
    offers a prefix. When the context is full and the engine may shift it, the first ``n_keep`` tokens stay (< 0: the
    prompt) and the ``n_discard`` behind them go (0: half of the rest). Chunks of at least ``n_cache_reuse`` > 0 tokens
    that a row has further on are moved instead of computed. ``priority``: higher is more urgent. ``weight``
    > 0: the tenant's share of what all get. ``borders`` are the positions in the prompt at which messages begin, if it
    has any. ``special`` prints control tokens as text; those in ``preserved_tokens`` are always printed. ``stream``:
    for those who look on. ``n_prompt_probs`` >= 0 asks for the log-probability of each prompt token but the first, and
    for that many of the likeliest in its place: the whole prompt is computed, and nobody meets it as a prefix.

    ``adapters`` act from token ``n_base`` on, which the engine finds when the task is submitted; ``lora`` is how the
    request named them, to be shown.
    """

    id: TaskId
    prompt: tuple[Token, ...]
    kind: TaskKind = TaskKind.COMPLETION
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    cache_key: CacheKey = NO_KEY
    cache_prompt: bool = True
    tenant: TenantId = NOBODY
    weight: float = 1.0
    priority: int = 0
    id_slot: SlotId | None = None
    index: int = 0
    parent: TaskId | None = None
    n_keep: int = 0
    n_discard: int = 0
    n_cache_reuse: int = 0
    return_progress: bool = False
    timings_per_token: bool = False
    n_prompt_probs: int = -1
    stream: bool = False
    special: bool = False
    preserved_tokens: frozenset[Token] = frozenset()
    borders: tuple[int, ...] = ()
    adapters: AdapterSet = ()
    n_base: int = 0
    lora: tuple[tuple[AdapterId, float], ...] = ()
    request_id: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class SlotAction:
    """SLOT_SAVE, SLOT_RESTORE or SLOT_ERASE of what an idle slot last held; it waits until the slot is idle.

    ``key`` says who asks: a slot that holds another tenant's tokens is refused. To restore, ``data`` is a row's
    state as ``Context.save`` gives it and ``tokens`` what it holds; they become a prefix under ``key``, with
    ``checkpoints`` of its beginnings, shortest first.
    """

    id: TaskId
    kind: TaskKind
    slot: SlotId
    key: CacheKey = NO_KEY
    tokens: tuple[Token, ...] = ()
    data: bytes = b""
    checkpoints: tuple[SavedCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CacheAction:
    """CACHE_PIN keeps the prompt of ``task`` as soon as it is computed.

    CACHE_UNPIN lets ``pin`` go, CACHE_LIST tells what is kept. ``key`` is who asks: with ``all_tenants`` the pins and
    prefixes of others are seen, too. ``show_tokens`` lists tokens.
    """

    id: TaskId
    kind: TaskKind
    key: CacheKey = NO_KEY
    task: Task | None = None
    pin: str = ""
    all_tenants: bool = False
    show_tokens: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ControlAction:
    """CONTROL: the reply ``request_id`` of ``tenant``, which is being generated, ends its thoughts now."""

    id: TaskId
    request_id: str
    tenant: TenantId = NOBODY
    kind: TaskKind = TaskKind.CONTROL


Action = SlotAction | CacheAction | ControlAction
"""What is asked of the engine besides completions."""

TaskGroup = tuple[Task, ...]
"""A parent and its siblings: admitted together or not at all."""
