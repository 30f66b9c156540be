"""Making the immutable picture of an engine that everyone else reads."""

from __future__ import annotations

from collections.abc import Iterator

from corral.engine.books import Books
from corral.engine.disk_index import DiskIndex
from corral.engine.ledger import KvLedger, Tier
from corral.engine.offers import offers
from corral.engine.slot import Memory, Slot
from corral.engine.state import EngineSnapshot, Pinned, SlotSnapshot


def publish(books: Books) -> EngineSnapshot:
    """The books as they are now."""
    counters, histograms = books.metrics.publish()
    return EngineSnapshot(
        slots=tuple(_slot(slot, books) for slot in books.slots),
        waiting=tuple(task.id for waiting in books.waiting for task in waiting.group),
        n_cells=books.traits.n_cells,
        n_used=books.ledger.n_used,
        n_leased=books.ledger.n_leased_cells,
        n_snapshots=len(books.store),
        snapshot_bytes=books.store.n_bytes,
        snapshot_limit_bytes=books.config.cache_ram_bytes,
        held=tuple(task.id for held in books.held for task in held.group),
        n_disk=books.disk.n_entries if books.disk else 0,
        disk_bytes=books.disk.n_folder_bytes if books.disk else 0,
        pins=tuple(pinned(books)),
        counters=counters,
        histograms=histograms,
    )


def pinned(books: Books) -> Iterator[Pinned]:
    """The pins that are still kept."""
    kept = set(books.ledger.snapshots()) if books.pins else ()
    for name, pin in books.pins.items():
        if pin.snapshot in kept:
            n_bytes = sum(books.ledger.snapshot_bytes(part) for part in pin.parts if part in kept)
            yield Pinned(name, len(pin.tokens), n_bytes)


def _slot(slot: Slot, books: Books) -> SlotSnapshot:
    work = slot.generation
    if work is None:
        return _idle_slot(slot, books)
    limit = work.task.limits.n_predict
    return SlotSnapshot(
        id=slot.id,
        state=slot.state,
        n_ctx=books.n_ctx_slot,
        task=work.task,
        n_tokens=work.computed,
        n_prompt=work.n_prompt,
        n_prompt_processed=max(0, work.n_prompt_seen - max(0, work.n_cached)),
        n_prompt_cached=max(0, work.n_cached),
        n_decoded=work.n_decoded,
        n_remain=limit - work.n_decoded if limit >= 0 else -1,
        has_new_line=work.text.has_new_line,
        generated=work.text.text if books.config.show_text else "",
    )


def _idle_slot(slot: Slot, books: Books) -> SlotSnapshot:
    n_tokens, kept = where_kept(slot.memory, books.ledger, books.disk) if slot.memory else (0, "")
    return SlotSnapshot(
        id=slot.id,
        state=slot.state,
        n_ctx=books.n_ctx_slot,
        task=slot.last_task,
        n_tokens=n_tokens,
        n_prompt=0,
        n_prompt_processed=0,
        n_prompt_cached=0,
        n_decoded=0,
        n_remain=-1,
        has_new_line=False,
        kept=kept,
    )


def where_kept(memory: Memory, ledger: KvLedger, disk: DiskIndex | None = None) -> tuple[int, str]:
    """How much of what an idle slot last held is still there, and where."""
    found = offers(ledger, memory.key, memory.tokens)
    hit = disk.find(memory.key, memory.tokens) if disk else None
    if hit and hit.n > (found[-1].n if found else 0):
        return hit.n, "disk"
    if not found:
        return 0, "evicted"
    rows = sorted(h.id for h in found[-1].holders if h.tier is Tier.ROW)
    return found[-1].n, f"row {rows[0]}" if rows else "ram"
