"""What may happen to files: cut short, a bit flipped, bytes added, exchanged, mixed, of another version, gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

Harm = Callable[[Path, Random], None]


def cut(path: Path, draw: Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def flip(path: Path, draw: Random) -> None:
    raw = bytearray(path.read_bytes())
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    path.write_bytes(raw)


def append(path: Path, draw: Random) -> None:
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randrange(1, 100)))


def swap(path: Path, draw: Random) -> None:
    """With another of the folder."""
    other = _another(path, draw)
    raw = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(raw)


def splice(path: Path, draw: Random) -> None:
    """The head of another of the folder, the rest of this one."""
    head = _another(path, draw).read_bytes()
    at = draw.randrange(len(head) + 1)
    path.write_bytes(head[:at] + path.read_bytes()[at:])


def delete(path: Path, draw: Random) -> None:
    path.unlink()


def forbid(path: Path, draw: Random) -> None:
    path.chmod(0)


HARMS: tuple[Harm, ...] = (cut, flip, flip, append, swap, splice, delete, forbid)


def _another(path: Path, draw: Random) -> Path:
    return draw.choice(sorted(path.parent.glob(f"*{path.suffix}")))


def spoil(folder: Path, draw: Random) -> None:
    """One of the folder's entries comes to harm, if there is one that is not empty."""
    found = [path for path in sorted(folder.glob("*.kv")) if path.stat().st_size]
    if found:
        draw.choice(HARMS)(draw.choice(found), draw)
