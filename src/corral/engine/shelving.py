"""Which prefixes go to disk, and which tasks wait for one from there. Pure: part of the planner."""

from __future__ import annotations

from collections.abc import Sequence

from corral.engine.adapted import is_adapted
from corral.engine.disk_index import NEAR
from corral.engine.disk_worth import is_worth_reading, is_worth_writing
from corral.engine.draft import Draft, Want
from corral.engine.ledger import Holder, Tier, ram_holder, row_holder
from corral.engine.offers import on_path
from corral.engine.plan import Fetch
from corral.ids import CacheKey, RowId, SnapshotId, Token
from corral.ops import Drop, Op, Save, Shelve
from corral.ports import Rollback

N_MARKS = 4
"""Checkpoints that a file has at least, if there are so many: a conversation goes on near its end."""

UNSHARED = "\0"
"""Begins the keys of what belongs to one task or conversation only: it never leaves the process."""


def leave_ops(draft: Draft, snapshot: SnapshotId) -> list[Op]:
    """Ops with which a snapshot leaves RAM: by way of the disk if it is worth it."""
    return [*shelve_ops(draft, snapshot), Drop(snapshot)]


def shelve_ops(draft: Draft, snapshot: SnapshotId) -> list[Op]:
    """Ops that keep a snapshot on disk, too; none if others in memory have its tokens."""
    ledger, holder = draft.ledger, draft.ledger.holder_of(snapshot)
    if draft.view.disk is None or holder.tier is not Tier.RAM or ledger.is_redundant(holder):
        return []
    return _shelve_snapshot(draft, snapshot)


def shelve_row_ops(draft: Draft, row: RowId) -> list[Op]:
    """Ops that keep a row's tokens on disk where RAM has no place for them; the row stays."""
    ledger = draft.ledger
    if draft.view.disk is None or not ledger.is_settled(row) or not ledger.length(row):
        return []
    return [] if ledger.is_redundant(row_holder(row)) else _shelve_row(draft, row)


def _shelve_snapshot(draft: Draft, snapshot: SnapshotId) -> list[Op]:
    """With all it rests on: a file stands for itself."""
    ledger, holder = draft.ledger, ram_holder(snapshot)
    starts = {link: ledger.snapshot_start(link) for link in ledger.chain(snapshot)}
    links = [(s, start, tuple(ledger.holder_tokens(ram_holder(s))[start:])) for s, start in starts.items()]
    n_bytes = sum(map(ledger.snapshot_bytes, starts))
    return _shelve(draft, ledger.holder_key(holder), ledger.holder_tokens(holder), links, n_bytes)


def _shelve_row(draft: Draft, row: RowId) -> list[Op]:
    """By way of a snapshot for this plan only."""
    snapshot, key, tokens = draft.new_snapshot(), draft.ledger.key(row), draft.ledger.tokens(row)
    shelve = _shelve(draft, key, tokens, [(snapshot, 0, tuple(tokens))], draft.row_bytes(row))
    return [Save(row, snapshot), *shelve, Drop(snapshot)] if shelve else []


def _shelve(
    draft: Draft,
    key: CacheKey,
    tokens: Sequence[Token],
    links: list[tuple[SnapshotId, int, tuple[Token, ...]]],
    n_bytes: int,
) -> list[Op]:
    view = draft.view
    assert view.disk is not None
    if key.startswith(UNSHARED) or is_adapted(key, tokens):
        return []  # adapters have numbers in this process only
    marks = _marks(draft, key, tokens, n_bytes)
    n_bytes += sum(map(draft.ledger.snapshot_bytes, marks))
    prefill_ms = view.cost.prefill_ms(len(tokens))
    if not is_worth_writing(prefill_ms, n_bytes, view.disk.bytes_per_ms) or view.disk.holds(key, tokens):
        return []
    return [Shelve(key, tuple(links), prefill_ms, tuple((s, draft.ledger.snapshot_length(s)) for s in marks))]


def _marks(draft: Draft, key: CacheKey, tokens: Sequence[Token], n_bytes: int) -> list[SnapshotId]:
    """The checkpoints that go with a row of ``n_bytes``: together no more bytes than that, but a few in any case."""
    ledger = draft.ledger
    n_max = max(N_MARKS, n_bytes // max(1, ledger.traits.bytes_per_row))
    return on_path(ledger, key, tokens, min(n_max, draft.view.config.n_ctx_checkpoints))


def waits_for_disk(draft: Draft, want: Want, n_have: int) -> bool:
    """Whether the task should wait for a file that holds more of its tokens than anybody in memory. Once at most."""
    disk, task, cost = draft.view.disk, want.task.id, draft.view.cost
    if disk is None or task in disk.tried or want.key.startswith(UNSHARED):
        return False
    if task in disk.fetching:
        return True
    hit = disk.find(want.key, want.tokens[: len(want.tokens) - 1])
    if hit is None or hit.n - n_have < draft.view.config.min_reuse:
        return False
    saved_ms = cost.prefill_ms(hit.n) - cost.prefill_ms(n_have)
    if not is_worth_reading(saved_ms, hit.n_bytes, disk.bytes_per_ms, cost.state_ms(hit.n_tokens)):
        return False
    draft.fetches.append(Fetch(task, hit.name))
    return True


def farewell_ops(draft: Draft) -> list[list[Op]]:
    """What of rows and RAM is worth a place on disk when the engine ends, each with its ops, most time saved first."""
    ledger = draft.ledger
    holders = [ledger.holder_of(s) for s in ledger.snapshots()] + [row_holder(row) for row in ledger.cold_rows()]
    kept: list[tuple[CacheKey, list[Token], list[int]]] = []
    found: list[tuple[float, list[Op]]] = []
    for holder in sorted(holders, key=lambda h: (-ledger.holder_length(h), h.tier is Tier.ROW)):
        key, tokens = ledger.holder_key(holder), ledger.holder_tokens(holder)
        lengths = [points for k, t, points in kept if k == key and t[: len(tokens)] == tokens]
        if holder.tier is Tier.CHECKPOINT or (lengths and _is_given(draft, holder, lengths)):
            continue
        if ops := _last_ops(draft, holder):
            kept.append((key, tokens, [n for op in ops if isinstance(op, Shelve) for _, n in op.checkpoints]))
            found.append((draft.view.cost.prefill_ms(len(tokens)), ops))
    return [ops for _, ops in sorted(found, key=lambda pair: -pair[0])]


def _is_given(draft: Draft, holder: Holder, lengths: list[list[int]]) -> bool:
    """Whether files that hold all of the holder's tokens and checkpoints of these ``lengths`` give nearly all of it."""
    ledger, n = draft.ledger, draft.ledger.holder_length(holder)
    is_checkpoint = holder.tier is Tier.RAM and not ledger.traits.bytes_per_token
    if ledger.traits.rollback is Rollback.ANY or is_checkpoint:
        return True
    return any(n - NEAR < length <= n for points in lengths for length in points)


def _last_ops(draft: Draft, holder: Holder) -> list[Op]:
    if holder.tier is Tier.RAM:
        return _shelve_snapshot(draft, SnapshotId(holder.id))
    row = RowId(holder.id)
    return _shelve_row(draft, row) if draft.ledger.is_settled(row) else []
