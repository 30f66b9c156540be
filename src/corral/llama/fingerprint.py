"""A short text that stands for the weights in a file and for the library that computes with them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import llama_cpp

HEAD_BYTES = 8 * 1024 * 1024
"""GGUF's header: key-values, vocabulary, names, types and places of all tensors. The largest have about this size."""

N_SAMPLES, SAMPLE_BYTES = 256, 4096
"""Pieces all over the rest, one in each tensor or nearly: a fine-tune of a model changes every tensor."""


def fingerprint(path: Path) -> str:
    """The sum of the weights and the library's version. Raises OSError."""
    return with_library(weights_sum(path))


def with_library(weights: str) -> str:
    return f"{weights} llama-cpp-python {llama_cpp.__version__}"


def weights_sum(path: Path) -> str:
    """Size, header and samples of the file as a sum. Reads 9 MB at most. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16)
    n_bytes = path.stat().st_size
    digest.update(n_bytes.to_bytes(8, "little"))
    with path.open("rb") as file:
        digest.update(file.read(HEAD_BYTES))
        n_rest = max(0, n_bytes - HEAD_BYTES)
        step = max(SAMPLE_BYTES, n_rest // N_SAMPLES)
        for at in range(HEAD_BYTES, n_bytes, step):
            file.seek(at)
            digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, n_bytes - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
