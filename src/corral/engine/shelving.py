"""Which prefixes go to disk, and which tasks wait for one from there. Pure: part of the planner."""

from __future__ import annotations

from collections.abc import Sequence

from corral.engine.adapted import is_adapted
from corral.engine.disk_index import NEAR
from corral.engine.disk_worth import is_worth_reading, is_worth_writing
from corral.engine.draft import Draft, Want
from corral.engine.ledger import Holder, KvLedger, Tier, ram_holder, row_holder
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
    if draft.view.disk is None or ledger.is_redundant(holder):
        return []
    return _shelve_snapshot(draft, snapshot) if holder.tier is Tier.RAM else _shelve_with(draft, snapshot)


def _shelve_with(draft: Draft, checkpoint: SnapshotId) -> list[Op]:
    """Ops that write the conversation of a checkpoint that leaves RAM, as long as it can go with it.

    Later its file would only be good for who goes on at its end. That is worth a file by what the way from the
    checkpoint before costs.
    """
    ledger, cost, disk = draft.ledger, draft.view.cost, draft.view.disk
    assert disk is not None
    holder = ledger.holder_of(checkpoint)
    key, tokens = ledger.holder_key(holder), ledger.holder_tokens(holder)
    hit = disk.find(key, tokens)
    marks = on_path(ledger, key, tokens, n_max=1)
    n_left = max(hit.n if hit else 0, *map(ledger.snapshot_length, marks), 0)
    holders = ledger.match(key, tokens)[-1].holders
    if n_left == len(tokens) or not (bodies := [h for h in holders if _can_be_written(ledger, h)]):
        return []
    lost_ms = cost.prefill_ms(len(tokens)) - cost.prefill_ms(n_left)
    body = max(bodies, key=lambda h: (ledger.holder_length(h), h.tier is Tier.RAM, h.id))
    if body.tier is Tier.RAM:
        return _shelve_snapshot(draft, SnapshotId(body.id), lost_ms)
    return _shelve_row(draft, RowId(body.id), lost_ms)


def _can_be_written(ledger: KvLedger, holder: Holder) -> bool:
    """A row that is at work will be longer soon."""
    if holder.tier is not Tier.ROW:
        return holder.tier is Tier.RAM
    return not ledger.is_leased(RowId(holder.id)) and ledger.is_settled(RowId(holder.id))


def shelve_row_ops(draft: Draft, row: RowId) -> list[Op]:
    """Ops that keep a row's tokens on disk where RAM has no place for them; the row stays."""
    ledger = draft.ledger
    if draft.view.disk is None or not ledger.is_settled(row) or not ledger.length(row):
        return []
    return [] if ledger.is_redundant(row_holder(row)) else _shelve_row(draft, row)


def _shelve_snapshot(draft: Draft, snapshot: SnapshotId, saved_ms: float | None = None) -> list[Op]:
    """With all it rests on: a file stands for itself. ``saved_ms``: what it saves, if not computing all of it."""
    ledger, holder = draft.ledger, ram_holder(snapshot)
    starts = {link: ledger.snapshot_start(link) for link in ledger.chain(snapshot)}
    links = [(s, start, tuple(ledger.holder_tokens(ram_holder(s))[start:])) for s, start in starts.items()]
    n_bytes = sum(map(ledger.snapshot_bytes, starts))
    return _shelve(draft, ledger.holder_key(holder), ledger.holder_tokens(holder), links, n_bytes, saved_ms)


def _shelve_row(draft: Draft, row: RowId, saved_ms: float | None = None) -> list[Op]:
    """By way of a snapshot for this plan only."""
    snapshot, key, tokens = draft.new_snapshot(), draft.ledger.key(row), draft.ledger.tokens(row)
    shelve = _shelve(draft, key, tokens, [(snapshot, 0, tuple(tokens))], draft.row_bytes(row), saved_ms)
    return [Save(row, snapshot), *shelve, Drop(snapshot)] if shelve else []


def _shelve(
    draft: Draft,
    key: CacheKey,
    tokens: Sequence[Token],
    links: list[tuple[SnapshotId, int, tuple[Token, ...]]],
    n_bytes: int,
    saved_ms: float | None,
) -> list[Op]:
    disk = draft.view.disk
    assert disk is not None
    if key.startswith(UNSHARED) or is_adapted(key, tokens):
        return []  # adapters have numbers in this process only
    marks = _marks(draft, key, tokens, n_bytes)
    n_bytes += sum(map(draft.ledger.snapshot_bytes, marks))
    prefill_ms = draft.view.cost.prefill_ms(len(tokens))
    saved_ms = prefill_ms if saved_ms is None else saved_ms
    if not is_worth_writing(saved_ms, n_bytes, disk.bytes_per_ms) or _is_written(draft, key, tokens):
        return []
    draft.shelved.append((key, tuple(tokens)))
    return [Shelve(key, tuple(links), prefill_ms, tuple((s, draft.ledger.snapshot_length(s)) for s in marks))]


def _is_written(draft: Draft, key: CacheKey, tokens: Sequence[Token]) -> bool:
    """Whether a file has all of these tokens, or will have."""
    disk = draft.view.disk
    assert disk is not None
    return (key, tuple(tokens)) in draft.shelved or disk.is_coming(key, tokens) or disk.holds(key, tokens)


def _marks(draft: Draft, key: CacheKey, tokens: Sequence[Token], n_bytes: int) -> list[SnapshotId]:
    """The checkpoints that go with a row of ``n_bytes``: together no more bytes than that, but a few in any case."""
    ledger = draft.ledger
    n_max = max(N_MARKS, n_bytes // max(1, ledger.traits.bytes_per_row))
    return on_path(ledger, key, tokens, min(n_max, draft.view.config.n_ctx_checkpoints))


def waits_for_disk(draft: Draft, want: Want, n_have: int) -> bool:
    """Whether the task should wait for a file that holds more of its tokens than anybody in memory. Once for a row."""
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
