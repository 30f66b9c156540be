"""Owns giving memory back to the system that malloc keeps for others: what is freed amid the rest."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Takes about a millisecond for some ten megabytes. Only glibc needs it; elsewhere nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
