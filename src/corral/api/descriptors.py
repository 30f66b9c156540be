"""The process's file descriptors: as many as may be had, and a word to the operator before they run out."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("corral.http")

N_SPARE = 4
"""With so few left the operator is told."""
TELL_EVERY_S = 60

if sys.platform == "win32":

    def raise_limit() -> None:
        """Nothing: there is no such limit."""

    def limit() -> int | None:
        """None: there is no such limit."""
        return None

else:
    import resource

    def raise_limit() -> None:
        """Raise the process's soft limit to its hard one."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            log.debug("file descriptors: the soft limit was %d and is now the hard one, %d", soft, hard)
        except (OSError, ValueError) as error:  # macOS: "unlimited" is more than its kernel's own limit
            log.debug("file descriptors: the soft limit stays %d: %s", soft, error)

    def limit() -> int | None:
        """How many the process may have; None: as many as it likes."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return None if soft == resource.RLIM_INFINITY else soft


class Descriptors:
    """Watches the numbers of descriptors that connections get, of which the lowest free one is always given.

    When there is none the event loop drops new connections without a word, so the word comes a little before.
    """

    def __init__(self, n_most: int | None) -> None:
        """``n_most``: the limit of the process; None: there is none."""
        self._n_most = n_most
        self._told_s: float | None = None

    def took(self, number: int, n_connections: int, now_s: float) -> None:
        """A connection got descriptor ``number``."""
        if self._n_most is None or number < self._n_most - N_SPARE:
            return
        if self._told_s is not None and now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        log.warning(
            "nearly all of the %d file descriptors are in use, by %d connections: further ones are dropped until some "
            "close; start the server after `ulimit -n %d`, or more, if so many clients are wanted",
            self._n_most,
            n_connections,
            4 * self._n_most,
        )
