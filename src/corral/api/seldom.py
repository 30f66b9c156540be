"""Owns how often the same complaint is logged: a full disk fails every request."""

from __future__ import annotations

import time
from collections.abc import Callable


class Seldom:
    """Lets through the first of many, and then one in every ``interval_s``. For one thread."""

    def __init__(self, interval_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._last_s: float | None = None
        self._n_held = 0

    def take(self) -> int | None:
        """None: not now. Otherwise how many were not let through since the last one was."""
        now_s = self._clock()
        if self._last_s is not None and now_s - self._last_s < self._interval_s:
            self._n_held += 1
            return None
        self._last_s, n_held, self._n_held = now_s, self._n_held, 0
        return n_held
