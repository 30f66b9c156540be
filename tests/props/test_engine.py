"""Whatever happens, each task's answer is what it would be alone; and planted faults are found.

``make long`` (CORRAL_LONG=1) plays 20,000 histories of everything together, 2,500 for each kind of memory and KV mode;
CORRAL_HISTORIES says how many instead.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.props.engine_machine import History, Reply, Setup, Steps, Submit, play
from tests.props.histories import ALL_KINDS, histories, whole_histories

from corral.engine import disk_worth, pressure, reuse
from corral.engine.cells import Cells
from corral.engine.commit import Commit
from corral.engine.draft import Draft, Want
from corral.engine.executor import Executor, OpResult, Outcome
from corral.engine.ledger import KvLedger, Lease
from corral.engine.life import Life
from corral.engine.lineup import line_up
from corral.engine.offers import Offer, offers
from corral.engine.plan import Plan, SlotSpan
from corral.engine.sampling import RowSampler, new_row_sampler, pick_rows
from corral.engine.shift import Cut, choose_cut
from corral.engine.slot import Generation, Memory, Slot, prefix_key
from corral.engine.state import SlotState
from corral.engine.thoughts import Thoughts
from corral.errors import DecodeFailed
from corral.ids import CacheKey, RowId, TaskId
from corral.ops import Op, Trim
from corral.ports import DecodeStatus
from corral.sim.shape import Kind
from corral.tasks import Sampling, Task, ThoughtBudget

pytestmark = pytest.mark.timeout(3600)  # for busy machines and long runs: each history has its own bound of steps

LONG = os.environ.get("CORRAL_LONG") == "1"
N_SOME = 500 if LONG else 20
N_WHOLE = int(os.environ.get("CORRAL_HISTORIES", 20_000 if LONG else 200)) // 10
"""Histories of everything together for each kind of memory and KV mode."""

KINDS = pytest.mark.parametrize("kind", ALL_KINDS, ids=[kind.name.lower() for kind in ALL_KINDS])
MODES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Injected faults are logged one by one, which costs more than the histories."""
    logs = [logging.getLogger(name) for name in ("corral.engine", "corral.disk")]
    for log in logs:
        log.disabled = True
    yield
    for log in logs:
        log.disabled = False


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small things are worth a place on disk, so that histories need not be long."""
    monkeypatch.setattr(disk_worth, "MIN_SAVED_MS", 5.0)
    monkeypatch.setattr(disk_worth, "FILE_MS", 0.1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")


@MODES
@KINDS
@settings(max_examples=N_WHOLE)
@given(data=st.data())
def test_everything_together(unified: bool, kind: Kind, data: st.DataObject, folders: Path) -> None:
    """Users, operators, restarts, a disk tier whose files come to harm, faults: no wrong token, nothing lost."""
    history = data.draw(whole_histories(unified, kind))
    if history.setup.disk_bytes < 0:
        play(history)
        return
    with tempfile.TemporaryDirectory(dir=folders) as folder:
        play(history, Path(folder))


@KINDS
@settings(max_examples=N_SOME)
@given(data=st.data())
def test_answers_do_not_depend_on_company_on_unified_kv(kind: Kind, data: st.DataObject) -> None:
    play(data.draw(histories(unified=True, kinds=(kind,))))


@KINDS
@settings(max_examples=N_SOME)
@given(data=st.data())
def test_answers_do_not_depend_on_company_on_split_kv(kind: Kind, data: st.DataObject) -> None:
    play(data.draw(histories(unified=False, kinds=(kind,))))


@KINDS
@settings(max_examples=N_SOME)
@given(data=st.data())
def test_faults_on_unified_kv_harm_only_the_tasks_of_their_batch(kind: Kind, data: st.DataObject) -> None:
    play(data.draw(histories(unified=True, faulty=True, kinds=(kind,))))


@KINDS
@settings(max_examples=N_SOME)
@given(data=st.data())
def test_faults_on_split_kv_harm_only_the_tasks_of_their_batch(kind: Kind, data: st.DataObject) -> None:
    play(data.draw(histories(unified=False, faulty=True, kinds=(kind,))))


@settings(max_examples=2 * N_SOME)
@given(st.booleans().flatmap(lambda unified: histories(unified=unified, shift=True)))
def test_shifted_contexts_disturb_nobody(history: History) -> None:
    play(history)


@settings(max_examples=2 * N_SOME)
@given(st.booleans().flatmap(lambda unified: histories(unified=unified, faulty=True, shift=True)))
def test_faults_beside_shifted_contexts_harm_only_the_tasks_of_their_batch(history: History) -> None:
    play(history)


# --- the referee is worth something: each planted fault is found within a few hundred histories -----------------------


def finds(strategy: SearchStrategy[History]) -> History:
    """A history that goes wrong. Raises hypothesis.errors.NoSuchExample if none of 300 does."""
    quick = settings(max_examples=300, phases=[Phase.generate], database=None, deadline=None)
    return find(strategy, _goes_wrong, settings=quick, random=Random(0))


def _goes_wrong(history: History) -> bool:
    try:
        play(history)
    except TypeError:  # more likely a fault of the planted function than one that it caused
        raise
    except Exception:  # an error of any other kind, raised anywhere, is a fault that was found
        return True
    return False


BOTH = st.booleans().flatmap(lambda unified: histories(unified=unified))
SHIFTING = st.booleans().flatmap(lambda unified: histories(unified=unified, shift=True))
FAULTY = st.booleans().flatmap(lambda unified: histories(unified=unified, faulty=True))


def test_a_missed_trim_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache keeps what the books think is gone."""
    whole = Executor._apply

    def lazy(self: Executor, op: Op) -> OpResult:
        return OpResult(op, True) if isinstance(op, Trim) else whole(self, op)

    monkeypatch.setattr(Executor, "_apply", lazy)
    assert finds(BOTH)


def test_a_missed_repair_of_a_failed_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(self: Executor, spans: tuple[SlotSpan, ...]) -> dict[RowId, int]:
        return {s.span.row: s.span.pos0 for s in spans}

    monkeypatch.setattr(Executor, "_repair", lazy)
    assert finds(FAULTY)


def test_a_prefix_one_token_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token beyond the common prefix is taken for equal, by plan, books and cache alike."""
    exact = reuse._offers

    def greedy(draft: Draft, want: Want) -> list[Offer]:
        return [replace(offer, n=offer.n + 1) for offer in exact(draft, want)]

    monkeypatch.setattr(reuse, "_offers", greedy)
    assert finds(BOTH)


def test_reusing_the_last_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would be left to compute, so there would be no logits to draw the first token from."""
    monkeypatch.setattr(reuse, "_offers", lambda draft, want: offers(draft.ledger, want.key, want.tokens))
    assert finds(BOTH)


def test_a_reuse_that_is_recorded_one_token_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Life.begin

    def generous(self: Life, slot: Slot, lease: Lease, n_reused: int, now_ms: float) -> None:
        begin(self, slot, lease, n_reused + 1, now_ms)

    monkeypatch.setattr(Life, "begin", generous)
    assert finds(BOTH)


def test_the_release_of_another_slots_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale lease releases a row that has been given to another."""

    def careless(self: KvLedger, lease: Lease) -> None:
        self._leases.pop(max(self._leases))

    monkeypatch.setattr(KvLedger, "release", careless)
    assert finds(BOTH)


def test_a_lease_that_is_kept_after_its_release_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Life, slot: Slot) -> None:
        assert slot.lease is not None
        self._books.ledger.release(slot.lease)

    monkeypatch.setattr(Life, "_release", forgetful)
    assert finds(BOTH)


def test_a_reference_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that gives up shared cells stays in their count, and they are never free again."""
    trim = Cells.trim

    def sticky(self: Cells, row: RowId, n: int) -> None:
        held = [run for run in self._runs.get(row, ()) if len(run.rows) > 1]
        trim(self, row, n)
        for run in held:
            run.rows.add(row)

    monkeypatch.setattr(Cells, "trim", sticky)
    assert finds(histories(unified=True))


def test_a_reference_too_few_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared cells count as the first row's alone: its end would free what the other still reads."""
    share = Cells.share

    def unshared(self: Cells, src: RowId, dst: RowId, n: int) -> None:
        share(self, src, dst, n)
        for run in self._runs.get(dst, ()):
            run.rows.discard(dst)

    monkeypatch.setattr(Cells, "share", unshared)
    assert finds(histories(unified=True))


def test_a_failed_load_that_counts_as_done_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Executor._apply
    monkeypatch.setattr(Executor, "_apply", lambda self, op: replace(whole(self, op), is_done=True))
    assert finds(FAULTY)


def test_a_prefix_shared_between_tenants_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.engine.draft.prefix_key", lambda task: CacheKey(""))
    monkeypatch.setattr(Generation, "key", property(lambda self: CacheKey("")))
    assert finds(BOTH)


def test_s18_a_batch_of_several_sets_of_adapters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.engine.policy.adapters_at", lambda *_: mock.ANY)
    assert finds(BOTH)


def test_s11_a_chunk_across_the_activation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.engine.prompts.n_alike", lambda tokens, n: len(tokens))
    assert finds(BOTH)


def test_s11_prefixes_that_forget_their_adapters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(task: Task) -> CacheKey:
        return prefix_key(replace(task, adapters=()))

    monkeypatch.setattr("corral.engine.draft.prefix_key", forgetful)
    monkeypatch.setattr(Generation, "key", property(lambda self: forgetful(self.task)))
    assert finds(BOTH)


def test_a_failed_pass_that_harms_a_bystander_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def everybody(self: Commit, plan: Plan, outcome: Outcome) -> None:
        for slot in self._books.slots:
            if slot.generation:
                self._life.fail(slot, DecodeFailed("Compute error."))

    monkeypatch.setattr(Commit, "_failure", everybody)
    assert finds(FAULTY)


def test_a_parked_task_that_never_resumes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slot, "wants_row", property(lambda s: s.state in (SlotState.STARTED, SlotState.WAIT_OTHER)))
    assert finds(histories(unified=True))


def test_a_held_task_that_never_comes_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.engine.seats.line_up", lambda view, tags: line_up(replace(view, held=()), tags))
    assert finds(BOTH)


def test_a_held_task_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot is given to another and it is nowhere."""
    hold = Life.hold

    def careless(self: Life, slot: Slot, now_ms: float) -> None:
        hold(self, slot, now_ms)
        self._books.held.clear()

    monkeypatch.setattr(Life, "hold", careless)
    assert finds(BOTH)


def test_a_held_task_that_thinks_its_row_is_still_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Life.begin

    def boastful(self: Life, slot: Slot, lease: Lease, n_reused: int, now_ms: float) -> None:
        begin(self, slot, lease, max(n_reused, slot.work.n_prompt_seen if slot.work.n_parked else 0), now_ms)

    monkeypatch.setattr(Life, "begin", boastful)
    assert finds(BOTH)


def test_a_parked_task_that_counts_its_thoughts_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    give_up = Life._give_up_row

    def forgetful(self: Life, slot: Slot, now_ms: float) -> None:
        give_up(self, slot, now_ms)
        sampler = self._books.samplers[slot.work.task.id]
        if sampler.sampling.thoughts is not None:
            sampler.thoughts = Thoughts(sampler.sampling.thoughts, self._tokenizer)

    monkeypatch.setattr(Life, "_give_up_row", forgetful)
    assert finds(BOTH)


def test_siblings_that_share_their_budget_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: dict[ThoughtBudget, Thoughts] = {}

    def careless(sampling: Sampling, *rest: Any) -> RowSampler:
        sampler = new_row_sampler(sampling, *rest)
        if sampling.thoughts is not None and sampler.thoughts is not None:
            sampler.thoughts = shared.setdefault(sampling.thoughts, sampler.thoughts)
        return sampler

    monkeypatch.setattr("corral.engine.core.new_row_sampler", careless)
    assert finds(BOTH)


def test_siblings_that_draw_from_the_wrong_logits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.engine.executor.pick_rows", lambda logits, rows: pick_rows(logits[::-1], rows))
    assert finds(BOTH)


def test_a_cache_in_ram_beyond_its_budget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "room_ops", lambda *_: [])
    assert finds(BOTH)


def test_moved_cells_that_are_offered_to_all_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KvLedger, "own_key", lambda self, row: self.key(row) if self.length(row) else None)
    assert finds(SHIFTING)


def test_moved_cells_that_the_next_in_the_slot_is_given_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(memory: Memory | None, *_: object) -> CacheKey | None:
        return memory.key if memory is not None and memory.is_shifted else None

    monkeypatch.setattr("corral.engine.draft.inherited_key", generous)
    monkeypatch.setattr("corral.engine.life.inherited_key", generous)
    assert finds(SHIFTING)


def test_a_move_of_cells_that_others_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cells, "owns_from", lambda self, row, n: True)
    assert finds(histories(unified=True, shift=True))


def test_a_shift_of_one_token_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(n_computed: int, n_keep: int, n_discard: int) -> Cut | None:
        cut = choose_cut(n_computed, n_keep, n_discard)
        return cut and replace(cut, discard=min(cut.discard + 1, n_computed - n_keep - 1))

    monkeypatch.setattr("corral.engine.approximate.choose_cut", greedy)
    assert finds(SHIFTING)


# --- histories that went wrong once ----------------------------------------------------------------------------------


def test_a_row_that_was_emptied_to_load_another_prefix_is_not_copied_from() -> None:
    """Room for a snapshot was made by evicting the row that would have been the next best source."""
    setup = Setup(n_slots=5, n_ctx=100, n_spare=3, cache_ram_bytes=1000, itl_target_ms=5.0)
    prompts = (Submit(n_prompt=1, n_predict=0), Submit(n_prompt=92, n_predict=0), Submit(n_prompt=53, n_predict=-1))
    play(History(setup, prompts))


def test_the_margin_after_no_room_does_not_keep_two_prompts_from_each_other() -> None:
    """A task began as if it were alone, and left the one that was there too little room to go on: for ever."""
    faults = tuple((n, DecodeStatus.NO_ROOM) for n in (1, 2, 11, 12))
    setup = Setup(n_slots=5, n_ctx=40, n_batch=64, n_ubatch=64, faults=faults)
    prompts = (Submit(n_prompt=14), Submit(n_prompt=37, n=2), Submit(stem=1, n_prompt=37), Submit(n_prompt=3, n=3))
    play(History(setup, prompts))


def test_a_prompt_that_a_sibling_computed_is_shown_by_all() -> None:
    """The parent was parked, and the sibling went on with its prompt: each saw a part of the probabilities."""
    setup = Setup(n_slots=3, n_ctx=64, n_batch=8, n_ubatch=8, priority_age_ms=20.0)
    group = Submit(n_prompt=40, n=2, n_prompt_probs=0)
    player = play(History(setup, (group, Steps(2), Submit(stem=1, n_prompt=60, n_predict=2, priority=5))))
    assert player.finished[TaskId(1)][1].timings.n_parked == 1


def test_what_was_read_from_disk_leaves_ram_although_more_arrives(tmp_path: Path) -> None:
    """While one file's bytes waited for their task, those that another had used stayed: twice the budget."""
    setup = Setup(kind=Kind.SLIDING, n_slots=5, n_ctx=64, cache_ram_bytes=0, disk_bytes=3000, cont_batching=False)
    long = Submit(n_prompt=13, tail=(98,), n_predict=-1)
    first = Submit(tail=(97, 97, 99, 99, 98), n_predict=-1, priority=5)
    player = play(History(setup, (first, long, Steps(60), Submit(n_prompt=27, priority=5), Reply())), tmp_path)
    assert player.engine.snapshot.counters.n_fetched >= 2
