"""Owns the rewriting of a GGUF file with other weight types."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import llama_cpp.llama_cpp as lib

from corral.errors import LoadError
from corral.llama import library

FTYPES = {
    "F32": lib.LLAMA_FTYPE_ALL_F32,
    "F16": lib.LLAMA_FTYPE_MOSTLY_F16,
    "Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_1": lib.LLAMA_FTYPE_MOSTLY_Q4_1,
    "Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
}


def quantize(source: Path, target: Path, ftype: str) -> None:
    """Write ``source`` as ``ftype`` (a key of FTYPES) to ``target``, which appears whole or not at all.

    Two processes may do it at once; both end with the same file. Raises LoadError.
    """
    if ftype not in FTYPES:
        raise LoadError(f"unknown weight type {ftype!r}; known are {', '.join(FTYPES)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = FTYPES[ftype], True, library.n_physical_cores()
    try:
        with library.start().collect() as lines:
            failed = lib.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.byref(params))
        if failed:
            raise LoadError(f"cannot rewrite {source} as {ftype}: {library.reason(lines, 'libllama gave no reason')}")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
