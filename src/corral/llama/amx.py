"""Owns one decision: ggml's AMX kernels stay off, because a build by GCC 12 crashes in them.

GCC 12 drops the stores to the tile configuration before ``_tile_loadconfig`` (it believes that only 8 bytes are read),
so every quantised product of more than one row is a segmentation fault on processors with AMX. Which compiler made
the installed library cannot be seen from here. ggml asks the kernel for permission to use AMX when it first lists its
buffer types; the kernel refuses while a thread has an alternate signal stack too small for the tiles, and ggml then
takes the AVX-512 kernels.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STACK_BYTES = 8192  # enough for AVX-512 state, too small for the 8 KiB of tiles besides


class _SignalStack(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("n_bytes", ctypes.c_size_t))


@contextmanager
def amx_off() -> Iterator[None]:
    """Wrap whatever may be the first use of ggml's CPU backend. Does nothing on processors without AMX."""
    if not _has_amx():
        yield
        return
    sigaltstack = ctypes.CDLL(None).sigaltstack
    memory = ctypes.create_string_buffer(_STACK_BYTES)
    small, before = _SignalStack(ctypes.addressof(memory), 0, _STACK_BYTES), _SignalStack()
    sigaltstack(ctypes.byref(small), ctypes.byref(before))
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(before), None)


def _has_amx() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return "amx_int8" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
