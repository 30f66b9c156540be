"""What operators ask of the cache between two steps: pins, and a list of what is kept."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence

from corral.engine.adapted import plain
from corral.engine.books import Books
from corral.engine.checkpoints import NEAR
from corral.engine.ledger import Holder, Tier
from corral.engine.offers import on_path
from corral.engine.pins import Pin, check_room, pin_name, pinned_prefix
from corral.engine.publish import pinned
from corral.engine.slot import Memory
from corral.engine.slot_work import SlotWork, n_whole, tenant_of, whole_snapshot
from corral.errors import CorralError, NotFound, ServerError, Unavailable
from corral.events import CacheDone, End, Failed, Kept
from corral.ids import CacheKey, RowId, SnapshotId, TaskId, Token
from corral.ports import AdapterInfo
from corral.tasks import CacheAction, Task, TaskKind

log = logging.getLogger("corral.engine")


class CacheWork:
    """Uses the means of ``SlotWork`` to make snapshots."""

    def __init__(self, books: Books, slot_work: SlotWork, adapters: Sequence[AdapterInfo]) -> None:
        self._books = books
        self._slot_work = slot_work
        self._adapters = adapters
        self._waiting: list[CacheAction] = []

    @property
    def is_ready(self) -> bool:
        """Whether ``run`` would do something."""
        return bool(self._ready())

    def _ready(self) -> list[CacheAction]:
        """A prompt that is being computed is pinned in the step after: nobody gets its row before."""
        if not any(a.task for a in self._waiting):
            return self._waiting
        there = {task.id for task in self._books.queued()} | {w.task.id for w in self._books.generations()}
        return [a for a in self._waiting if a.task is None or a.task.id not in there]

    def add(self, action: CacheAction) -> None:
        self._waiting.append(action)

    def forget(self, tasks: Iterable[TaskId]) -> None:
        gone = set(tasks)
        self._waiting = [a for a in self._waiting if a.id not in gone]

    def waiting(self) -> list[TaskId]:
        return [a.id for a in self._waiting]

    def run(self) -> list[End]:
        """Do what can be done now, in order of arrival."""
        ready = list(self._ready())
        done = [self._do(action) for action in ready]
        self.forget(action.id for action in ready)
        return done

    def _do(self, action: CacheAction) -> End:
        self._forget_lost()
        try:
            match action.kind:
                case TaskKind.CACHE_PIN:
                    assert action.task is not None
                    return self._pin(action, action.task)
                case TaskKind.CACHE_UNPIN:
                    return self._unpin(action)
                case _:
                    return CacheDone(action.id, prefixes=tuple(self._list(action)))
        except CorralError as error:
            return Failed(action.id, error)

    def _forget_lost(self) -> None:
        """Pins whose snapshot is gone: the context refused it, or all memory was given up after a fault."""
        kept = set(self._books.ledger.snapshots())
        for name in [name for name, pin in self._books.pins.items() if pin.snapshot not in kept]:
            log.warning(
                "pin %s is lost: its prefix of %d tokens is not kept any more", name, len(self._books.pins[name].tokens)
            )
            del self._books.pins[name]

    # --- pins ------------------------------------------------------------------------------------------------------

    def _pin(self, action: CacheAction, task: Task) -> CacheDone:
        key, tokens = pinned_prefix(task, self._adapters)
        name = pin_name(key, tokens)
        if name in self._books.pins:
            return self._pinned(action, name)
        check_room(len(tokens), pinned(self._books), self._books.traits, self._books.config.cache_ram_bytes)
        memory = Memory(key, list(tokens), task.cache_key)
        if n_whole(self._books.ledger, memory) < len(tokens):
            raise Unavailable("the prefix is not there, or not any more, and cannot be pinned", retry_after_s=1)
        draft = self._slot_work.draft()
        snapshot, _ = whole_snapshot(draft, memory, len(tokens))
        self._slot_work.carry_out(draft, ServerError("the prefix could not be copied to RAM"))
        self._books.pins[name] = Pin(key, tokens, snapshot, self._checkpoint(key, tokens))
        self._hold_pins()
        return self._pinned(action, name)

    def _checkpoint(self, key: CacheKey, tokens: tuple[Token, ...]) -> SnapshotId | None:
        """The last one of a pinned prefix, if it is near its end."""
        ledger = self._books.ledger
        marks = on_path(ledger, key, tokens, n_max=1)
        return marks[0] if marks and len(tokens) - ledger.snapshot_length(marks[0]) <= NEAR else None

    def _hold_pins(self) -> None:
        """Pins share what they rest on, and checkpoints."""
        for pin in self._books.pins.values():
            for part in pin.parts:
                if part in self._books.store:
                    self._books.ledger.pin(part)

    def _pinned(self, action: CacheAction, name: str) -> CacheDone:
        return next(CacheDone(action.id, name, pin.n_bytes) for pin in pinned(self._books) if pin.name == name)

    def _unpin(self, action: CacheAction) -> CacheDone:
        pin = self._books.pins.get(action.pin)
        if pin is None or not self._may_see(action, pin.key):
            raise NotFound(f"there is no pin {action.pin}")
        del self._books.pins[action.pin]
        for part in pin.parts:
            self._books.ledger.pin(part, False)
        self._hold_pins()
        return CacheDone(action.id, action.pin)

    def _may_see(self, action: CacheAction, key: CacheKey) -> bool:
        return action.all_tenants or tenant_of(key) == tenant_of(action.key)

    # --- list ------------------------------------------------------------------------------------------------------

    def _list(self, action: CacheAction) -> Iterator[Kept]:
        ledger, pins = self._books.ledger, {p: name for name, pin in self._books.pins.items() for p in pin.parts}
        holders = sorted(ledger.all_holders(), key=lambda h: -ledger.used_at(h))
        for recency, holder in enumerate(holders):
            key = ledger.holder_key(holder)
            if key.startswith("\0private") or not self._may_see(action, key):
                continue
            tokens = ledger.holder_tokens(holder)
            is_row = holder.tier is Tier.ROW
            yield Kept(
                tier=holder.tier.value,
                place=str(holder.id),
                owner=_owner(key),
                n_tokens=len(tokens),
                n_bytes=self._holder_bytes(holder),
                recency=recency,
                is_busy=is_row and ledger.is_leased(RowId(holder.id)),
                pin="" if is_row else pins.get(SnapshotId(holder.id), ""),
                tokens=plain(tokens) if action.show_tokens else (),
            )
        if self._books.disk:
            yield from self._on_disk(action)

    def _on_disk(self, action: CacheAction) -> Iterator[Kept]:
        """Files say whose they are by a sum only: an API key sees those without a salt."""
        disk = self._books.disk
        assert disk is not None
        mine = None if action.all_tenants or not tenant_of(action.key) else action.key
        for recency, entry in enumerate(disk.entries(mine)):
            tokens = entry.tokens if action.show_tokens else ()
            owner = entry.owner.hex()[:8]
            yield Kept("disk", entry.name, owner, len(entry.tokens), entry.n_bytes, recency, tokens=tokens)

    def _holder_bytes(self, holder: Holder) -> int:
        ledger, traits = self._books.ledger, self._books.traits
        if holder.tier is Tier.ROW:
            return ledger.length(RowId(holder.id)) * traits.bytes_per_token + traits.bytes_per_row
        return ledger.snapshot_bytes(SnapshotId(holder.id))


def _owner(key: CacheKey) -> str:
    """Stands for a tenant and salt without telling them; "" for everybody's."""
    return hashlib.blake2b(key.encode(), digest_size=4).hexdigest() if key else ""
