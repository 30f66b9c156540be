"""GET /metrics: Prometheus text. ``llamacpp:`` names are llama-server's, ``corral:`` names are our own."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from corral.api.service import service_of
from corral.engine.state import Counters, EngineSnapshot, Histogram
from corral.errors import NotSupported

CONTENT_TYPE = "text/plain; version=0.0.4"


async def metrics(request: Request) -> Response:
    """Counters since the start, and rates since the last scrape."""
    service = service_of(request)
    if not service.server.endpoint_metrics:
        raise NotSupported("This server does not support metrics endpoint. Start it with `--metrics`")
    snapshot = service.runtime.engine.snapshot
    before = service.scrapes.advance(snapshot.counters)
    headers = {"Process-Start-Time-Unix": str(int(service.started_s)), "Content-Type": CONTENT_TYPE}
    return Response(render(snapshot, before), headers=headers)


def render(snapshot: EngineSnapshot, before: Counters) -> str:
    """All series; ``before`` are the counters at the last scrape."""
    lines = [*_llamacpp_counters(snapshot.counters), *_llamacpp_gauges(snapshot, before), *_corral(snapshot)]
    for name, histogram in snapshot.histograms.items():
        lines += _histogram(f"corral:{name}", histogram)
    return "\n".join(lines) + "\n"


def _llamacpp_counters(c: Counters) -> Iterator[str]:
    yield from _one("llamacpp:prompt_tokens_total", "counter", "Prompt tokens computed.", c.n_prompt)
    yield from _one("llamacpp:prompt_tokens_cached_total", "counter", "Prompt tokens reused.", c.n_prompt_cached)
    yield from _one("llamacpp:prompt_seconds_total", "counter", "Time in prompt processing.", c.prompt_ms / 1e3)
    yield from _one("llamacpp:tokens_predicted_total", "counter", "Tokens generated.", c.n_predicted)
    yield from _one("llamacpp:tokens_predicted_seconds_total", "counter", "Time generating.", c.predicted_ms / 1e3)
    yield from _one("llamacpp:n_decode_total", "counter", "Forward passes.", c.n_decode)
    yield from _one("llamacpp:n_tokens_max", "gauge", "Longest sequence seen.", c.n_tokens_max)
    yield from _one("llamacpp:spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", 0)
    yield from _one("llamacpp:spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens accepted.", 0)
    yield from _one("llamacpp:spec_decode_num_drafts_total", "counter", "Verification steps.", 0)


def _llamacpp_gauges(snapshot: EngineSnapshot, before: Counters) -> Iterator[str]:
    c = snapshot.counters
    prompt_rate = _rate(c.n_prompt - before.n_prompt, c.prompt_ms - before.prompt_ms)
    predicted_rate = _rate(c.n_predicted - before.n_predicted, c.predicted_ms - before.predicted_ms)
    busy_per_decode = c.n_busy_slots / c.n_decode if c.n_decode else 0.0
    yield from _one("llamacpp:prompt_tokens_seconds", "gauge", "Prompt tokens/s since last scrape.", prompt_rate)
    yield from _one("llamacpp:predicted_tokens_seconds", "gauge", "Tokens/s since last scrape.", predicted_rate)
    yield from _one("llamacpp:requests_processing", "gauge", "Busy slots.", snapshot.n_busy)
    n_deferred = len(snapshot.waiting) + len(snapshot.held)
    yield from _one("llamacpp:requests_deferred", "gauge", "Requests waiting for a slot.", n_deferred)
    yield from _one("llamacpp:n_busy_slots_per_decode", "gauge", "Mean busy slots.", busy_per_decode)


def _corral(snapshot: EngineSnapshot) -> Iterator[str]:
    c = snapshot.counters
    used = snapshot.n_used / snapshot.n_cells if snapshot.n_cells else 0.0
    leased = snapshot.n_leased / snapshot.n_cells if snapshot.n_cells else 0.0
    yield from _one("corral:kv_cache_usage_ratio", "gauge", "Share of KV cells in use by busy slots.", leased)
    yield from _one("corral:kv_cache_filled_ratio", "gauge", "Share of KV cells that hold tokens, cold too.", used)
    yield from _one("corral:kv_cells", "gauge", "KV cells in all.", snapshot.n_cells)
    yield from _one("corral:num_requests_running", "gauge", "Busy slots.", snapshot.n_busy)
    yield from _one("corral:num_requests_waiting", "gauge", "Queue length.", len(snapshot.waiting))
    yield from _one("corral:num_requests_held", "gauge", "Parked requests without a slot.", len(snapshot.held))
    yield from _one("corral:snapshots", "gauge", "Prefixes kept in RAM.", snapshot.n_snapshots)
    yield from _one("corral:snapshot_bytes", "gauge", "Bytes of prefixes kept in RAM.", snapshot.snapshot_bytes)
    yield from _one("corral:disk_prefixes", "gauge", "Prefixes on disk for this model.", snapshot.n_disk)
    yield from _one("corral:disk_bytes", "gauge", "Bytes of all prefixes on disk.", snapshot.disk_bytes)
    n_queries = c.n_prompt + c.n_prompt_cached
    yield from _one("corral:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", n_queries)
    yield from _one("corral:prefix_cache_hits_total", "counter", "Prompt tokens found.", c.n_prompt_cached)
    yield from _requests(c)
    yield from _one("corral:preemptions_total", "counter", "Requests parked for others.", c.n_parked)
    yield from _one("corral:context_shifts_total", "counter", "Pieces taken out of full contexts.", c.n_shifted)
    yield from _one("corral:evictions_total", "counter", "Cold prefixes dropped from the cache.", c.n_evicted)
    yield from _one("corral:prefixes_saved_total", "counter", "Prefixes moved to RAM.", c.n_saved)
    yield from _one("corral:prefixes_loaded_total", "counter", "Prefixes moved back from RAM.", c.n_loaded)
    yield from _one("corral:prefixes_shelved_total", "counter", "Prefixes handed to the disk.", c.n_shelved)
    yield from _one("corral:prefixes_fetched_total", "counter", "Prefixes read from disk.", c.n_fetched)
    yield from _one("corral:prefixes_copied_total", "counter", "Prefixes shared between rows.", c.n_copied)
    yield from _one("corral:step_seconds_total", "counter", "Time in scheduler steps.", c.step_ms / 1e3)
    yield from _one("corral:forward_seconds_total", "counter", "Time in forward passes.", c.forward_ms / 1e3)


def _requests(c: Counters) -> Iterator[str]:
    name = "corral:requests_total"
    yield f"# HELP {name} Requests by outcome."
    yield f"# TYPE {name} counter"
    outcomes = {"finished": c.n_finished, "failed": c.n_failed, "cancelled": c.n_cancelled, "refused": c.n_refused}
    for outcome, n in outcomes.items():
        yield f'{name}{{outcome="{outcome}"}} {n}'


def _histogram(name: str, h: Histogram) -> Iterator[str]:
    yield f"# HELP {name} {name.split(':')[1].replace('_', ' ')}"
    yield f"# TYPE {name} histogram"
    for bound, count in zip(h.bounds, h.counts, strict=True):
        yield f'{name}_bucket{{le="{bound:g}"}} {count}'
    yield f'{name}_bucket{{le="+Inf"}} {h.n}'
    yield f"{name}_sum {h.total:.10g}"
    yield f"{name}_count {h.n}"


def _one(name: str, kind: str, text: str, value: float) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    yield f"{name} {value:.10g}" if isinstance(value, float) else f"{name} {value}"


def _rate(n: int, ms: float) -> float:
    return 1e3 * n / ms if ms > 0 else 0.0
