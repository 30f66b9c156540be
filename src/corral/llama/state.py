"""Reads the beginning of a row's saved state, to say what is wrong with one from elsewhere before libllama takes it.

libllama reads such bytes with bounds checks, but ends the process on positions that no cell can have.
"""

from __future__ import annotations

import struct

import numpy as np

HEAD_BYTES = 8
"""A magic number and the row it came from: only in memory, slot files begin after it."""
_CELL = np.dtype([("pos", "<i4"), ("n_rows", "<u4"), ("row", "<i4")])
CELL_BYTES = _CELL.itemsize
_U32 = struct.Struct("<I")


def fault(data: bytes, n: int, n_streams: int, head: bytes) -> str:
    """Why these are not the cells of ``n`` tokens on ``n_streams`` pools; "" if they are.

    A window or a state comes after them and is not looked at.
    """
    if data[:HEAD_BYTES] != head or len(data) < HEAD_BYTES + 4:
        return "it is no saved row"
    (found,) = _U32.unpack_from(data, HEAD_BYTES)
    if found != n_streams:
        mode = "-kvu" if found == 1 else f"-no-kvu -np {found}"
        return f"it was saved with {found} KV pools, here there are {n_streams}: start with {mode} to read it"
    return _cells_fault(data, n, n_streams)


def state_fault(data: bytes, n: int, head: bytes) -> str:
    """Why this is not a state after ``n`` tokens; "" if it is. Recurrent memory only."""
    if data[:HEAD_BYTES] != head or len(data) < HEAD_BYTES + 4:
        return "it is no saved row"
    found = struct.unpack_from("<IiI", data, HEAD_BYTES) if len(data) >= HEAD_BYTES + 12 else None
    return "" if found == (1, n - 1, 0) or (n == 0 and not found) else f"it is not the state after {n} tokens"


def _cells_fault(data: bytes, n: int, n_streams: int) -> str:
    at, n_found = HEAD_BYTES + 4, 0
    for _ in range(n_streams):
        if at + 4 > len(data):
            return "it is cut short"
        (n_cells,) = _U32.unpack_from(data, at)
        at += 4
        if not n_cells:
            continue
        if n_found or at + n_cells * _CELL.itemsize > len(data):
            return "it is cut short or holds several rows"
        cells = np.frombuffer(data, _CELL, n_cells, at)
        n_found = n_cells
        if n_cells != n or (cells["n_rows"] != 1).any() or not np.array_equal(np.sort(cells["pos"]), np.arange(n)):
            return f"its cells are not those of {n} tokens"
        # what follows the cells of this stream depends on the model; other streams are empty, so it may be skipped
        return ""
    return "" if n == 0 else f"it holds no cells for its {n} tokens"
