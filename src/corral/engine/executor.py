"""Carries a plan out on the context and reports what happened. It records nothing and decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from corral.engine.adapted import plain
from corral.engine.disk_entry import Entry, Part, owner_of
from corral.engine.disk_tier import DiskTier
from corral.engine.plan import Plan, SlotSpan
from corral.engine.probs import top_logprobs
from corral.engine.sampling import RowSampler, pick_rows, run_on
from corral.engine.snapshots import SnapshotStore
from corral.events import TokenProbs
from corral.ids import AdapterSet, RowId, SlotId, SnapshotId, Token
from corral.ops import Checkpoint, Copy, Drop, Load, Op, Restore, Save, Shelve, Shift, Span, Trim
from corral.ports import Clock, Context, DecodeStatus, Picked, Rollback

if TYPE_CHECKING:
    from corral.ports import Logits

log = logging.getLogger("corral.engine")


@dataclass(frozen=True, slots=True)
class OpResult:
    """One op that was tried. ``n_bytes`` is what was stored or read, ``first`` where the row begins after it."""

    op: Op
    is_done: bool
    n_bytes: int = 0
    ms: float = 0.0
    first: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a plan came to.

    ``ops`` in the order they were tried; after one that failed nothing more was done. ``status`` is None when there was
    no forward pass. ``lengths`` are those of the rows it may have changed, read back after a pass that failed half way.
    ``firsts``: where rows begin now, in memory that drops what lies behind its window. ``picks`` are the drawn tokens
    for each slot (siblings included) that the plan asked for, with those that had to follow. ``shown``: probabilities
    of prompt tokens, with their slot and the position of the first.
    """

    ops: tuple[OpResult, ...] = ()
    status: DecodeStatus | None = None
    picks: tuple[tuple[SlotId, tuple[Picked, ...]], ...] = ()
    shown: tuple[tuple[SlotId, int, tuple[TokenProbs, ...]], ...] = ()
    lengths: Mapping[RowId, int] | None = None
    firsts: Mapping[RowId, int] = field(default_factory=dict)
    error: str = ""
    forward_ms: float = 0.0
    done_ms: float = 0.0


class Executor:
    """The only one that touches the context and the bytes in the RAM tier; it hands some of them to the disk tier."""

    def __init__(self, context: Context, store: SnapshotStore, clock: Clock, disk: DiskTier | None = None) -> None:
        self._context = context
        self._traits = context.traits
        self._store = store
        self._disk = disk
        self._clock = clock
        self._adapters: AdapterSet = ()

    def run(self, plan: Plan, samplers: Mapping[SlotId, RowSampler]) -> Outcome:
        """Actions in order, then the forward pass, then the draws. ``samplers`` are those of the slots that draw."""
        outcome = self._run(plan, samplers)
        if self._traits.rollback is not Rollback.BOUNDED:
            return outcome
        rows = (RowId(i) for i in range(self._traits.n_rows))
        return replace(outcome, firsts={row: self._context.bounds(row)[0] for row in rows})

    def _run(self, plan: Plan, samplers: Mapping[SlotId, RowSampler]) -> Outcome:
        ops: list[OpResult] = []
        for action in plan.actions:
            for op in action.ops:
                ops.append(self._apply(op))
                if not ops[-1].is_done:
                    return Outcome(tuple(ops), error=f"{op} failed", done_ms=self._clock.now_ms())
        if not plan.spans:
            return Outcome(tuple(ops), done_ms=self._clock.now_ms())
        return self._forward(plan, tuple(ops), samplers)

    def _forward(self, plan: Plan, ops: tuple[OpResult, ...], samplers: Mapping[SlotId, RowSampler]) -> Outcome:
        spans, start_ms = plan.spans, self._clock.now_ms()
        status = self._context.decode(self._adapted(plan))
        if status is not DecodeStatus.OK:
            lengths = self._repair(spans) if status in (DecodeStatus.ABORTED, DecodeStatus.FAILED) else None
            done_ms = self._clock.now_ms()
            return Outcome(ops, status, lengths=lengths, forward_ms=done_ms - start_ms, done_ms=done_ms)
        logits = self._context.logits() if any(s.span.n_outputs for s in spans) else None
        forward_ms = self._clock.now_ms() - start_ms
        if logits is None:
            return Outcome(ops, status, forward_ms=forward_ms, done_ms=self._clock.now_ms())
        shown = _shown(logits, spans)
        picks = _picks(logits, spans, samplers)
        return Outcome(ops, status, picks, shown, forward_ms=forward_ms, done_ms=self._clock.now_ms())

    def _adapted(self, plan: Plan) -> list[Span]:
        """What to compute, with the context set up for it."""
        if plan.adapters != self._adapters:
            self._context.use(plan.adapters)
            self._adapters = plan.adapters
        if not plan.adapters:
            return [s.span for s in plan.spans]
        return [replace(s.span, tokens=plain(s.span.tokens)) for s in plan.spans]

    def _repair(self, spans: tuple[SlotSpan, ...]) -> dict[RowId, int]:
        """Cut each row of a failed batch back to where its span began; what cannot be cut is emptied.

        Returns the lengths of these rows, and where rows have states that of all: others may have lost theirs.
        """
        lengths = {}
        if self._traits.whole_copy_only:
            lengths = {row: self._context.bounds(row)[1] for row in map(RowId, range(self._traits.n_rows))}
        for s in spans:
            row, pos0 = s.span.row, s.span.pos0
            _, end = self._context.bounds(row)
            if end > pos0 and self._can_cut(row, pos0):
                self._context.apply(Trim(row, pos0))
                _, end = self._context.bounds(row)
            if end != pos0:
                self._context.apply(Trim(row, 0))
                end = 0
            lengths[row] = end
        return lengths

    def _apply(self, op: Op) -> OpResult:
        start_ms = self._clock.now_ms()
        is_done, n_bytes = True, 0
        match op:
            case Trim(row, n):
                is_done = self._can_cut(row, n) and self._context.apply(op)
            case Copy(src, _, n, bare):
                is_done = (bare or self._can_cut(src, n)) and self._context.apply(op)
            case Shift():
                is_done = self._context.apply(op)
            case Save(row, snapshot, start):
                n_bytes = self._keep(snapshot, partial(self._context.save, row, start))
                is_done = n_bytes > 0
            case Load(snapshot, row, start):
                data = self._store.get(snapshot) or b""
                n_bytes, is_done = len(data), self._context.load(row, data, start)
            case Checkpoint(row, snapshot):
                n_bytes = self._keep(snapshot, partial(self._context.checkpoint, row))
                is_done = n_bytes > 0
            case Restore(snapshot, row, n):
                data = self._store.get(snapshot) or b""
                n_bytes, is_done = len(data), self._context.restore(row, n, data)
            case Drop(snapshot):
                self._store.drop(snapshot)
            case Shelve():
                n_bytes = self._shelve(op)
        if not is_done:
            log.warning("%s failed (%d bytes)", op, n_bytes)
        first = self._context.bounds(op.row)[0] if isinstance(op, Save | Load) else 0
        return OpResult(op, is_done, n_bytes, self._clock.now_ms() - start_ms, first)

    def _keep(self, snapshot: SnapshotId, save: Callable[[], bytes]) -> int:
        """The bytes that were kept; 0: there is no memory for them."""
        try:
            data = save()
        except MemoryError:
            return 0
        self._store.put(snapshot, data)
        return len(data)

    def _shelve(self, op: Shelve) -> int:
        """The bytes are written later, by another thread; that they could not be is no fault of the plan.

        Returns how many they are; 0: a snapshot is gone, and there is nothing to write.
        """
        states = tuple(self._store.get(snapshot) or b"" for snapshot, _, _ in op.links)
        if not self._disk or not all(states):
            return 0
        owner = owner_of(self._disk.identity, op.key)
        pairs = zip(op.links, states, strict=True)
        parts = tuple(Part(start, tokens, len(state)) for (_, start, tokens), state in pairs)
        marks = [(n, data) for snapshot, n in op.checkpoints if (data := self._store.get(snapshot))]
        lengths = tuple((n, len(data)) for n, data in marks)
        entry = Entry(self._disk.identity, owner, parts, op.prefill_ms, lengths)
        self._disk.put(entry, (*states, *(data for _, data in marks)))
        return entry.n_bytes

    def _can_cut(self, row: RowId, n: int) -> bool:
        """Whether it still can: with a window that may have changed since the plan was made."""
        return self._traits.can_cut(n, *self._context.bounds(row))


def _picks(
    logits: Logits, spans: Sequence[SlotSpan], samplers: Mapping[SlotId, RowSampler]
) -> tuple[tuple[SlotId, tuple[Picked, ...]], ...]:
    """Each draws from the last row of logits of its span."""
    asked: list[tuple[int, SlotId, int]] = []
    n_rows = 0
    for s in spans:
        n_rows += s.span.n_outputs
        asked += [(n_rows - 1, slot, s.n_more if slot == s.slot else 0) for slot in s.samples]
    picked = pick_rows(logits, [(i, samplers[slot]) for i, slot, _ in asked])
    return tuple(
        (slot, (pick, *run_on(samplers[slot], n_more))) for (_, slot, n_more), pick in zip(asked, picked, strict=True)
    )


def _shown(logits: Logits, spans: Sequence[SlotSpan]) -> tuple[tuple[SlotId, int, tuple[TokenProbs, ...]], ...]:
    """Of what is asked for, before anything is drawn from the same rows."""
    shown = []
    at = 0
    for s in spans:
        if s.targets:
            probs = tuple(_token_probs(logits[at + i], token, s.n_top) for i, token in enumerate(s.targets))
            shown.append((s.slot, s.span.pos0 + 1, probs))
        at += s.span.n_outputs
    return tuple(shown)


def _token_probs(row: Logits, token: Token, n_top: int) -> TokenProbs:
    p, top = top_logprobs(row, token, max(n_top, 1))
    return TokenProbs(token, p, top[:n_top], post_sampling=False)
