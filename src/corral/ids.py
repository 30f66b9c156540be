"""The names of things that cross room borders: tasks, slots, rows, snapshots, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType

TaskId = NewType("TaskId", int)
"""One completion. A request with n = 4 makes four tasks."""

SlotId = NewType("SlotId", int)
"""A worker that runs one task at a time, 0 <= id < n_slots."""

RowId = NewType("RowId", int)
"""A libllama ``seq_id``: a row of the KV cache, 0 <= id < n_rows."""

SnapshotId = NewType("SnapshotId", int)
"""A row kept as bytes outside the context. Never reused within a process."""

TenantId = NewType("TenantId", str)
"""Who is served: one for each API key, made from its hash. Never the key itself."""

CacheKey = NewType("CacheKey", str)
"""Whose prefix it is: tenant, salt and adapter set. Prefixes of different keys never meet."""

Token = int
"""A vocabulary index, 0 <= token < n_vocab."""

AdapterId = NewType("AdapterId", int)
"""A LoRA adapter that is loaded, 0 <= id < how many there are."""

AdapterSet = tuple[tuple[AdapterId, float], ...]
"""Adapters and their scales, ids ascending, no scale 0. () is the base model alone."""


def adapter_set(scales: Mapping[AdapterId, float]) -> AdapterSet:
    """The one way to write down which adapters act how strongly."""
    return tuple(sorted((i, float(scale)) for i, scale in scales.items() if scale))
