"""Writes a file so that others see the old one or the new one, whole, whenever the process or the machine ends."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PREFIX, SUFFIX = ".corral-", ".tmp"
STALE_S = 3600.0
"""What an unfinished write left behind is removed after so long: nobody writes one file for an hour."""


def write_whole(path: Path, parts: Iterable[bytes]) -> int:
    """Write ``parts`` to a name of their own, flush to the disk, rename. Returns the bytes. Raises OSError.

    The file is for its owner only (0600).
    """
    temporary = path.parent / f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            n_bytes = sum(file.write(part) for part in parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(path.parent)
    return n_bytes


def _flush_folder(folder: Path) -> None:
    """The rename itself reaches the disk. Not every system can open a folder."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def is_unfinished(name: str) -> bool:
    """Whether a file is one that is being written, or was when its writer ended."""
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind. Never raises for a file that is gone or not ours."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if is_unfinished(entry.name):
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_S:
                        os.unlink(entry.path)
