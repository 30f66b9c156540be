"""Counts and latency histograms of an engine: plain sums while it runs, frozen values when published."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from corral.engine.state import Counters, Histogram
from corral.events import Timings

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class HistogramSum:
    """Observations in seconds."""

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._published: Histogram | None = None

    def observe_ms(self, ms: float) -> None:
        self._published = None
        self._counts[bisect_left(self._bounds, ms / 1000)] += 1
        self._total += ms / 1000

    def publish(self) -> Histogram:
        if self._published is None:
            sums = list(accumulate(self._counts))
            self._published = Histogram(self._bounds, tuple(sums[:-1]), sums[-1], self._total)
        return self._published


class Metrics:
    """Everything that is counted. Attributes are those of ``state.Counters``."""

    def __init__(self) -> None:
        self._counts: dict[str, float] = dict.fromkeys(Counters.__slots__, 0)
        self.ttft = HistogramSum()
        self.inter_token = HistogramSum()
        self.e2e = HistogramSum()
        self.queue = HistogramSum()
        self.step = HistogramSum()

    def add(self, name: str, amount: float = 1) -> None:
        """Raises KeyError for a name that ``Counters`` does not have."""
        self._counts[name] += amount

    def raise_to(self, name: str, value: float) -> None:
        self._counts[name] = max(self._counts[name], value)

    def finished(self, timings: Timings, total_ms: float) -> None:
        """A task ended well after ``total_ms`` from its submission."""
        self.add("n_finished")
        self.add("n_predicted", timings.n_predicted)
        self.add("predicted_ms", timings.predicted_ms)
        self.e2e.observe_ms(total_ms)

    def publish(self) -> tuple[Counters, dict[str, Histogram]]:
        histograms = {
            "time_to_first_token_seconds": self.ttft.publish(),
            "inter_token_latency_seconds": self.inter_token.publish(),
            "e2e_request_latency_seconds": self.e2e.publish(),
            "queue_time_seconds": self.queue.publish(),
            "step_seconds": self.step.publish(),
        }
        return Counters(**self._counts), histograms  # type: ignore[arg-type]
