"""The names of things that cross room borders: tasks, slots, rows, snapshots, tokens."""

from __future__ import annotations

from typing import NewType

TaskId = NewType("TaskId", int)
"""One completion. A request with n = 4 makes four tasks."""

SlotId = NewType("SlotId", int)
"""A worker that runs one task at a time, 0 <= id < n_slots."""

RowId = NewType("RowId", int)
"""A libllama ``seq_id``: a row of the KV cache, 0 <= id < n_rows."""

SnapshotId = NewType("SnapshotId", int)
"""A row kept as bytes outside the context. Never reused within a process."""

CacheKey = NewType("CacheKey", str)
"""Whose prefix it is: tenant, salt and adapter set. Prefixes of different keys never meet."""

Token = int
"""A vocabulary index, 0 <= token < n_vocab."""
