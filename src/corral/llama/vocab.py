"""Owns the handle of a vocabulary: nobody uses it once its weights are freed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any

from corral.errors import Closed


class Vocab:
    """libllama's vocabulary while its weights are there. Safe to use from several threads."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._n_users = 0
        self._changed = Condition()

    @contextmanager
    def use(self) -> Iterator[Any]:
        """The handle, which is good until the block ends. Raises Closed."""
        with self._changed:
            if self._handle is None:
                raise Closed("the model is closed: its weights were freed")
            self._n_users += 1
            handle = self._handle
        try:
            yield handle
        finally:
            with self._changed:
                self._n_users -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Give it to nobody any more, and wait for those that use it. May be called twice."""
        with self._changed:
            self._handle = None
            self._changed.wait_for(lambda: not self._n_users)
