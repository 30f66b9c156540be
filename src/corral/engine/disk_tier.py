"""Owns the folder of the disk tier and the thread that reads, writes, lists and tidies it.

Several processes of one user may share a folder. There are no locks: a file is written under a name of its own and
renamed, never changed, and gone at any time; who finds one gone or bad has missed, and that is all.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import BinaryIO

from corral.engine.disk_entry import BadEntry, Entry, OtherFormat, is_entry_name, is_of, pack, read_entry, read_states
from corral.engine.disk_worth import worth
from corral.engine.whole_file import PREFIX, SUFFIX, is_unfinished, sweep, write_whole
from corral.errors import LoadError

log = logging.getLogger("corral.disk")

MAX_PENDING_BYTES = 512 * 1024 * 1024
"""Bytes that wait to be written; what comes on top is not written."""

RESCAN_S = 5.0
"""New files of other processes are looked for at most so often."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of our identity is there: written just now, or listed."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Gone:
    """A file is not there any more, or never came to be."""

    name: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file was read in ``ms``: the ``states`` of its ``entry``'s parts. None if there is no good one."""

    name: str
    entry: Entry | None
    states: tuple[bytes, ...]
    ms: float


News = Found | Gone | Fetched


@dataclass(slots=True)
class _File:
    """A file of the folder: all bytes of it, its last use and what is known for its worth."""

    n_bytes: int
    used_s: float
    prefill_ms: float = 0.0


class DiskTier:
    """``put``, ``fetch``, ``remove`` and ``rescan`` only ask; what became of it is in ``poll``. Used by one thread.

    ``on_news`` is called by the worker when there is something to poll. Without ``threaded`` everything happens at
    once on the caller's thread. ``n_bytes`` are those of all entries in the folder, other models' too.
    """

    def __init__(self, folder: Path, budget_bytes: int, identity: bytes, *, threaded: bool = True) -> None:
        """Makes the folder if need be and lists it. Raises LoadError if it cannot be used."""
        self.on_news: Callable[[], None] = lambda: None
        self.identity = identity
        self._folder, self._budget = folder, budget_bytes
        self._files: dict[str, _File] = {}
        self._told: set[str] = set()
        self._news: deque[News] = deque()
        self._changed = Condition()
        self._fetches: deque[str] = deque()
        self._chores: deque[Callable[[], None]] = deque()
        self._puts: dict[str, tuple[Entry, tuple[bytes, ...]]] = {}
        self._n_pending = 0
        self.n_bytes = 0
        self._scanned_s = 0.0
        self._is_closing = False
        self._is_full = False
        self._is_unlisted = False
        prepare_folder(folder)
        self._run(self._scan)
        self._worker = Thread(target=self._work, name="corral-disk", daemon=True) if threaded else None
        if self._worker:
            self._worker.start()

    # --- asked by the engine ---------------------------------------------------------------------------------------

    def poll(self) -> list[News]:
        """What happened since the last call. Never waits."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def put(self, entry: Entry, states: tuple[bytes, ...]) -> None:
        """Write a file, some time. Found is told when it is there, Gone if it will not be."""
        with self._changed:
            name = entry.name
            if self._n_pending + entry.n_bytes > MAX_PENDING_BYTES and self._puts:
                log.warning(
                    "the disk of %s is too slow: a prefix of %d tokens is not kept", self._folder, len(entry.tokens)
                )
                self._news.append(Gone(name))
            elif name not in self._puts:
                self._puts[name] = entry, states
                self._n_pending += entry.n_bytes
            self._changed.notify_all()
        self._work_now()

    def fetch(self, name: str) -> None:
        """Read a file into RAM; Fetched is told. Comes before everything else."""
        with self._changed:
            self._fetches.append(name)
            self._changed.notify_all()
        self._work_now()

    def remove(self, name: str, reason: str = "") -> None:
        """Remove a file; with a reason it is logged."""
        self._ask(lambda: self._remove(name, reason))

    def rescan(self) -> None:
        """Look for what other processes did, unless it was done just now. Found and Gone are told."""
        now_s = time.monotonic()
        if now_s - self._scanned_s >= RESCAN_S:
            self._scanned_s = now_s
            self._ask(self._scan)

    def drain(self, max_bytes: int, timeout_s: float) -> bool:
        """Wait until no more than ``max_bytes`` wait to be written; False if the time is over before."""
        with self._changed:
            return self._changed.wait_for(lambda: self._n_pending <= max_bytes, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what waits, for at most so long, and end the thread. May be called twice."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._n_pending and not self._chores, timeout_s):
                log.warning("the disk of %s is too slow: what was not written in %g s is lost", self._folder, timeout_s)
            self._is_closing = True
            self._changed.notify_all()
        if self._worker:
            self._worker.join(timeout_s)

    def _ask(self, chore: Callable[[], None]) -> None:
        with self._changed:
            self._chores.append(chore)
            self._changed.notify_all()
        self._work_now()

    # --- the worker ------------------------------------------------------------------------------------------------

    def _work_now(self) -> None:
        while self._worker is None and (job := self._next()):
            self._run(job)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._fetches or self._chores or self._puts)
                if self._is_closing:
                    return
            job = self._next()
            if job:
                self._run(job)
            with self._changed:
                self._changed.notify_all()
            self.on_news()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            if self._fetches:
                return partial(self._fetch, self._fetches.popleft())
            if self._chores:
                return self._chores.popleft()
            return partial(self._put, next(iter(self._puts))) if self._puts else None

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:  # the tier may lose entries, never the server
            log.exception("the disk tier %s: a fault of ours", self._folder)
        self.n_bytes = self._count()

    def _count(self) -> int:
        return sum(file.n_bytes for file in self._files.values())

    def _fetch(self, name: str) -> None:
        start_s = time.perf_counter()
        entry, states = None, tuple[bytes, ...]()
        try:
            entry, states = self._puts.get(name) or self._read(name) or (None, ())
        finally:  # whatever happens: tasks wait for it
            self._news.append(Fetched(name, entry, states, (time.perf_counter() - start_s) * 1000))

    def _read(self, name: str) -> tuple[Entry, tuple[bytes, ...]] | None:
        try:
            with self._opened(name) as (file, n_bytes):
                entry, head_sum = read_entry(file, n_bytes)
                self._check(entry, name)
                states = read_states(file, entry, head_sum)
                with suppress(OSError):  # another process may have removed it by now
                    os.utime(file.fileno())
        except (BadEntry, OSError) as error:
            self._bad(name, error)
            return None
        if name in self._files:
            self._files[name].used_s = time.time()
        return entry, states

    def _check(self, entry: Entry, name: str) -> None:
        if entry.name != name:
            raise BadEntry("the file has another's name")

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        """The file and its size. Only a regular file of this user is opened: nobody else can plant a cache."""
        flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        fd = os.open(self._folder / name, flags)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or (hasattr(os, "geteuid") and status.st_uid != os.geteuid()):
                raise BadEntry("not a regular file of this user")
            yield file, status.st_size

    def _bad(self, name: str, error: BadEntry | OSError) -> None:
        """The file is of no use: a miss, one line in the log, and the file goes if it is damaged."""
        self._news.append(Gone(name))
        if isinstance(error, FileNotFoundError):
            self._files.pop(name, None)
            log.info("%s is gone from %s", name, self._folder)
            return
        if name not in self._told:
            self._told.add(name)
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("%s in %s is not used: %s", name, self._folder, reason)
        if not isinstance(error, OtherFormat):
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        """Remove what has an entry's name, if it is this user's; a folder or another's file stays."""
        self._files.pop(name, None)
        with suppress(OSError):
            path = self._folder / name
            status = path.lstat()
            if not hasattr(os, "geteuid") or status.st_uid == os.geteuid():
                path.unlink()

    def _remove(self, name: str, reason: str) -> None:
        if reason:
            log.warning("%s in %s is removed: %s", name, self._folder, reason)
        self._news.append(Gone(name))
        self._unlink(name)

    # --- writing and the budget ------------------------------------------------------------------------------------

    def _put(self, name: str) -> None:
        entry, states = self._puts[name]
        try:
            if name not in self._files and self._make_room(entry):
                n_bytes = write_whole(self._folder / name, pack(entry, states))
                self._files[name] = _File(n_bytes, time.time(), entry.prefill_ms)
                self._is_full = False
        except OSError as error:
            if not self._is_full:  # once, not for each prefix
                log.warning("nothing can be written to %s: %s", self._folder, error.strerror)
            self._is_full = True
        finally:
            self._news.append(Found(entry) if name in self._files else Gone(name))
            with self._changed:
                del self._puts[name]
                self._n_pending -= entry.n_bytes
                self._changed.notify_all()

    def _make_room(self, entry: Entry) -> bool:
        """Remove what is worth less until the file fits; False if that is not enough."""
        n_needed = entry.n_file_bytes
        mine = worth(entry.prefill_ms, n_needed, 0.0)
        n_free = self._budget - self._count()
        victims = []
        for value, name in self._by_worth():
            if n_free >= n_needed or value > mine:
                break
            victims.append(name)
            n_free += self._files[name].n_bytes
        if n_free < n_needed:
            return False
        for name in victims:
            self._remove(name, "")
        return True

    def _by_worth(self) -> list[tuple[float, str]]:
        now_s = time.time()
        return sorted((worth(f.prefill_ms, f.n_bytes, now_s - f.used_s), name) for name, f in self._files.items())

    def _enforce_budget(self) -> None:
        excess = self._count() - self._budget
        for _, name in self._by_worth() if excess > 0 else ():
            excess -= self._files[name].n_bytes
            self._remove(name, "")
            if excess <= 0:
                return

    # --- listing ---------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Compare the folder with what is known of it. Headers of new files are read, states are not."""
        try:
            seen = _listed(self._folder)
            self._is_unlisted = False
        except OSError as error:
            if not self._is_unlisted:  # once, not for each look
                log.warning("cannot list %s: %s", self._folder, error.strerror)
            self._is_unlisted, seen = True, {}
        for name in self._files.keys() - seen.keys():
            del self._files[name]
            self._news.append(Gone(name))
        for name, status in seen.items():
            known = self._files.get(name)
            if known is not None:
                known.n_bytes = status.st_size
                known.used_s = max(known.used_s, status.st_mtime)
            else:
                self._learn(name, status)
        self._enforce_budget()

    def _learn(self, name: str, status: os.stat_result) -> None:
        try:
            with self._opened(name) as (file, n_bytes):
                entry, _ = read_entry(file, n_bytes)
                self._check(entry, name)
        except FileNotFoundError:
            return
        except (BadEntry, OSError) as error:
            self._bad(name, error)
            if isinstance(error, OtherFormat):
                self._files[name] = _File(status.st_size, status.st_mtime)
            return
        self._files[name] = _File(n_bytes, status.st_mtime, entry.prefill_ms)
        if is_of(name, self.identity) and entry.identity == self.identity:
            self._news.append(Found(entry))


def _listed(folder: Path) -> dict[str, os.stat_result]:
    """The files of prefixes; not one that another process removes meanwhile. Raises OSError."""
    seen = {}
    with os.scandir(folder) as found:
        for one in filter(lambda one: is_entry_name(one.name), found):
            with suppress(FileNotFoundError):
                seen[one.name] = one.stat(follow_symlinks=False)
    return seen


def prepare_folder(folder: Path) -> None:
    """Make the folder if need be; it must be this user's alone, and writable. Raises LoadError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            raise LoadError(f"{folder}: the folder belongs to another user; name one of this user's")
        if stat.S_IMODE(status.st_mode) & 0o077:
            _close_to_others(folder)
        sweep(folder)
    except (FileExistsError, NotADirectoryError):
        raise LoadError(f"{folder}: a file is there; name a folder, or a new one") from None
    except OSError as error:
        raise LoadError(f"{folder}: the folder cannot be used: {error.strerror}; name another one") from None
    _try_writing(folder)


def _try_writing(folder: Path) -> None:
    """Else it would show when the first prefix leaves RAM. Raises LoadError."""
    try:
        tempfile.TemporaryFile(dir=folder, prefix=PREFIX, suffix=SUFFIX).close()
    except OSError as error:
        raise LoadError(
            f"{folder}: nothing can be written there: {error.strerror}; make it writable for this user or name "
            "another folder"
        ) from None


def _close_to_others(folder: Path) -> None:
    """Prefixes are what users wrote. A folder that serves other purposes is left as it is. Raises LoadError."""
    if any(not is_entry_name(name) and not is_unfinished(name) for name in os.listdir(folder)):
        raise LoadError(f"{folder}: others can open the folder, and it holds other files; name an empty one")
    folder.chmod(0o700)
