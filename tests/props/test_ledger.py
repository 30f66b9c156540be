"""The ledger never disagrees with the cells, and planted mistakes are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from corral.config import ContextConfig
from corral.engine.ledger import SHIFTED, KvLedger, Lease, StaleLease, ram_holder, row_holder
from corral.ids import CacheKey, RowId, SnapshotId
from corral.ops import Copy, Drop, Load, Op, Save, Shift, Span, Trim
from corral.ports import DecodeStatus
from corral.sim.context import Faults, SimContext
from corral.sim.model import SimModel, SimSpec
from corral.sim.oracle import solo

CONFIG = ContextConfig(n_ctx=24, n_slots=2, n_rows=4, n_batch=16, n_ubatch=3)
MODEL = SimModel(SimSpec(eos_every=0))
KEY = CacheKey("")
A, B, C = RowId(0), RowId(1), RowId(2)
ROWS = st.integers(0, CONFIG.n_rows - 1).map(RowId)
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
STATUSES = st.sampled_from([None, None, None, DecodeStatus.ABORTED, DecodeStatus.FAILED, DecodeStatus.NO_ROOM])


class Pair:
    """A ledger and a context that are told the same; ``bytes_of`` is the store of snapshots."""

    def __init__(self, config: ContextConfig = CONFIG, ledger: type[KvLedger] = KvLedger) -> None:
        self.fault: DecodeStatus | None = None
        self.load_fails = False
        faults = Faults(decode=lambda n: self.fault, load=lambda n: self.load_fails)
        self.context: SimContext = MODEL.new_context(config, faults=faults)
        self.ledger = ledger(self.context.traits)
        self.bytes_of: dict[SnapshotId, bytes] = {}

    def apply(self, op: Op) -> None:
        """Carry out an op on the context and record what came of it."""
        match op:
            case Save(row, snapshot):
                self.bytes_of[snapshot] = self.context.save(row)
                self.ledger.apply(op, len(self.bytes_of[snapshot]))
            case Load(snapshot, row):
                loaded = self.context.load(row, self.bytes_of[snapshot])
                self.ledger.apply(op if loaded else Trim(row, 0))
            case Drop(snapshot):
                del self.bytes_of[snapshot]
                self.ledger.apply(op)
            case Trim() | Copy() | Shift():
                self.context.apply(op)
                self.ledger.apply(op)

    def decode(self, batch: dict[RowId, list[int]]) -> DecodeStatus:
        """Extend rows; after a failure cut back what stayed, as an executor does."""
        spans = [Span(row, self.ledger.length(row), tuple(tokens), 1) for row, tokens in sorted(batch.items())]
        status = self.context.decode(spans)
        if status is DecodeStatus.OK:
            self.ledger.settle()
        for span in spans:
            if status is DecodeStatus.OK:
                self.ledger.extend(span.row, KEY, span.tokens)
            else:
                self.context.apply(Trim(span.row, span.pos0))
        return status

    def audit(self) -> None:
        """Raise AssertionError where the ledger and the cells disagree."""
        self.context.check()
        self.ledger.check()
        for row in self.ledger.rows():
            assert self.context.bounds(row) == (0, self.ledger.length(row)), f"row {row}: bounds differ"
            assert self.context.tokens(row) == tuple(self.ledger.tokens(row)), f"row {row}: tokens differ"
        for row in self.ledger.rows():
            assert self.ledger.exclusive(row) == self.freed_by({row}), f"row {row}: exclusive cells differ"
            assert self.ledger.n_free(row) == self.context.n_free(row), f"row {row}: free cells differ"
        assert self.ledger.n_used == self.context.n_used, "used cells differ"
        assert self.ledger.n_reclaimable() == self.freed_by(set(self.ledger.cold_rows())), "reclaimable cells differ"
        for row in self.ledger.cold_rows():
            assert self.ledger.n_reclaimable(row) == self.freed_by(set(self.ledger.cold_rows()) - {row})
        assert self.ledger.n_leased_cells == self.ledger.n_used - self.ledger.n_reclaimable()

    def freed_by(self, rows: set[RowId]) -> int:
        """Cells that nobody else holds, counted one by one."""
        others = [row for row in self.ledger.rows() if row not in rows]
        kept = self.context.memory.main.has[others].any(axis=0)
        return int((self.context.memory.main.has.any(axis=0) & ~kept).sum())


class LedgerAgainstCells(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[RowId, Lease] = {}
        self.stale: list[Lease] = []
        self.n_snapshots = 0

    @initialize(unified=st.booleans())
    def open(self, unified: bool) -> None:
        self.pair = Pair(replace(CONFIG, kv_unified=unified))

    @rule(batch=st.dictionaries(ROWS, TOKENS, min_size=1, max_size=2), fault=STATUSES)
    def decode(self, batch: dict[RowId, list[int]], fault: DecodeStatus | None) -> None:
        self.pair.fault = fault
        free = {row: self.pair.ledger.n_free(row) for row in batch}
        status = self.pair.decode(batch)
        if fault is None:
            n_tokens = {row: len(tokens) for row, tokens in batch.items()}
            fits = all(n_tokens[row] <= free[row] for row in batch)
            if self.pair.context.traits.shared_cells:
                fits = sum(n_tokens.values()) <= min(free.values())
            assert (status is DecodeStatus.OK) == fits, "the ledger did not foresee whether the batch fits"

    @rule(row=ROWS, n=st.integers(0, 24))
    def trim(self, row: RowId, n: int) -> None:
        self.pair.apply(Trim(row, min(n, self.pair.ledger.length(row))))

    @rule(src=ROWS, dst=ROWS, n=st.integers(0, 24))
    def copy(self, src: RowId, dst: RowId, n: int) -> None:
        if self.pair.context.traits.shared_cells and src != dst:
            self.pair.apply(Copy(src, dst, min(n, self.pair.ledger.length(src))))

    @rule(row=ROWS, keep=st.integers(0, 6), discard=st.integers(1, 6))
    def shift(self, row: RowId, keep: int, discard: int) -> None:
        """Who may shift is the ledger's to know; the cells agree. Others do not notice."""
        op = Shift(row, keep, discard)
        before = [self.pair.context.tokens(other) for other in self.pair.ledger.rows() if other != row]
        if keep + discard < self.pair.ledger.length(row) and self.pair.ledger.owns_from(row, keep + discard):
            self.pair.apply(op)
            assert str(self.pair.ledger.key(row)).startswith(SHIFTED)
        else:
            for side in (self.pair.ledger.apply, self.pair.context.apply):
                with pytest.raises(ValueError, match=r"cells|positions"):
                    side(op)
        assert before == [self.pair.context.tokens(other) for other in self.pair.ledger.rows() if other != row]

    @rule(row=ROWS)
    def save(self, row: RowId) -> None:
        if self.pair.ledger.length(row) and not self.pair.ledger.is_settled(row):
            with pytest.raises(ValueError, match="before the next decode"):
                self.pair.context.save(row)
        elif self.pair.ledger.length(row):
            self.n_snapshots += 1
            self.pair.apply(Save(row, SnapshotId(self.n_snapshots)))

    @rule(row=ROWS, data=st.data(), fails=st.booleans())
    def load(self, row: RowId, data: st.DataObject, fails: bool) -> None:
        if self.pair.bytes_of:
            self.pair.load_fails = fails
            self.pair.apply(Load(data.draw(st.sampled_from(sorted(self.pair.bytes_of))), row))

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.pair.bytes_of:
            self.pair.apply(Drop(data.draw(st.sampled_from(sorted(self.pair.bytes_of)))))

    @rule(row=ROWS)
    def lease(self, row: RowId) -> None:
        if row in self.leases:
            with pytest.raises(ValueError, match="leased already"):
                self.pair.ledger.lease(row)
        else:
            self.leases[row] = self.pair.ledger.lease(row)

    @rule(row=ROWS)
    def release(self, row: RowId) -> None:
        if row in self.leases:
            self.stale.append(self.leases.pop(row))
            self.pair.ledger.release(self.stale[-1])

    @rule(data=st.data())
    def release_stale(self, data: st.DataObject) -> None:
        if self.stale:
            with pytest.raises(StaleLease):
                self.pair.ledger.release(data.draw(st.sampled_from(self.stale)))

    @rule(row=ROWS)
    def fork(self, row: RowId) -> None:
        """What is tried on a fork stays there."""
        fork = self.pair.ledger.fork()
        fork.apply(Trim(row, 0))
        fork.extend(row, KEY, [1, 1][: fork.n_free(row)])
        fork.check()

    @rule(query=TOKENS)
    def match(self, query: list[int]) -> None:
        for level in self.pair.ledger.match(KEY, query):
            for holder in level.holders:
                held = self.pair.ledger._tree.tokens(holder)
                assert held[: level.n] == query[: level.n]

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "pair"):
            self.pair.audit()
            assert set(self.leases) == set(self.pair.ledger.leased_rows())
            assert set(self.pair.bytes_of) == set(self.pair.ledger.snapshots())
            assert self.pair.ledger.total_snapshot_bytes == sum(map(len, self.pair.bytes_of.values()))


TestLedgerAgainstCells = LedgerAgainstCells.TestCase


@pytest.fixture
def pair() -> Pair:
    """A prompt in row 0, its first three tokens shared with row 1."""
    pair = Pair()
    pair.decode({A: [1, 2, 3, 4, 5]})
    pair.apply(Copy(A, B, 3))
    pair.audit()
    return pair


def test_a_trim_the_cache_did_not_get_is_found(pair: Pair) -> None:
    pair.ledger.apply(Trim(A, 2))
    with pytest.raises(AssertionError, match="bounds differ"):
        pair.audit()
    with pytest.raises(ValueError, match="starts at"):
        pair.decode({A: [9]})


def test_a_trim_the_ledger_did_not_get_is_found(pair: Pair) -> None:
    pair.context.apply(Trim(A, 2))
    with pytest.raises(AssertionError, match="bounds differ"):
        pair.audit()


def test_a_trim_missed_by_both_is_a_wrong_token(pair: Pair) -> None:
    pair.decode({B: [7]})
    pair.decode({B: [4]})
    assert pair.context.logits()[0].argmax() != solo((1, 2, 3, 4), 1, model=MODEL)[0]


def test_a_prefix_one_token_too_long_is_found(pair: Pair) -> None:
    class Greedy(KvLedger):
        def apply(self, op: Op, n_bytes: int = 0) -> None:
            super().apply(replace(op, n=op.n + 1) if isinstance(op, Copy) else op, n_bytes)

    greedy = Pair(ledger=Greedy)
    greedy.decode({A: [1, 2, 3, 4, 5]})
    greedy.apply(Copy(A, B, 3))
    with pytest.raises(AssertionError, match="bounds differ"):
        greedy.audit()


def test_a_prefix_one_token_too_long_on_both_sides_is_a_wrong_token(pair: Pair) -> None:
    pair.apply(Copy(A, B, 4))
    pair.decode({B: [9]})
    assert pair.context.logits()[0].argmax() != solo((1, 2, 3, 9), 1, model=MODEL)[0]


def test_tokens_recorded_wrongly_are_found(pair: Pair) -> None:
    pair.context.decode([Span(A, 5, (6,))])
    pair.ledger.extend(A, KEY, [7])
    with pytest.raises(AssertionError, match="tokens differ"):
        pair.audit()


def test_a_failed_load_recorded_as_done_is_found(pair: Pair) -> None:
    pair.apply(Save(A, SnapshotId(1)))
    pair.load_fails = True
    pair.context.load(C, pair.bytes_of[SnapshotId(1)])
    pair.ledger.apply(Load(SnapshotId(1), C))
    with pytest.raises(AssertionError, match="bounds differ"):
        pair.audit()


def test_a_failed_batch_left_untrimmed_is_found(pair: Pair) -> None:
    pair.fault = DecodeStatus.FAILED
    pair.context.decode([Span(A, 5, (6, 7, 8, 9))])
    with pytest.raises(AssertionError, match="bounds differ"):
        pair.audit()


def test_a_stale_lease_cannot_release(pair: Pair) -> None:
    old = pair.ledger.lease(A)
    pair.ledger.release(old)
    new = pair.ledger.lease(A)
    with pytest.raises(StaleLease):
        pair.ledger.release(old)
    assert pair.ledger.is_leased(A)
    pair.ledger.release(new)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_count_of_used_cells_off_by_one_is_found(pair: Pair, off: int) -> None:
    pair.ledger._cells.n_used += off
    with pytest.raises(AssertionError, match="used"):
        pair.ledger.check()


def test_a_holder_missing_from_a_shared_run_is_found(pair: Pair) -> None:
    pair.ledger._cells._runs[A][0].rows.discard(B)
    with pytest.raises(AssertionError, match="differ"):
        pair.ledger.check()


def test_a_holder_too_many_on_a_run_is_found(pair: Pair) -> None:
    pair.ledger._cells._runs[A][-1].rows.add(C)
    with pytest.raises(AssertionError, match="differ"):
        pair.ledger.check()


def test_a_tree_that_forgot_a_row_is_found(pair: Pair) -> None:
    pair.ledger._tree.drop(row_holder(B))
    with pytest.raises(AssertionError, match="tree and cells differ"):
        pair.ledger.check()


def test_cells_copied_where_they_should_be_shared_are_found(pair: Pair) -> None:
    pair.ledger._cells.trim(B, 0)
    pair.ledger._cells.extend(B, 3)
    pair.ledger.check()
    with pytest.raises(AssertionError, match="differ"):
        pair.audit()


def test_a_snapshot_without_tokens_is_found(pair: Pair) -> None:
    pair.apply(Save(A, SnapshotId(1)))
    pair.ledger._tree.drop(ram_holder(SnapshotId(1)))
    with pytest.raises(AssertionError, match="no tokens"):
        pair.ledger.check()
