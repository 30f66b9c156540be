"""Responses kept for ``previous_response_id``: a table in an SQLite file, with the newest so many of each API key."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from corral.api.schemas.fields import Json
from corral.errors import LoadError, ServerError
from corral.ids import TenantId

_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
    reply BLOB NOT NULL, items BLOB NOT NULL
)
"""
_INDEX = "CREATE INDEX IF NOT EXISTS by_tenant ON responses (tenant, number)"
_BUSY_S = 5.0
"""How long to wait for another process that writes."""


@dataclass(frozen=True, slots=True)
class Stored:
    """``items`` are those of the whole conversation, the reply's own included."""

    reply: Json
    items: list[Json]


class _Damaged(Exception):
    """A row that this program did not write so."""


@dataclass(frozen=True, slots=True)
class ResponseStore:
    """Safe to use from several threads and processes: each call opens the file anew. Calls may take milliseconds.

    A disk that is full, a file that is damaged and the like are a ServerError with the reason.
    """

    path: Path
    n_max: int

    def open(self) -> None:
        """Make the file if it is not there, readable to its owner only. Raises LoadError if it cannot be used."""
        try:
            self.path.touch(mode=0o600)
            with self._connected() as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(_TABLE)
                db.execute(_INDEX)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise LoadError(f"cannot keep responses in {self.path}: {reason}") from None

    def put(self, tenant: TenantId, stored: Stored) -> None:
        """Keep a response under its id; the tenant's oldest beyond ``n_max`` go, and nobody else's."""
        row = (stored.reply["id"], tenant, orjson.dumps(stored.reply), orjson.dumps(stored.items))
        with self._using("written") as db:
            db.execute("INSERT INTO responses (id, tenant, reply, items) VALUES (?, ?, ?, ?)", row)
            oldest = "SELECT number FROM responses WHERE tenant = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2"
            db.execute(f"DELETE FROM responses WHERE tenant = ?1 AND number <= ({oldest})", (tenant, self.n_max))

    def get(self, tenant: TenantId, response_id: str) -> Stored | None:
        """None if there is none of this tenant."""
        with self._using("read") as db:
            query = "SELECT reply, items FROM responses WHERE id = ? AND tenant = ?"
            row = db.execute(query, (response_id, tenant)).fetchone()
            return None if row is None else _stored(*row)

    def delete(self, tenant: TenantId, response_id: str) -> bool:
        """False if there was none of this tenant."""
        with self._using("written") as db:
            query = "DELETE FROM responses WHERE id = ? AND tenant = ?"
            return db.execute(query, (response_id, tenant)).rowcount > 0

    @contextlib.contextmanager
    def _using(self, done: str) -> Iterator[sqlite3.Connection]:
        try:
            with self._connected() as db:
                yield db
        except (OSError, sqlite3.Error, _Damaged) as error:
            raise ServerError(f"the file of --responses-store cannot be {done}: {error}") from None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S)) as db:
            db.execute("PRAGMA synchronous = NORMAL")
            with db:
                yield db


def _stored(reply: object, items: object) -> Stored:
    try:
        read = Stored(orjson.loads(reply), orjson.loads(items))  # type: ignore[arg-type]
    except orjson.JSONDecodeError as error:
        raise _Damaged(f"a response is damaged: {error}") from None
    if not isinstance(read.reply, dict) or not isinstance(read.items, list):
        raise _Damaged("a response is damaged")
    return read
