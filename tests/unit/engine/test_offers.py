"""What a task can have of its prompt from whom, against sequences kept as plain lists."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from corral.engine.ledger import Holder, KvLedger, Tier, ram_holder, row_holder
from corral.engine.offers import Offer, cut_ops, deepest, offers
from corral.engine.radix import common_prefix
from corral.ids import CacheKey, RowId, SnapshotId, Token
from corral.ops import Checkpoint, Drop, Restore, Trim
from corral.ports import MemoryTraits, Rollback

KEY = CacheKey("")
WINDOW = 4
TRAITS = MemoryTraits(400, 400, 4, 1, 64, 64, True, bytes_per_token=8, bytes_per_row=100)
KINDS = (
    TRAITS,
    replace(TRAITS, rollback=Rollback.BOUNDED, window=WINDOW, window_cells=32),
    replace(TRAITS, rollback=Rollback.WHOLE_ROW, whole_copy_only=True),
)
A, B, SCRATCH = RowId(0), RowId(1), RowId(3)
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


@dataclass
class Kept:
    """What the ledger was told, as lists. ``firsts``: what each has lost from its beginning."""

    ledger: KvLedger
    bodies: dict[Holder, list[Token]]
    firsts: dict[Holder, int]
    marks: dict[SnapshotId, list[Token]]

    def best(self, query: list[Token]) -> int:
        """The longest beginning of the query that somebody can be brought back to."""
        return max((self._reach(holder, query) for holder in self.bodies), default=0)

    def _reach(self, holder: Holder, query: list[Token]) -> int:
        tokens, traits = self.bodies[holder], self.ledger.traits
        n = common_prefix(tokens, query)
        if traits.can_cut(n, self.firsts.get(holder, 0), len(tokens)):
            return n
        return max(
            (len(mark) for mark in self.marks.values() if mark == query[: len(mark)] and len(mark) <= n), default=0
        )


@st.composite
def memories(draw: st.DrawFn) -> Kept:
    traits = draw(st.sampled_from(KINDS))
    kept = Kept(KvLedger(traits), {}, {}, {})
    holders: list[Holder] = [*map(row_holder, (A, B)), *(ram_holder(SnapshotId(i)) for i in range(3))]
    for holder in draw(st.lists(st.sampled_from(holders), unique=True)):
        tokens = draw(TEXTS)
        if holder.tier is Tier.ROW:
            kept.ledger.extend(RowId(holder.id), KEY, tokens)
        else:
            kept.ledger.adopt(SnapshotId(holder.id), KEY, tokens, 8 * len(tokens))
        kept.bodies[holder] = tokens
        if traits.rollback is Rollback.BOUNDED:
            kept.firsts[holder] = draw(st.integers(0, max(0, len(tokens) - WINDOW)))
            kept.ledger.set_first(holder, kept.firsts[holder])
    for i in range(draw(st.integers(0, 4)) if traits.rollback is not Rollback.ANY else 0):
        source = draw(st.one_of(TEXTS, st.sampled_from([*kept.bodies.values()] or [[0]])))
        kept.marks[SnapshotId(10 + i)] = tokens = source[: draw(st.integers(1, len(source)))]
        kept.ledger.extend(SCRATCH, KEY, tokens)
        kept.ledger.apply(Checkpoint(SCRATCH, SnapshotId(10 + i)), 100)
        kept.ledger.apply(Trim(SCRATCH, 0))
    return kept


@given(memories(), TEXTS)
def test_the_longest_offer_is_what_plain_lists_say(kept: Kept, query: list[Token]) -> None:
    found = offers(kept.ledger, KEY, query)
    assert max((offer.n for offer in found), default=0) == kept.best(query)
    assert [offer.n for offer in found] == sorted(offer.n for offer in found)


@given(memories(), TEXTS)
def test_every_offer_can_be_taken(kept: Kept, query: list[Token]) -> None:
    for offer in offers(kept.ledger, KEY, query):
        assert offer.holders, "an offer is somebody's"
        for holder in offer.holders:
            tokens = kept.bodies[holder]
            assert tokens[: offer.n] == query[: offer.n]
            if offer.checkpoint is None:
                assert kept.ledger.traits.can_cut(offer.n, kept.firsts.get(holder, 0), len(tokens))
            else:
                assert kept.marks[offer.checkpoint] == query[: offer.n]


@given(memories(), TEXTS)
def test_checkpoints_alone_offer_nothing(kept: Kept, query: list[Token]) -> None:
    for holder in kept.bodies:
        kept.ledger.apply(Trim(RowId(holder.id), 0) if holder.tier is Tier.ROW else Drop(SnapshotId(holder.id)))
    assert offers(kept.ledger, KEY, query) == []
    assert all(kept.ledger.is_redundant(kept.ledger.holder_of(mark)) for mark in kept.marks)


@given(memories(), TEXTS)
def test_the_deepest_of_a_tier_names_only_its_holders(kept: Kept, query: list[Token]) -> None:
    found = offers(kept.ledger, KEY, query)
    for tier in (Tier.ROW, Tier.RAM):
        best = deepest(found, tier)
        reach = [offer.n for offer in found if any(h.tier is tier for h in offer.holders)]
        assert (best.n if best else 0) == max(reach, default=0)
        assert best is None or {h.tier for h in best.holders} == {tier}


def test_where_a_cut_will_do_no_checkpoint_is_taken() -> None:
    ledger = KvLedger(KINDS[1])
    ledger.extend(A, KEY, range(20))
    ledger.apply(Checkpoint(A, SnapshotId(1)), 100)
    ledger.extend(A, KEY, range(20, 30))
    both = Offer(20, frozenset({row_holder(A)}))
    assert offers(ledger, KEY, range(20)) == [both]
    ledger.set_first(row_holder(A), 20)
    assert offers(ledger, KEY, range(20)) == [replace(both, checkpoint=SnapshotId(1))]


def test_a_checkpoint_is_needed_although_the_row_could_be_cut_as_it_is_now() -> None:
    """It loses what lies behind its window with the next passes, and when it is saved."""
    ledger = KvLedger(KINDS[1])
    ledger.extend(A, KEY, range(20))
    ledger.apply(Checkpoint(A, SnapshotId(1)), 100)
    ledger.extend(A, KEY, range(20, 30))
    assert not ledger.is_redundant(ledger.holder_of(SnapshotId(1)))
    ledger.apply(Trim(A, 20))
    assert ledger.is_redundant(ledger.holder_of(SnapshotId(1)))


def test_ops_that_cut_a_row_back() -> None:
    assert cut_ops(A, 30, 30, None) == []
    assert cut_ops(A, 30, 20, None) == [Trim(A, 20)]
    assert cut_ops(A, 30, 20, SnapshotId(1)) == [Restore(SnapshotId(1), A, 20)]
