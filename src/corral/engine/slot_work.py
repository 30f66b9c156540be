"""What is asked of idle slots between two steps: what a slot held as bytes, bytes back into a slot, forgetting it.

Files are not read or written here: bytes go out with the event, and come in with the action.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from corral.engine.adapted import is_adapted
from corral.engine.books import Books
from corral.engine.commit import Commit
from corral.engine.draft import Draft
from corral.engine.executor import Executor
from corral.engine.ledger import Holder, KvLedger, Tier
from corral.engine.offers import cut_ops, offers, on_path
from corral.engine.plan import Arrange, Fetch
from corral.engine.pressure import evict, reclaim_for, room_ops
from corral.engine.ranges import load_ops
from corral.engine.slot import Memory, Slot, without_adapters
from corral.errors import CorralError, InvalidRequest, ServerError
from corral.events import End, Failed, SlotDone
from corral.ids import CacheKey, RowId, SnapshotId, TaskId
from corral.ops import Copy, Drop, Load, Op, Save, SavedCheckpoint, Trim
from corral.ports import Clock, Context, Rollback
from corral.tasks import SlotAction, TaskKind

NOT_TAKEN = "Unable to restore slot: its state is cut short, or of another model or other settings"


def tenant_of(key: CacheKey) -> str:
    """Whose key it is, whatever its salt."""
    return without_adapters(key).partition(":")[0]


class SlotWork:
    """Actions wait here until their slot is idle. Each goes through the same executor and commit as a step."""

    def __init__(self, books: Books, context: Context, executor: Executor, commit: Commit, clock: Clock) -> None:
        self._books = books
        self._context = context
        self._executor = executor
        self._commit = commit
        self._clock = clock
        self._waiting: list[SlotAction] = []
        self._fetches: list[Fetch] = []

    @property
    def is_ready(self) -> bool:
        """Whether ``run`` would do something."""
        return any(self._books.slots[a.slot].is_idle for a in self._waiting)

    def add(self, action: SlotAction) -> None:
        self._waiting.append(action)

    def forget(self, tasks: Iterable[TaskId]) -> None:
        gone = set(tasks)
        self._waiting = [a for a in self._waiting if a.id not in gone]
        if disk := self._books.disk:
            disk.askers = {task: key for task, key in disk.askers.items() if task not in gone}

    def waiting(self) -> list[TaskId]:
        return [a.id for a in self._waiting]

    def run(self) -> list[End]:
        """Do what can be done now, in order of arrival."""
        ready = [a for a in self._waiting if self._books.slots[a.slot].is_idle and not self._waits_for_disk(a)]
        done = [self._do(action) for action in ready]
        self.forget(a.id for a in ready)
        return done

    def take_fetches(self) -> list[Fetch]:
        """Files that actions have begun to wait for since the last call."""
        fetches, self._fetches = self._fetches, []
        return fetches

    def _waits_for_disk(self, action: SlotAction) -> bool:
        """Whether what is to be saved comes from disk first: more of it is there than in memory. Once at most."""
        disk, memory = self._books.disk, self._books.slots[action.slot].memory
        if disk is None or memory is None or action.id in disk.tried or action.kind is not TaskKind.SLOT_SAVE:
            return False
        if action.id in disk.askers:
            return True
        hit = disk.find(memory.key, memory.tokens)
        if hit is None or hit.n <= n_whole(self._books.ledger, memory) or not self._may_touch(action, memory):
            return False
        disk.askers[action.id] = memory.key
        self._fetches.append(Fetch(action.id, hit.name))
        return True

    def _may_touch(self, action: SlotAction, memory: Memory) -> bool:
        return tenant_of(memory.owner) == tenant_of(action.key)

    def _do(self, action: SlotAction) -> End:
        slot = self._books.slots[action.slot]
        try:
            if slot.memory and not self._may_touch(action, slot.memory):
                raise InvalidRequest(f"slot {slot.id} holds what another API key sent")
            match action.kind:
                case TaskKind.SLOT_SAVE:
                    return self._save(action, slot)
                case TaskKind.SLOT_RESTORE:
                    return self._restore(action, slot)
                case _:
                    return self._erase(action, slot)
        except CorralError as error:
            return Failed(action.id, error)

    def draft(self) -> Draft:
        """A plan in the making, between two steps."""
        return Draft(self._books.view(self._clock.now_ms()))

    def carry_out(self, draft: Draft, error: CorralError) -> None:
        """Raises ``error`` if an op fails; what was done until then is recorded."""
        chosen = draft.finish()
        outcome = self._executor.run(chosen, {})
        self._commit.record(chosen, outcome, self._clock.now_ms())
        if outcome.error:
            raise error

    def arrange(self, error: CorralError, *ops: Op) -> None:
        """Carry ops out. Raises ``error`` if one fails."""
        draft = self.draft()
        draft.act(Arrange(), *ops)
        self.carry_out(draft, error)

    # --- save ------------------------------------------------------------------------------------------------------

    def _save(self, action: SlotAction, slot: Slot) -> SlotDone:
        """What is left of what the slot held. Raises ServerError if nothing of it is left."""
        books, memory = self._books, slot.memory
        if memory and is_adapted(memory.key, memory.tokens):
            raise InvalidRequest(f"slot {slot.id} was computed with LoRA adapters, which the file could not tell")
        if memory and memory.is_shifted:  # a file would bring it back as if it had been computed for its tokens
            raise InvalidRequest(f"slot {slot.id} cannot be saved: moving cells made what it holds approximate")
        n = n_whole(books.ledger, memory) if memory else 0
        if memory and not n:
            raise ServerError(f"Unable to save slot: the {len(memory.tokens)} tokens it held are not kept any more")
        tokens = tuple(memory.tokens[:n]) if memory else ()
        draft = self.draft()
        marks = on_path(books.ledger, memory.key, tokens, books.config.n_ctx_checkpoints) if memory else []
        draft.spared |= set(marks)
        snapshot, is_new = whole_snapshot(draft, memory, n)
        self.carry_out(draft, ServerError("Unable to save slot"))
        data = books.store.get(snapshot) or b""
        if is_new:
            self.arrange(ServerError("Unable to save slot"), Drop(snapshot))
        return SlotDone(action.id, n, tokens, data, self._checkpoints(marks))

    def _checkpoints(self, marks: Iterable[SnapshotId]) -> tuple[SavedCheckpoint, ...]:
        """With the bytes of those that are still there: a failed Restore may have been the end of one."""
        books = self._books
        kept = [(s, data) for s in marks if (data := books.store.get(s))]
        return tuple(SavedCheckpoint(books.ledger.snapshot_length(s), data) for s, data in kept)

    # --- restore ---------------------------------------------------------------------------------------------------

    def _restore(self, action: SlotAction, slot: Slot) -> SlotDone:
        """Into a row of its own; only when it is there does the slot stand for it."""
        tokens = action.tokens
        if not tokens:
            self._books.forget_slot(slot)
            return SlotDone(action.id, 0)
        self._check(action)
        self._load(action, self._adopt(action))
        self._adopt_checkpoints(action)
        self._books.forget_slot(slot)
        slot.memory = Memory(action.key, list(tokens), action.key)
        return SlotDone(action.id, len(tokens))

    def _check(self, action: SlotAction) -> None:
        if len(action.tokens) > self._books.n_ctx_slot:
            raise InvalidRequest("Unable to restore slot: Restored prompt does not fit in the slot context")
        if fault := self._context.fault(action.data, len(action.tokens)):
            raise InvalidRequest(f"Unable to restore slot: {fault}")
        lengths = [0, *(checkpoint.n for checkpoint in action.checkpoints), len(action.tokens)]
        if any(n >= after for n, after in pairwise(lengths)):
            raise InvalidRequest(f"Unable to restore slot: its checkpoints are not of its {len(action.tokens)} tokens")
        for n, data in action.checkpoints if not self._books.traits.bytes_per_token else ():
            if fault := self._context.fault(data, n):
                raise InvalidRequest(f"Unable to restore slot: a checkpoint in it is not good: {fault}")

    def _adopt(self, action: SlotAction) -> SnapshotId:
        snapshot = self._books.keep(action.data)
        self._books.ledger.adopt(snapshot, action.key, action.tokens, len(action.data))
        return snapshot

    def _adopt_checkpoints(self, action: SlotAction) -> None:
        """As many as RAM has room for, the last ones first: there the conversation goes on."""
        books, kept = self._books, set(self._known(action))
        for n, data in action.checkpoints[::-1] if books.traits.rollback is not Rollback.ANY else ():
            if n in {books.ledger.snapshot_length(s) for s in kept}:
                continue
            draft = self.draft()
            draft.spared |= kept
            room = room_ops(draft, len(data))
            if room is None:
                return
            self.arrange(ServerError("Unable to restore slot"), *room)
            snapshot = books.keep(data)
            books.ledger.adopt_checkpoint(snapshot, action.key, action.tokens[:n], len(data))
            kept.add(snapshot)

    def _known(self, action: SlotAction) -> list[SnapshotId]:
        """Checkpoints on the restored path that were here before."""
        books = self._books
        return on_path(books.ledger, action.key, action.tokens, len(action.tokens))

    def _load(self, action: SlotAction, snapshot: SnapshotId) -> None:
        """The bytes are in RAM until they are in a row, or known not to be good."""
        error, n = InvalidRequest(NOT_TAKEN), len(action.tokens)
        draft = self.draft()
        draft.spared.add(snapshot)
        row = _free_row(draft) if not draft.ledger.traits.shared_cells or reclaim_for(draft, n) else None
        if row is None or snapshot not in draft.ledger.snapshots():
            self.arrange(error, Drop(snapshot))
            raise InvalidRequest(
                f"Unable to restore slot: No available space in KV cache for its {n} tokens: busy slots hold the rest; "
                "try again when they are done"
            )
        draft.act(Arrange(), Load(snapshot, row))
        self.carry_out(draft, error)
        if not self._is_whole(row, n):
            self.arrange(error, Drop(snapshot), Trim(row, 0))
            raise error
        self.arrange(error, Drop(snapshot))

    def _is_whole(self, row: RowId, n: int) -> bool:
        """Whether the row holds ``n`` tokens, as far back as the next one must see."""
        first, end = self._context.bounds(row)
        window = self._books.traits.window
        return end == n and first <= (max(0, n - window + 1) if window else 0)

    # --- erase -----------------------------------------------------------------------------------------------------

    def _erase(self, action: SlotAction, slot: Slot) -> SlotDone:
        """Forget whatever holds just what the slot held; what others share or went on from stays theirs."""
        books, memory = self._books, slot.memory
        if memory is None:
            return SlotDone(action.id, 0)
        levels = books.ledger.match(memory.key, memory.tokens)
        n = levels[-1].n if levels else 0
        needed = books.ledger.children().keys() | books.ledger.pins
        if books.disk:
            books.disk.discard(memory.key, memory.tokens)
        ops: list[Op] = []
        for holder in _exact_holders(self.draft(), memory, n):
            if holder.tier is not Tier.ROW:
                ops += [Drop(SnapshotId(holder.id))] if SnapshotId(holder.id) not in needed else []
            elif not books.ledger.is_leased(RowId(holder.id)):
                ops.append(Trim(RowId(holder.id), 0))
        self.arrange(ServerError("Unable to erase slot"), *ops)
        books.forget_slot(slot)
        return SlotDone(action.id, n)


def n_whole(ledger: KvLedger, memory: Memory) -> int:
    """How many of the tokens can still be had from rows and snapshots."""
    found = offers(ledger, memory.key, memory.tokens)
    return found[-1].n if found else 0


def _exact_holders(draft: Draft, memory: Memory, n: int) -> list[Holder]:
    """Those that hold the first ``n`` tokens and nothing else, in a fixed order."""
    ledger = draft.ledger
    levels = ledger.match(memory.key, memory.tokens[:n])
    holders = sorted(levels[-1].holders, key=lambda h: (h.tier.value, h.id)) if levels else []
    return [h for h in holders if ledger.holder_length(h) == n]


def _free_row(draft: Draft, spared: RowId | None = None) -> RowId | None:
    """An empty row, if need be that of the least recently used cold prefix."""
    ledger = draft.ledger
    if empty := ledger.empty_rows():
        return empty[0]
    cold = next((row for row in ledger.cold_rows() if row != spared), None)
    if cold is not None:
        evict(draft, cold)
    return cold


def whole_snapshot(draft: Draft, memory: Memory | None, n: int) -> tuple[SnapshotId, bool]:
    """A snapshot of exactly the first ``n`` tokens, and whether the plan makes it. Raises ServerError without room."""
    exact = _exact_holders(draft, memory, n) if memory else []
    exact = [h for h in exact if h.tier is not Tier.CHECKPOINT]
    for holder in exact:
        if holder.tier is Tier.RAM and draft.ledger.snapshot_start(SnapshotId(holder.id)) == 0:
            return SnapshotId(holder.id), False
    snapshot = draft.new_snapshot()
    if rows := [RowId(h.id) for h in exact if h.tier is Tier.ROW]:
        draft.act(Arrange(), Save(rows[0], snapshot))
        return snapshot, True
    row, ops = _cut_copy(draft, memory, n)
    draft.act(Arrange(), *ops, Save(row, snapshot), Trim(row, 0))
    return snapshot, True


def _longer_holder(draft: Draft, memory: Memory, n: int) -> tuple[Holder, SnapshotId | None]:
    """Who can be cut at ``n``, and by which checkpoint; a row if there is one: its cells can be shared."""
    offer = next(o for o in reversed(offers(draft.ledger, memory.key, memory.tokens[:n])) if o.n == n)
    return min(offer.holders, key=lambda h: (h.tier is not Tier.ROW, h.id)), offer.checkpoint


def _cut_copy(draft: Draft, memory: Memory | None, n: int) -> tuple[RowId, list[Op]]:
    """A row of its own for the first ``n`` tokens of a longer holder; an empty one for nothing."""
    source, checkpoint = _longer_holder(draft, memory, n) if memory else (None, None)
    src = RowId(source.id) if source and source.tier is Tier.ROW else None
    shares, n_held = draft.ledger.traits.shared_cells, draft.ledger.holder_length(source) if source else 0
    draft.spared |= {checkpoint, *(draft.ledger.chain(SnapshotId(source.id)) if source and src is None else ())}
    n_row, n_shared = (n_held, 0) if src is None else (n, n)
    has_cells = not shares or reclaim_for(draft, n_row, src, n_shared)
    row = _free_row(draft, spared=src) if has_cells else None
    if row is None:
        raise ServerError("Unable to save slot: no room in the KV cache to cut its prefix from a longer one")
    if source is None:
        return row, []
    if src is not None and shares:
        return row, [Copy(src, row, n, checkpoint is not None), *cut_ops(row, n, n, checkpoint)]
    if src is None:
        return row, [*load_ops(draft.ledger, SnapshotId(source.id), row), *cut_ops(row, n_held, n, checkpoint)]
    carrier = draft.new_snapshot()
    return row, [Save(src, carrier), Load(carrier, row), Drop(carrier), *cut_ops(row, n_held, n, checkpoint)]
