"""Whether a context fits into RAM: libllama writes zeroes over its whole cache, and Linux ends who runs out."""

from __future__ import annotations

from pathlib import Path

from corral.config import GIB
from corral.errors import LoadError

PROBE_CELLS = 4096
"""Cells of a context that is made to see what a cell takes; smaller contexts are not asked about."""
DOUBT = 16
"""Models whose heads or layers are unlike take up to so many times what is reckoned from their sizes."""


def is_doubtful(n_cells: int, reckoned_bytes_per_cell: int, n_free: int | None) -> bool:
    """Whether it is worth a context to know more."""
    return n_free is not None and n_cells > PROBE_CELLS and DOUBT * n_cells * reckoned_bytes_per_cell > n_free


def check_room(n_ctx: int, n_cells: int, bytes_per_cell: int, n_free: int) -> None:
    """Raises LoadError if the cells take more than what is free."""
    n_needed = n_cells * bytes_per_cell
    if n_needed > n_free:
        raise LoadError(
            f"a context of {n_ctx} tokens (-c) needs {n_needed / GIB:.1f} GiB for its KV cache, and {n_free / GIB:.1f} "
            "GiB of RAM are free: lower -c, or take smaller cells with -ctk and -ctv"
        )


def free_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """What this process may still take, swap included, at most; None where the system does not tell."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        n_free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:
        return min(n_free, int(cgroup.read_text()))
    except (OSError, ValueError):  # no limit is the word "max"
        return n_free
