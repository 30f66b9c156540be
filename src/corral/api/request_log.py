"""One line in the log for every completion that ended: what it took, and why it ended."""

from __future__ import annotations

import logging

from corral.api.reply import Dialect
from corral.errors import CorralError
from corral.events import Event, Finished

log = logging.getLogger("corral.request")


class LoggedDialect:
    """A dialect that tells the log what passes."""

    def __init__(self, inner: Dialect, request_id: str) -> None:
        self._inner = inner
        self._extra = {"request_id": request_id}

    @property
    def media_type(self) -> str:
        return self._inner.media_type

    def ping(self) -> bytes:
        return self._inner.ping()

    def fail(self, error: CorralError) -> bytes:
        return self._inner.fail(error)

    def feed(self, events: list[Event]) -> bytes:
        for event in events:
            if type(event) is Finished:
                self._tell(event)
        return self._inner.feed(events)

    def tail(self) -> bytes:
        return self._inner.tail()

    def whole(self, results: list[Finished]) -> object:
        for result in results:
            self._tell(result)
        return self._inner.whole(results)

    def _tell(self, end: Finished) -> None:
        log.info("%s", summary(end), extra=self._extra)


def summary(end: Finished) -> str:
    """The ended task in one line; rates are tokens a second."""
    t = end.timings
    return (
        f"slot {end.slot_id}: prompt {t.n_prompt + t.n_cached} (cached {t.n_cached}) in {t.prompt_ms:.0f} ms "
        f"({_rate(t.n_prompt, t.prompt_ms):.1f} tok/s), generated {t.n_predicted} in {t.predicted_ms:.0f} ms "
        f"({_rate(t.n_predicted, t.predicted_ms):.1f} tok/s), queue {t.queue_ms:.0f} ms, {_reason(end)}"
    )


def _rate(n: int, ms: float) -> float:
    return 1000 * n / ms if ms > 0 else 0.0


def _reason(end: Finished) -> str:
    if end.n_shifts:
        return f"{end.reason.value}, context shifted {end.n_shifts} times"
    return f"{end.reason.value}, context full" if end.truncated else end.reason.value
