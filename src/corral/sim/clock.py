"""Owns virtual time and what a forward pass costs in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class VirtualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_ms: float = 0.0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> float:
        return self._now_ms

    def advance(self, ms: float) -> None:
        """Let ``ms`` >= 0 pass."""
        if ms < 0:
            raise ValueError(f"time cannot go back by {-ms} ms")
        self._now_ms += ms


@dataclass(frozen=True, slots=True)
class Work:
    """One row's part of a ubatch: ``n_tokens`` queries, each against ``n_seen`` cells of its row of ``n_scanned``."""

    n_tokens: int
    n_seen: int
    n_scanned: int


@dataclass(frozen=True, slots=True)
class CostModel:
    """Milliseconds of a forward pass. The defaults are SmolLM2-135M Q4_0 on two CPU cores.

    Attention costs ``seen_ms`` for each pair of a query and a cell of its row, ``seen_tiled_ms`` where at least
    ``n_tiled`` queries go together, and ``masked_ms`` for each cell that is scanned but belongs to others. Another set
    of adapters costs ``change_ms``.
    """

    ubatch_ms: float = 5.7
    token_ms: float = 1.25
    n_tiled: int = 64
    seen_ms: float = 0.0035
    seen_tiled_ms: float = 0.001
    masked_ms: float = 0.00037
    change_ms: float = 5.0
    state_bytes_per_token: int = 23_040
    window_bytes_per_token: int = 23_040
    state_bytes: int = 4_000_000
    state_bytes_per_ms: float = 7e6

    def ubatch(self, parts: Sequence[Work]) -> float:
        """Time of one ubatch, all of whose parts share one kernel call."""
        tiled = sum(part.n_tokens for part in parts) >= self.n_tiled
        seen_ms = self.seen_tiled_ms if tiled else self.seen_ms
        return self.ubatch_ms + sum(
            part.n_tokens * (self.token_ms + part.n_seen * seen_ms + (part.n_scanned - part.n_seen) * self.masked_ms)
            for part in parts
        )

    def state(self, n_tokens: int, n_window: int = 0, n_states: int = 0) -> float:
        """Time to save or load ``n_tokens`` cells, ``n_window`` of the layers with a window, and recurrent states."""
        n_bytes = n_tokens * self.state_bytes_per_token + n_window * self.window_bytes_per_token
        return (n_bytes + n_states * self.state_bytes) / self.state_bytes_per_ms
