"""Owns the end of a process that libllama gives up on: one line and exit code 1 instead of a debugger's trace."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import llama_cpp.llama_cpp as lib

EXIT_CODE = 1
_STDERR = 2
_callback_type = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def line_for(message: bytes | None) -> str:
    """What is told for ggml's "/path/to/llama-model.cpp:12: GGML_ASSERT(n > 0) failed"."""
    told = " ".join((message or b"it gave no reason").decode("utf-8", "replace").split())
    return (
        f"error: libllama ended the process: {told[told.rfind('/', 0, told.find(':')) + 1 :]}. If it was loading a "
        "model or an adapter, that file is damaged, or of a kind that it does not know\n"
    )


def tell_when_it_ends() -> Any:
    """Take over from ggml's abort, which nothing survives. Keep what is returned: ggml keeps only the pointer."""

    def end(message: bytes | None) -> None:
        os.write(_STDERR, line_for(message).encode())
        os._exit(EXIT_CODE)

    callback = _callback_type(end)
    install = getattr(lib._lib, "ggml_set_abort_callback", None)
    if install is not None:
        install.argtypes, install.restype = [_callback_type], ctypes.c_void_p
        install(callback)
    return callback
