"""The scheduler in simulated time."""

from __future__ import annotations

import pytest

from corral.bench.simulate import TRACES, SimConfig, simulate


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("kv_unified", [False, True])
def test_every_request_of_a_trace_is_served_in_full(trace, kv_unified):
    figures = simulate(SimConfig(trace, users=2, kv_unified=kv_unified))
    n_requests, n_tokens = {"decode": (2, 128), "shared": (2, 32), "mixed": (4, 328), "poisson": (16, 512)}[trace]
    assert (figures["requests"], figures["total_output_tokens"]) == (n_requests, n_tokens)


def test_trials_repeat_exactly():
    config = SimConfig("poisson", users=2, seed=3)
    assert simulate(config) == simulate(config)


def test_a_lower_target_makes_gaps_beside_long_prompts_shorter():
    gaps = [simulate(SimConfig("mixed", users=2, itl_target_ms=target))["itl_max_ms"] for target in (100, 2000)]
    assert gaps[0] < gaps[1] / 2


def test_a_prefix_in_common_is_computed_once():
    figures = simulate(SimConfig("shared", users=4, kv_unified=True))
    assert figures["total_cached_tokens"] >= 3 * 990
