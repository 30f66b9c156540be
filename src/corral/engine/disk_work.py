"""The engine's side of the disk tier: takes in what the worker did, asks for what a plan wants, says goodbye."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from corral.engine.books import Books
from corral.engine.disk_entry import Entry
from corral.engine.disk_index import DiskIndex
from corral.engine.disk_tier import DiskTier, Fetched, Found, Gone
from corral.engine.draft import Draft
from corral.engine.offers import on_path
from corral.engine.plan import Action, Arrange, Fetch, Plan
from corral.engine.shelving import farewell_ops
from corral.ids import CacheKey, SnapshotId, TaskId, Token
from corral.ports import Clock

log = logging.getLogger("corral.disk")

MAX_PENDING_BYTES = 256 * 1024 * 1024
"""At the end so many bytes wait for the disk at once."""

CLOSE_S = 20.0
"""So long a slow disk may put off the end of the process."""


class DiskWork:
    """Between steps, on the engine's thread. Nothing here waits for the disk but ``write_out`` and ``close``."""

    def __init__(self, books: Books, tier: DiskTier, clock: Clock) -> None:
        self._books = books
        self._tier = tier
        self._clock = clock
        self._index = books.disk = DiskIndex(tier.identity, books.traits)
        self.take_in()

    def take_in(self) -> None:
        """Everything that the worker has to tell."""
        index = self._index
        if index.fetching or index.tried or index.arrived:
            rowless = {work.task.id for work in self._books.generations()}
            rowless -= {s.work.task.id for s in self._books.slots if s.lease}
            index.forget_tasks(rowless)
        for news in self._tier.poll():
            match news:
                case Found(entry):
                    self._books.metrics.add("n_written", entry.name in index.coming)
                    self._found(entry)
                case Gone(name):
                    index.drop(name)
                case Fetched():
                    self._fetched(news)
        index.n_folder_bytes = self._tier.n_bytes
        self._tidy()

    def start(self, plan: Plan) -> None:
        """Ask for what the plan wants; new tasks are a reason to look for files of other processes."""
        self.fetch(plan.fetches)
        if plan.admissions:
            self._tier.rescan()

    def fetch(self, fetches: Iterable[Fetch]) -> None:
        """Ask for files; the tasks that wait for them are generations or among the index's ``askers``."""
        index = self._index
        for fetch in fetches:
            if fetch.name not in index.fetching.values():
                self._tier.fetch(fetch.name)
            index.fetching[fetch.task] = fetch.name

    def _found(self, entry: Entry) -> None:
        """The file may replace shorter ones. A beginning of its tokens under the same key is under the same owner."""
        index = self._index
        for name in index.within(entry):
            if index.replaces(entry, name):
                self._forget(name)
        index.add(entry)

    def _forget(self, name: str, reason: str = "") -> None:
        self._index.drop(name)
        self._tier.remove(name, reason)

    def _fetched(self, news: Fetched) -> None:
        """The bytes become a snapshot under the key of those who wait for them; if nobody does any more they go."""
        index = self._index
        tasks = frozenset(task for task, name in index.fetching.items() if name == news.name)
        for task in tasks:
            del index.fetching[task]
        index.tried |= tasks
        if news.entry is None or not tasks:
            return
        index.learn(news.entry.n_bytes, news.ms)
        self._adopt(news.entry, news.states, tasks)

    def _adopt(self, entry: Entry, states: tuple[bytes, ...], tasks: frozenset[TaskId]) -> None:
        """Each part becomes a snapshot that rests on the one before; checkpoints come with them."""
        books, index, key = self._books, self._index, self._key(tasks)
        base: SnapshotId | None = None
        tokens: tuple[Token, ...] = ()
        for part, state in zip(entry.parts, states, strict=False):
            tokens = (*tokens[: part.start], *part.tokens)
            snapshot = books.keep(state)
            books.ledger.adopt(snapshot, key, tokens, len(state), part.start, base)
            index.arrived[snapshot], index.origin[snapshot] = tasks, entry.name
            base = snapshot
        known = {books.ledger.snapshot_length(s) for s in on_path(books.ledger, key, tokens, len(tokens))}
        for (n, _), state in zip(entry.checkpoints, states[len(entry.parts) :], strict=True):
            if n not in known:
                snapshot = books.keep(state)
                books.ledger.adopt_checkpoint(snapshot, key, tokens[:n], len(state))
                index.arrived[snapshot], index.origin[snapshot] = tasks, entry.name
        books.metrics.add("n_fetched")

    def _key(self, tasks: frozenset[TaskId]) -> CacheKey:
        keys = {work.task.id: work.key for work in self._books.generations()} | self._index.askers
        return next(key for task, key in keys.items() if task in tasks)

    def _tidy(self) -> None:
        """Files that nobody wants go, and what is not in RAM any more has no origin."""
        index, store = self._index, self._books.store
        for name, reason in index.unwanted:
            self._forget(name, reason)
        index.unwanted.clear()
        index.origin = {snapshot: name for snapshot, name in index.origin.items() if snapshot in store}

    def write_out(self, carry_out: Callable[[Plan], None], timeout_s: float) -> None:
        """What of rows and RAM is worth it goes to disk, for at most so long. Nobody may hold a row any more."""
        until_ms = self._clock.now_ms() + timeout_s * 1000
        for ops in farewell_ops(Draft(self._books.view(until_ms))):
            left_s = (until_ms - self._clock.now_ms()) / 1000
            if left_s <= 0 or not self._tier.drain(MAX_PENDING_BYTES, left_s):
                log.warning("not everything that is worth it could be kept on disk in %g s", timeout_s)
                break
            carry_out(Plan(actions=(Action(Arrange(), tuple(ops)),)))

    def close(self) -> None:
        """Wait for what is being written, tidy up after it and end the worker."""
        self._tier.drain(0, CLOSE_S)
        self.take_in()
        self._tier.close(CLOSE_S)
