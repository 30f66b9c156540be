"""Histories of a whole engine over the fake, as plain values: short to print, to shrink, and to keep as a test.

A history is a setup and a list of operations; ``engine_machine`` plays it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from corral.ids import AdapterId, AdapterSet, Token
from corral.ports import DecodeStatus
from corral.sim.shape import Kind
from corral.sim.tokenizer import SimTokenizer
from corral.tasks import Constraint, ConstraintKind, ThoughtBudget, Trigger

N_STEMS = 3
"""Prompts of one stem begin alike; those of different stems part after a few tokens or at once."""

PATIENT = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For properties outside of this directory: a busy machine is no failure."""

HELD = (
    Constraint(ConstraintKind.REGEX, "[a-z ]{2,12}"),
    Constraint(ConstraintKind.LARK, 'start: "be"+ | /[0-9]{1,3}/', triggers=(Trigger("e"), Trigger("t "))),
    Constraint(ConstraintKind.JSON_SCHEMA, '{"enum": [true, false, 10, 1000]}'),
    Constraint(ConstraintKind.LARK, 'start: ("these" | "those are the ones, " /[ab]/)+'),
)


def _forced(text: str) -> tuple[Token, ...]:
    return tuple(SimTokenizer().tokenize(text, add_special=False, parse_special=True))


THOUGHTS = (
    ThoughtBudget(5, ("<t>",), ("</t>", "e"), _forced("\n!</t>"), n_open=1),
    ThoughtBudget(9, ("<t>",), ("</t>",), _forced("</t>"), n_open=0),
    ThoughtBudget(2, ("e", "s"), ("zz",), _forced("€ zz"), anywhere=True),
)
"""Two that are open when generation begins, and one that begins again and again."""


@dataclass(frozen=True)
class Setup:
    """The engine and the memory under it. ``n_ctx`` is what one task may use; the keys of ``faults`` count decodes.

    On unified KV the pool is ``n_shares`` times as large. ``disk_bytes`` < 0: there is no disk tier.
    """

    unified: bool = True
    kind: Kind = Kind.ATTENTION
    swa_full: bool = False
    n_checkpoints: int = 3
    min_step: int = 8
    n_slots: int = 2
    n_ctx: int = 40
    n_spare: int = 0
    n_shares: int = 1
    n_batch: int = 16
    n_ubatch: int = 8
    itl_target_ms: float = 20.0
    cache_ram_bytes: int = -1
    disk_bytes: int = -1
    min_shared_prefill: int = 4
    min_reuse: int = 1
    cont_batching: bool = True
    with_adapters: bool = False
    with_tenants: bool = True
    shared_cache: bool = False
    park_min_tokens: int = 4
    priority_age_ms: float = 10_000.0
    shift: bool = False
    faults: tuple[tuple[int, DecodeStatus], ...] = ()
    bad_loads: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """With states and a window at once KV is split, whatever is asked for."""
        if self.unified and self.kind is Kind.SLIDING_HYBRID:
            for name, value in {"unified": False, "n_spare": 0, "n_shares": 1}.items():
                object.__setattr__(self, name, value)

    @property
    def n_cells(self) -> int:
        """Of the whole pool on unified KV, of all rows together on split KV."""
        return self.n_ctx * self.n_shares if self.unified else self.n_ctx * self.n_slots


# --- operations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit:
    """``n`` siblings. The prompt is the first ``n_prompt`` tokens of a stem, ending in ``tail``.

    ``seed`` None is greedy; sibling i draws with ``seed + i``. ``id_slot`` is taken modulo the number of slots.
    """

    stem: int = 0
    n_prompt: int = 8
    tail: tuple[Token, ...] = ()
    n_predict: int = 4
    n: int = 1
    salt: str = ""
    tenant: str = ""
    priority: int = 0
    cache_prompt: bool = True
    id_slot: int | None = None
    held: Constraint | None = None
    thoughts: ThoughtBudget | None = None
    n_probs: int = 0
    stop: str = ""
    seed: int | None = None
    adapters: AdapterSet = ()
    n_keep: int = 0
    n_discard: int = 0
    n_cache_reuse: int = 0
    ignore_eos: bool = False
    borders: tuple[int, ...] = ()
    n_prompt_probs: int = -1


@dataclass(frozen=True)
class Reply:
    """The next turn of a conversation that ended: its prompt and answer, then ``tail``. Nothing if none has ended."""

    which: int = 0
    tail: tuple[Token, ...] = (97,)
    n_predict: int = 4


@dataclass(frozen=True)
class Cancel:
    """One of the open tasks, by its number modulo how many there are."""

    which: int = 0


@dataclass(frozen=True)
class Steps:
    """So many, or until there is nothing to do."""

    n: int = 1


@dataclass(frozen=True)
class Pin:
    """Compute the prompt of ``what`` ahead, and keep it."""

    what: Submit


@dataclass(frozen=True)
class Unpin:
    which: int = 0


@dataclass(frozen=True)
class AtSlot:
    """Something that a tenant asks of a slot. It is refused if the slot holds what another one sent."""

    slot: int = 0
    tenant: str = ""


class Save(AtSlot):
    """What the slot holds, to be restored later."""


class Erase(AtSlot):
    """What the slot holds."""


@dataclass(frozen=True)
class Restore(AtSlot):
    """One of the saved ones, by its number modulo how many there are."""

    which: int = 0


@dataclass(frozen=True)
class Restart:
    """The engine ends, in good order or not, and another begins: with what is on disk and nothing else."""

    in_order: bool = True


@dataclass(frozen=True)
class Harm:
    """A file of the disk tier is spoilt; ``seed`` says which and how. Nothing if there is none."""

    seed: int = 0


Op = Submit | Reply | Cancel | Steps | Pin | Unpin | Save | Restore | Erase | Restart | Harm


@dataclass(frozen=True)
class History:
    setup: Setup
    ops: tuple[Op, ...]


# --- what may happen -------------------------------------------------------------------------------------------------

STATUSES = st.sampled_from([DecodeStatus.NO_ROOM, DecodeStatus.NO_ROOM, DecodeStatus.ABORTED, DecodeStatus.FAILED])
SETS: SearchStrategy[AdapterSet] = st.sampled_from(
    [
        (),
        ((AdapterId(0), 1.0),),
        ((AdapterId(0), 0.5),),
        ((AdapterId(0), 1.0), (AdapterId(1), 1.0)),
        ((AdapterId(1), 1.0), (AdapterId(2), 1.0)),
        ((AdapterId(2), 1.0),),
        ((AdapterId(2), -1.0),),
        ((AdapterId(3), 1.0),),
    ]
)
BORDERS = st.lists(st.integers(0, 60), max_size=4).map(lambda found: tuple(sorted(found)))
TAILS = st.lists(st.integers(97, 99), max_size=5).map(tuple)
TENANTS = st.sampled_from(["", "a", "b"])
REPLIES = st.builds(Reply, st.integers(0, 9), TAILS.filter(bool), st.integers(0, 20))
ALL_KINDS = tuple(Kind)


@st.composite
def setups(draw: DrawFn, unified: bool, faulty: bool, shift: bool | None, kinds: tuple[Kind, ...], disk: bool) -> Setup:
    kind = draw(st.sampled_from(kinds))
    n_slots = draw(st.integers(1, 5))
    n_ubatch = draw(st.sampled_from([4, 8, 16, 64]))
    faults = draw(st.dictionaries(st.integers(0, 60), STATUSES, max_size=8)) if faulty else {}
    return Setup(
        unified=unified,
        kind=kind,
        swa_full=draw(st.integers(0, 3)) == 0,
        n_checkpoints=draw(st.sampled_from([0, 1, 3, 32])),
        min_step=draw(st.sampled_from([0, 3, 8, 100])),
        n_slots=n_slots,
        n_ctx=draw(st.sampled_from([24, 40, 64, 100])),
        n_spare=draw(st.integers(0, 4)) if unified else 0,
        n_shares=draw(st.sampled_from([1, 1, 2, 3])) if unified else 1,
        n_batch=max(n_slots, n_ubatch, draw(st.sampled_from([8, 16, 64]))),
        n_ubatch=n_ubatch,
        itl_target_ms=draw(st.sampled_from([5.0, 20.0, 100.0, 1000.0])),
        cache_ram_bytes=draw(st.sampled_from([-1, 0, 400, 1000])),
        disk_bytes=draw(st.sampled_from([-1, 3000, 1 << 30])) if disk else -1,
        min_shared_prefill=draw(st.sampled_from([1, 4, 32])),
        min_reuse=draw(st.sampled_from([1, 1, 8])),
        cont_batching=draw(st.integers(0, 7)) > 0,
        with_adapters=draw(st.booleans()),
        with_tenants=draw(st.booleans()),
        shared_cache=draw(st.booleans()),
        park_min_tokens=draw(st.sampled_from([0, 1, 4, 12])),
        priority_age_ms=draw(st.sampled_from([20.0, 200.0, 10_000.0])),
        shift=kind is Kind.ATTENTION and (draw(st.integers(0, 3)) == 0 if shift is None else shift),
        faults=tuple(sorted(faults.items())),
        bad_loads=draw(st.frozensets(st.integers(0, 8), max_size=4)) if faulty else frozenset(),
    )


@st.composite
def submits(draw: DrawFn, setup: Setup) -> Submit:
    n_ctx = setup.n_ctx
    lengths = st.one_of(st.integers(1, 20), st.integers(1, n_ctx - 1), st.integers(n_ctx - 3, n_ctx))
    return Submit(
        stem=draw(st.integers(0, N_STEMS - 1)),
        n_prompt=draw(lengths),
        tail=draw(st.one_of(st.just(()), TAILS)),
        n_predict=draw(st.one_of(st.integers(0, 30), st.just(-1))),
        n=draw(st.one_of(st.just(1), st.integers(1, setup.n_slots))),
        salt=draw(st.sampled_from(["", "", "", "other"])) if setup.with_tenants else "",
        tenant=draw(TENANTS) if setup.with_tenants else "",
        priority=draw(st.sampled_from([0, 0, 0, 1, 5, -3])),
        cache_prompt=draw(st.integers(0, 7)) > 0,
        id_slot=draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 4))),
        stop=draw(st.sampled_from(["", "", "", "e", "th", "t\n"])),
        held=draw(st.sampled_from([None, None, None, *HELD])),
        thoughts=draw(st.sampled_from([None, None, None, *THOUGHTS])),
        n_probs=draw(st.sampled_from([0, 0, 0, 1, 3])),
        seed=draw(st.one_of(st.none(), st.integers(0, 99))),
        adapters=draw(SETS) if setup.with_adapters else (),
        n_keep=draw(st.sampled_from([0, 0, 5, -1])) if setup.shift else 0,
        n_discard=draw(st.sampled_from([0, 0, 1, 7, 99])) if setup.shift else 0,
        n_cache_reuse=draw(st.sampled_from([0, 0, 0, 3, 8])) if setup.shift else 0,
        borders=draw(st.one_of(st.just(()), BORDERS)),
        n_prompt_probs=draw(st.sampled_from([-1] * 6 + [0, 2])),
    )


def ops(setup: Setup) -> SearchStrategy[Op]:
    """What users do."""
    steps = st.builds(Steps, st.integers(1, 8))
    return st.one_of(submits(setup), submits(setup), steps, steps, REPLIES, st.builds(Cancel, st.integers(0, 9)))


def all_ops(setup: Setup) -> SearchStrategy[Op]:
    """What users and operators do, and what befalls them."""
    slots, tenants = st.integers(0, setup.n_slots - 1), TENANTS if setup.with_tenants else st.just("")
    operators = st.one_of(
        st.builds(Pin, submits(setup)),
        st.builds(Unpin, st.integers(0, 3)),
        st.builds(Save, slots, tenants),
        st.builds(Restore, slots, tenants, st.integers(0, 3)),
        st.builds(Erase, slots, tenants),
    )
    ends = st.builds(Restart, st.sampled_from([True, True, False]))
    if setup.disk_bytes >= 0:
        ends = st.one_of(ends, ends, st.builds(Harm, st.integers(0, 999)))
    users = st.one_of(ops(setup), ops(setup), REPLIES, st.just(Steps(60)))
    return st.one_of(users, users, users, users, users, users, operators, operators, ends)


@st.composite
def histories(
    draw: DrawFn,
    unified: bool = True,
    faulty: bool = False,
    shift: bool | None = None,
    kinds: tuple[Kind, ...] = (Kind.ATTENTION,),
) -> History:
    """Of users. Four lists rather than one: they are longer that way, and each still shrinks to nothing."""
    setup = draw(setups(unified, faulty, shift, kinds, disk=False))
    several = st.lists(ops(setup), max_size=12)
    return History(setup, tuple(op for _ in range(4) for op in draw(several)))


@st.composite
def whole_histories(draw: DrawFn, unified: bool, kind: Kind) -> History:
    """Everything together: users, operators, restarts, a disk tier, faults."""
    setup = draw(setups(unified, draw(st.booleans()), None, (kind,), disk=True))
    several = st.lists(all_ops(setup), max_size=12)
    return History(setup, tuple(op for _ in range(4) for op in draw(several)))
