"""What is worth a place on disk: the time it saves against the bytes it takes, and how long nobody has used it."""

from __future__ import annotations

MIN_SAVED_MS = 50.0
"""Whoever waits does not notice less, and a file costs a flush."""

MIN_GAIN = 4.0
"""Computing must take so many times as long as reading: the estimate is rough, and the file may never be read."""

FILE_MS = 2.0
"""Opening a file, whatever its size."""

HALF_LIFE_S = 86_400.0
"""After so long without use an entry is worth half: conversations are taken up again the same day or never."""


def fetch_ms(n_bytes: int, bytes_per_ms: float) -> float:
    """From the file into RAM, its checksum included."""
    return FILE_MS + n_bytes / bytes_per_ms


def is_worth_writing(prefill_ms: float, n_bytes: int, bytes_per_ms: float) -> bool:
    """Whether tokens that take ``prefill_ms`` to compute should be kept as a file of ``n_bytes``."""
    return prefill_ms >= MIN_SAVED_MS and prefill_ms >= MIN_GAIN * fetch_ms(n_bytes, bytes_per_ms)


def is_worth_reading(saved_ms: float, n_bytes: int, bytes_per_ms: float, load_ms: float) -> bool:
    """Whether to wait for a file that saves ``saved_ms`` and whose bytes then take ``load_ms`` to a row."""
    return saved_ms > fetch_ms(n_bytes, bytes_per_ms) + load_ms


def worth(prefill_ms: float, n_bytes: int, age_s: float) -> float:
    """ms saved for each byte, less with age; what is worth least goes first. ``age_s`` since its last use."""
    return prefill_ms / max(1, n_bytes) * float(0.5 ** (max(0.0, age_s) / HALF_LIFE_S))
