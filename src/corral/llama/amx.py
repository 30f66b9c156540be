"""Owns one decision: ggml's AMX kernels stay off, because a build by GCC 12 crashes in them.

GCC 12 drops the stores to the tile configuration before ``_tile_loadconfig`` (it believes that only 8 bytes are read),
so every quantised product of more than one row is a segmentation fault on processors with AMX. Which compiler made
the installed library cannot be seen from here. ggml asks the kernel for permission to use AMX when it first lists its
buffer types; the kernel refuses while a thread has an alternate signal stack too small for the tiles, and ggml then
takes the AVX-512 kernels.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as lib

_CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU
_STDERR = 2
_STACK_BYTES = 8192  # enough for AVX-512 state, too small for the 8 KiB of tiles besides


class _SignalStack(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("n_bytes", ctypes.c_size_t))


def keep_amx_off() -> None:
    """Make ggml ask for AMX now, and be refused. To be called before anything else uses its CPU backend.

    Does nothing on processors without AMX. What ggml writes about the refusal is kept from the user.
    """
    if not _has_amx():
        return
    with _small_signal_stack(), _silent_stderr():
        _list_buffer_types()


def _list_buffer_types() -> None:
    """What ggml does itself when a model is loaded."""
    ggml = ctypes.CDLL(lib._lib._name)
    for name in ("ggml_backend_dev_by_type", "ggml_backend_dev_backend_reg", "ggml_backend_reg_get_proc_address"):
        getattr(ggml, name).restype = ctypes.c_void_p
    device = ctypes.c_void_p(ggml.ggml_backend_dev_by_type(_CPU))
    if not device:
        return
    registry = ctypes.c_void_p(ggml.ggml_backend_dev_backend_reg(device))
    address = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if address:
        ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(device)


@contextmanager
def _small_signal_stack() -> Iterator[None]:
    sigaltstack = ctypes.CDLL(None).sigaltstack
    memory = ctypes.create_string_buffer(_STACK_BYTES)
    small, before = _SignalStack(ctypes.addressof(memory), 0, _STACK_BYTES), _SignalStack()
    sigaltstack(ctypes.byref(small), ctypes.byref(before))
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(before), None)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """C code writes to the file descriptor, so that is what must point elsewhere for a moment."""
    try:
        kept = os.dup(_STDERR)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STDERR)
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(nowhere)
        os.close(kept)


def _has_amx() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return "amx_int8" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
