"""The folder of the disk tier: what is written is found, budgets hold, and nothing that is wrong is ever given out."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from corral.engine import disk_tier, whole_file
from corral.engine.disk_entry import Entry, Part, identity_of, owner_of, pack
from corral.engine.disk_tier import DiskTier, Fetched, Found, Gone, News
from corral.engine.disk_worth import HALF_LIFE_S
from corral.errors import LoadError
from corral.ids import CacheKey

ME = identity_of("model")
BUDGET = 10_000


def entry(first: int = 1, n_bytes: int = 1000, prefill_ms: float = 100.0, identity: bytes = ME) -> Entry:
    return Entry(identity, owner_of(identity, CacheKey("k")), (Part(0, (first, 2, 3), n_bytes),), prefill_ms)


def tier(folder: Path, budget: int = BUDGET, identity: bytes = ME) -> DiskTier:
    return DiskTier(folder, budget, identity, threaded=False)


def put(disk: DiskTier, what: Entry) -> list[News]:
    disk.put(what, (bytes([what.tokens[0]]) * what.n_bytes,))
    return disk.poll()


def fetch(disk: DiskTier, name: str) -> bytes | None:
    disk.fetch(name)
    (found,) = [news for news in disk.poll() if isinstance(news, Fetched)]
    return found.states[0] if found.entry else None


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def age(folder: Path, what: Entry, by_s: float) -> None:
    path = folder / what.name
    at_s = path.stat().st_mtime - by_s
    os.utime(path, (at_s, at_s))


def test_what_is_written_is_found_by_another_process_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    assert put(tier(folder), entry()) == [Found(entry())]
    other = tier(folder)
    assert other.poll() == [Found(entry())]
    assert fetch(other, entry().name) == b"\1" * 1000
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / entry().name).stat().st_mode) == 0o600
    assert other.n_bytes == (folder / entry().name).stat().st_size == entry().n_file_bytes


def test_no_key_is_on_disk_in_clear(tmp_path: Path) -> None:
    key = CacheKey("0123456789abcdef:my salt")
    put(tier(tmp_path), Entry(ME, owner_of(ME, key), (Part(0, (1, 2), 10),), 100.0))
    (name,) = names(tmp_path)
    raw = (tmp_path / name).read_bytes()
    assert b"0123456789abcdef" not in raw + name.encode()
    assert b"my salt" not in raw


def test_files_of_other_models_are_counted_and_not_told(tmp_path: Path) -> None:
    other = identity_of("another model")
    put(tier(tmp_path, identity=other), entry(identity=other))
    mine = tier(tmp_path)
    assert (mine.poll(), mine.n_bytes) == ([], entry().n_file_bytes)


def test_the_budget_holds_and_what_is_worth_least_goes_first(tmp_path: Path) -> None:
    disk = tier(tmp_path, 4 * entry().n_file_bytes)
    dear, cheap, old, new = entry(1, prefill_ms=500), entry(2, prefill_ms=90), entry(3, prefill_ms=300), entry(4)
    for one in (dear, cheap, old):
        put(disk, one)
    age(tmp_path, old, 3 * HALF_LIFE_S)
    disk = tier(tmp_path, 3 * entry().n_file_bytes)
    disk.poll()
    assert put(disk, new) == [Gone(old.name), Found(new)]
    assert names(tmp_path) == {dear.name, cheap.name, new.name}
    assert put(disk, entry(5, prefill_ms=80)) == [Gone(entry(5).name)]  # worth less than all that are there
    assert names(tmp_path) == {dear.name, cheap.name, new.name}


def test_a_smaller_budget_is_enforced_at_the_start(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    for i in range(1, 6):
        put(disk, entry(i, prefill_ms=100.0 * i))
    smaller = tier(tmp_path, 2 * entry().n_file_bytes)
    assert names(tmp_path) == {entry(4).name, entry(5).name}
    assert smaller.n_bytes == 2 * entry().n_file_bytes


def test_an_entry_larger_than_the_budget_is_skipped(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    put(disk, entry(1))
    huge = entry(2, n_bytes=BUDGET, prefill_ms=1e9)
    assert put(disk, huge) == [Gone(huge.name)]
    assert names(tmp_path) == {entry(1).name}


def test_reading_keeps_a_file(tmp_path: Path) -> None:
    disk = tier(tmp_path)
    for i in (1, 2, 3):
        put(disk, entry(i))
        age(tmp_path, entry(i), HALF_LIFE_S)
    fetch(tier(tmp_path), entry(2).name)
    tier(tmp_path, entry().n_file_bytes)
    assert names(tmp_path) == {entry(2).name}


def test_a_rescan_finds_what_others_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "RESCAN_S", 0.0)
    mine, other = tier(tmp_path), tier(tmp_path)
    put(other, entry(1))
    mine.rescan()
    assert mine.poll() == [Found(entry(1))]
    other.remove(entry(1).name)
    mine.rescan()
    assert mine.poll() == [Gone(entry(1).name)]


def test_a_folder_that_is_gone_is_one_line_and_its_files_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_tier, "RESCAN_S", 0.0)
    disk = tier(tmp_path / "d")
    put(disk, entry(1))
    (tmp_path / "d").rename(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING):
        disk.rescan()
        disk.rescan()
    assert [r.getMessage() for r in caplog.records] == [f"cannot list {tmp_path / 'd'}: No such file or directory"]
    assert disk.poll() == [Gone(entry(1).name)]
    (tmp_path / "elsewhere").rename(tmp_path / "d")
    disk.rescan()
    assert disk.poll() == [Found(entry(1))]


def test_a_file_that_another_process_removes_during_a_look_is_gone_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_tier, "RESCAN_S", 0.0)
    disk, scandir = tier(tmp_path), os.scandir
    for i in (1, 2):
        put(disk, entry(i))

    def and_one_goes(folder: Path) -> contextlib.nullcontext[list[os.DirEntry[str]]]:
        found = list(scandir(folder))
        (folder / entry(1).name).unlink()
        return contextlib.nullcontext(found)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "scandir", and_one_goes)
        disk.rescan()
    assert disk.poll() == [Gone(entry(1).name)]
    assert not caplog.records


def test_rescans_are_rare(tmp_path: Path) -> None:
    mine, other = tier(tmp_path), tier(tmp_path)
    mine.rescan()
    put(other, entry(1))
    mine.rescan()
    assert mine.poll() == []


def test_a_full_disk_is_one_line_and_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = tier(tmp_path)
    put(disk, entry(1))

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "fsync", full)
        assert [put(disk, entry(i)) for i in (2, 3)] == [[Gone(entry(i).name)] for i in (2, 3)]
    assert [r.getMessage() for r in caplog.records] == [
        f"nothing can be written to {tmp_path}: No space left on device"
    ]
    assert names(tmp_path) == {entry(1).name}
    assert put(disk, entry(4)) == [Found(entry(4))]


@pytest.mark.parametrize("how", ["cut", "flip head", "flip tokens", "flip state", "swap", "other version", "emptied"])
def test_a_bad_file_is_a_miss_one_line_and_gone(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    disk = tier(tmp_path)
    for i in (1, 2):
        put(disk, entry(i))
    path = tmp_path / entry(1).name
    raw = bytearray(path.read_bytes())
    at = {"flip head": 30, "flip tokens": 84, "flip state": 500, "other version": 8}.get(how)
    if at:
        raw[at] ^= 4
    damaged = {"cut": raw[:-1], "emptied": b"", "swap": (tmp_path / entry(2).name).read_bytes()}.get(how, raw)
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert fetch(disk, entry(1).name) is None
        assert fetch(disk, entry(1).name) is None
    assert len(caplog.records) == 1
    assert names(tmp_path) == {entry(2).name} | ({entry(1).name} if how == "other version" else set())
    assert fetch(disk, entry(2).name) == b"\2" * 1000


def test_only_regular_files_of_this_user_count(tmp_path: Path) -> None:
    folder, outside = tmp_path / "cache", tmp_path / "outside"
    put(tier(folder), entry(1))
    (folder / entry(1).name).rename(outside)
    (folder / entry(1).name).symlink_to(outside)
    os.mkfifo(folder / entry(2).name)
    (folder / entry(3).name).mkdir()
    (folder / "notes.txt").write_text("mine")
    disk = tier(folder)
    assert [news for news in disk.poll() if isinstance(news, Found)] == []
    assert outside.exists()
    assert "notes.txt" in names(folder)


def test_a_folder_that_others_can_open_is_closed_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    put(tier(folder), entry(1))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared" / "other").touch()
    with pytest.raises(LoadError, match="holds other files"):
        tier(tmp_path / "shared")
    with pytest.raises(LoadError, match="a file is there; name a folder"):
        tier(tmp_path / "shared" / "other")


def test_what_killed_writers_left_is_removed_after_a_while(tmp_path: Path) -> None:
    young, old = tmp_path / ".corral-1.tmp", tmp_path / ".corral-2.tmp"
    for path in (young, old):
        path.touch()
    os.utime(old, (0, 0))
    assert whole_file.STALE_S > 0
    tier(tmp_path)
    assert names(tmp_path) == {young.name}


def test_the_worker_writes_and_reads_and_closes(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, BUDGET, ME)
    news = threading.Semaphore(0)
    disk.on_news = news.release  # type: ignore[assignment]
    disk.put(entry(1), (b"\1" * 1000,))
    assert disk.drain(0, 10)
    disk.fetch(entry(1).name)
    found: list[News] = []
    while not any(isinstance(one, Fetched) for one in found):
        assert news.acquire(timeout=10)
        found += disk.poll()
    disk.put(entry(2), (b"\2" * 1000,))
    disk.close(10)
    disk.close(10)
    assert names(tmp_path) == {entry(1).name, entry(2).name}


def test_a_fault_of_ours_is_a_miss_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks wait for what they asked for, and what is on its way is not written again: silence would be for ever."""

    def no_memory(*_: object) -> NoReturn:
        raise MemoryError

    disk = tier(tmp_path)
    put(disk, entry(1))
    monkeypatch.setattr(disk_tier, "read_states", no_memory)
    monkeypatch.setattr(disk_tier, "write_whole", no_memory)
    assert fetch(disk, entry(1).name) is None
    assert put(disk, entry(2)) == [Gone(entry(2).name)]
    assert caplog.text.count("a fault of ours") == 2


def test_a_slow_disk_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "MAX_PENDING_BYTES", 1500)
    may_write = threading.Event()

    def slow(path: Path, parts: object) -> int:
        assert may_write.wait(10)
        return 0

    monkeypatch.setattr(disk_tier, "write_whole", slow)
    disk = DiskTier(tmp_path, BUDGET, ME)
    for i in (1, 2):
        disk.put(entry(i), (b"x" * 1000,))
    assert disk.poll() == [Gone(entry(2).name)]
    may_write.set()
    disk.close(10)


def test_the_same_prefix_has_the_same_name_and_another_owner_another() -> None:
    theirs = Entry(ME, owner_of(ME, CacheKey("other")), (Part(0, (1, 2, 3), 1000),), 100.0)
    assert entry().name != theirs.name
    assert len(b"".join(pack(entry(), (b"x" * 1000,)))) == entry().n_file_bytes


def test_parts_come_back_as_they_were(tmp_path: Path) -> None:
    """The second rests on the first two tokens of the first: 4, 5, 6 is the prefix."""
    parts = (Part(0, (4, 5, 9, 9), 3), Part(2, (6,), 4))
    what = Entry(ME, owner_of(ME, CacheKey("k")), parts, 100.0)
    assert what.tokens == (4, 5, 6)
    disk = tier(tmp_path)
    disk.put(what, (b"abc", b"defg"))
    disk.fetch(what.name)
    found = disk.poll()[-1]
    assert isinstance(found, Fetched)
    assert (found.entry, found.states) == (what, (b"abc", b"defg"))
