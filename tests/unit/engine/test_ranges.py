"""Snapshots as ranges: what is kept once, what comes back, what goes first, and what goes with a bad one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.props.engine_machine import Player, Setup, Submit
from tests.props.histories import PATIENT

from corral.config import ContextConfig, EngineConfig
from corral.engine.core import Engine
from corral.engine.draft import Draft
from corral.engine.ledger import KvLedger, Tier, row_holder
from corral.engine.pressure import room_ops
from corral.engine.radix import common_prefix
from corral.engine.ranges import MIN_SHARED, load_ops, save_op, shared_part
from corral.ids import CacheKey, RowId, SnapshotId, TaskId, Token
from corral.ops import Copy, Drop, Load, Op, Save, Trim
from corral.sim.clock import VirtualClock
from corral.sim.model import SimModel

KEY = CacheKey("")
MODEL = SimModel()
SHAPE = ContextConfig(n_ctx=4096, n_slots=2, n_rows=4, n_batch=64, n_ubatch=64)
TRAITS = MODEL.new_context(SHAPE).traits
BLOCK = 20
"""Texts here are made of blocks of tokens; two of them are more than ``MIN_SHARED``."""

TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)


def tokens_of(blocks: Sequence[int]) -> list[Token]:
    return [block for block in blocks for _ in range(BLOCK)]


@dataclass
class Plain:
    """Rows and snapshots as lists, which carry out the ops that the ledger is told."""

    ledger: KvLedger = field(default_factory=lambda: KvLedger(TRAITS))
    rows: dict[RowId, list[Token]] = field(default_factory=dict)
    parts: dict[SnapshotId, list[Token]] = field(default_factory=dict)
    wholes: dict[SnapshotId, list[Token]] = field(default_factory=dict)

    def write(self, row: RowId, tokens: list[Token]) -> None:
        self.apply(Trim(row, 0))
        self.ledger.extend(row, KEY, tokens)
        self.rows[row] = tokens

    def apply(self, op: Op) -> None:
        match op:
            case Trim(row, n):
                self.rows[row] = self.rows.get(row, [])[:n]
            case Copy(src, dst, n):
                self.rows[dst] = self.rows[src][:n]
            case Save(row, snapshot, start):
                self.parts[snapshot], self.wholes[snapshot] = self.rows[row][start:], self.rows[row]
            case Load(snapshot, row, start):
                assert len(self.rows.get(row, [])) == start, "the row holds just what lies before"
                self.rows[row] = self.rows.get(row, []) + self.parts[snapshot]
            case Drop(snapshot):
                del self.parts[snapshot], self.wholes[snapshot]
        self.ledger.apply(op, 8 * len(self.parts.get(getattr(op, "snapshot", SnapshotId(-1)), [])))

    def save(self, blocks: Sequence[int]) -> None:
        """The way of a text into RAM, unless that holds it already."""
        self.write(RowId(0), tokens_of(blocks))
        if not self.ledger.is_redundant(row_holder(RowId(0))):
            self.apply(save_op(self.ledger, RowId(0), SnapshotId(len(self.parts))))


@given(st.lists(TEXTS, max_size=10))
def test_what_ram_has_of_a_row_is_not_saved_again(texts: list[tuple[int, ...]]) -> None:
    plain = Plain()
    for blocks in texts:
        tokens = tokens_of(blocks)
        n_known = max((common_prefix(tokens, whole) for whole in plain.wholes.values()), default=0)
        n_before = len(plain.parts)
        plain.save(blocks)
        if len(plain.parts) == n_before:
            assert n_known == len(tokens), "it was not saved"
            continue
        saved = SnapshotId(n_before)
        assert plain.ledger.snapshot_start(saved) == (n_known if n_known >= MIN_SHARED else 0)
        chain = plain.ledger.chain(saved)
        assert (chain[-1], plain.ledger.snapshot_start(chain[0])) == (saved, 0)
        starts = [plain.ledger.snapshot_start(link) for link in chain]
        assert starts == sorted(set(starts))
    plain.ledger.check()


@given(st.lists(TEXTS, min_size=1, max_size=10), TEXTS, st.data())
def test_a_snapshot_comes_back_whole_alone_or_beside_a_row_that_has_a_part_of_it(
    texts: list[tuple[int, ...]], other: tuple[int, ...], data: st.DataObject
) -> None:
    plain = Plain()
    for blocks in texts:
        plain.save(blocks)
    snapshot = data.draw(st.sampled_from(sorted(plain.wholes)))
    whole = plain.wholes[snapshot]
    alone, beside, source = RowId(1), RowId(2), RowId(0)
    plain.write(source, tokens_of(other))
    n = data.draw(st.integers(0, common_prefix(whole, plain.rows[source])))
    for row, ops in (
        (alone, load_ops(plain.ledger, snapshot, alone)),
        (beside, load_ops(plain.ledger, snapshot, beside, source, n)),
    ):
        for op in ops:
            plain.apply(op)
        assert plain.rows[row] == plain.ledger.tokens(row) == whole
    n_loaded = len(whole) - shared_part(plain.ledger, snapshot, n)
    assert plain.ledger.exclusive(beside) == n_loaded, "what the row has is shared and the rest is loaded"
    plain.ledger.check()


# --- what goes first -------------------------------------------------------------------------------------------------


def planned(texts: Sequence[tuple[int, ...]], uses: Sequence[int], limit: int) -> tuple[Draft, Plain]:
    """A draft of an engine whose RAM holds these texts, of which some were used again, with that budget."""
    engine = Engine(MODEL, MODEL.new_context(SHAPE), VirtualClock(), EngineConfig(n_slots=2, cache_ram_bytes=limit))
    plain = Plain(engine.books.ledger)
    for blocks in texts:
        plain.save(blocks)
    plain.apply(Trim(RowId(0), 0))
    for i in uses:
        plain.ledger.touch(plain.ledger.holder_of(SnapshotId(i % len(plain.parts))))
    return Draft(engine.books.view(0.0)), plain


def rank(ledger: KvLedger, snapshot: SnapshotId) -> tuple[bool, int]:
    """Those go first whose tokens others keep, then the least recently used."""
    holder = ledger.holder_of(snapshot)
    return not ledger.is_redundant(holder), ledger.used_at(holder)


@given(st.lists(TEXTS, min_size=1, max_size=10), st.lists(st.integers(0, 9), max_size=6), st.data())
@PATIENT
def test_room_is_made_from_the_ends_of_chains_and_no_further_than_needed(
    texts: list[tuple[int, ...]], uses: list[int], data: st.DataObject
) -> None:
    n_total = Plain()
    for blocks in texts:
        n_total.save(blocks)
    n_bytes = data.draw(st.integers(0, n_total.ledger.total_snapshot_bytes))
    draft, plain = planned(texts, uses, limit=n_total.ledger.total_snapshot_bytes)
    spared = data.draw(st.sampled_from([None, *sorted(plain.parts)]))
    draft.spared |= set() if spared is None else set(plain.ledger.chain(spared))
    ledger = draft.ledger.fork()
    ops = room_ops(draft, n_bytes)
    if ops is None:
        assert spared is not None, "all of it could have gone"
        return
    for i, op in enumerate(ops):
        assert isinstance(op, Drop)
        assert op.snapshot not in draft.spared
        assert not ledger.children().get(op.snapshot), "others rest on it"
        leaves = [s for s in ledger.snapshots() if not ledger.children().get(s) and s not in draft.spared]
        assert rank(draft.ledger, op.snapshot) == min(rank(draft.ledger, s) for s in leaves)
        assert n_total.ledger.total_snapshot_bytes - ledger.total_snapshot_bytes < n_bytes, f"drop {i} is one too many"
        ledger.apply(op)
    ledger.check()
    assert ledger.total_snapshot_bytes + n_bytes <= n_total.ledger.total_snapshot_bytes


def test_what_is_pinned_keeps_what_it_rests_on() -> None:
    draft, plain = planned([(0, 0), (0, 0, 1), (0, 0, 2)], [], limit=4 * BLOCK * 8)
    pinned = SnapshotId(1)
    draft.ledger.pin(pinned)
    assert room_ops(draft, BLOCK * 8) == [Drop(SnapshotId(2))]
    assert room_ops(draft, 2 * BLOCK * 8) is None
    assert plain.ledger.chain(pinned) == [SnapshotId(0), pinned]


# --- with a whole engine ---------------------------------------------------------------------------------------------


def own_part(i: int, n: int) -> tuple[Token, ...]:
    return tuple(Random(i).choices(range(100, 120), k=n))


def test_conversations_with_a_common_beginning_keep_it_once() -> None:
    """24 of 700 tokens, 500 of them in common, one after the other on one row; then each finds all of its own."""
    n_users, n_common, n_own = 24, 500, 200
    player = Player(Setup(n_slots=1, n_ctx=1000, n_batch=256, n_ubatch=256))
    for _ in range(2):
        for i in range(n_users):
            player.play([Submit(n_prompt=n_common + n_own, tail=own_part(i, n_own), n_predict=1)])
    ledger = player.engine.books.ledger
    parts = [ledger.snapshot_length(s) - ledger.snapshot_start(s) for s in ledger.snapshots()]
    assert len(parts) >= n_users - 1
    assert sum(parts) <= n_common + n_users * n_own
    whole_bytes = n_users * (n_common + n_own) * ledger.traits.bytes_per_token
    assert 0 < player.engine.snapshot.snapshot_bytes < whole_bytes / 2
    again = [player.starts[TaskId(i)].n_cached for i in range(n_users + 1, 2 * n_users + 1)]
    assert min(again) >= n_common + n_own - 64


@pytest.mark.parametrize(("bad_load", "n_kept"), [(0, 0), (1, 2)], ids=["what others rest on", "the end"])
def test_a_snapshot_that_cannot_be_loaded_takes_along_what_rests_on_it_and_no_more(bad_load: int, n_kept: int) -> None:
    """Two conversations rest on one beginning. The first comes back in two loads, of which one fails."""
    player = Player(Setup(n_slots=1, n_ctx=200, n_batch=64, n_ubatch=64, bad_loads=frozenset({bad_load})))
    for i in range(2):
        player.play([Submit(n_prompt=120, tail=own_part(i, 60), n_predict=1)])
    player.play([Submit(stem=2, n_prompt=150, n_predict=1)])
    ledger = player.engine.books.ledger
    shared, end = ledger.snapshots()
    assert ledger.chain(end) == [shared, end]
    player.play([Submit(n_prompt=120, tail=own_part(1, 60), n_predict=1)])
    assert player.starts[TaskId(4)].n_cached < 119
    left = [s for s in (shared, end) if s in ledger.snapshots()]
    assert left == ([shared] if n_kept else [])
    assert all(ledger.holder_of(s).tier is Tier.RAM for s in ledger.snapshots())
