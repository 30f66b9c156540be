"""What each workload asks a server, and the figures it gives."""

from __future__ import annotations

import asyncio
import gc
import itertools
from dataclasses import replace
from typing import Any

import pytest

from corral.bench.load import RequestFailed, connect
from corral.bench.registry import WORKLOADS
from corral.bench.report import Figures
from corral.bench.workloads import Load, Options


async def soon(seconds: float) -> None:
    """In place of a sleep: the others get a turn."""
    await asyncio.sleep(0.001)


def run(server: Any, name: str, users: int = 2, seed: int = 1, **options: Any) -> Figures:
    async def measure() -> Figures:
        async with server.serve() as url, connect(url) as client:
            load = Load(client, users, seed, replace(Options(), **options), sleep=soon)
            return await WORKLOADS[name].run(load)

    return asyncio.run(measure())


def prompts(server: Any) -> list[str]:
    return [body["prompt"] for body in server.bodies]


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_workload_gives_its_headline_figures(imitation, name):
    imitation.n_max, imitation.wait_s = 20, 0.0005
    imitation.text = "{}" if name == "schema" else "word "
    figures = run(imitation, name)
    assert set(WORKLOADS[name].headline) <= figures.keys()
    assert all(value >= 0 for value in figures.values() if not isinstance(value, str))


@pytest.mark.parametrize("name", WORKLOADS)
def test_another_seed_gives_other_prompts(imitation, name):
    run(imitation, name, seed=1)
    first = {*prompts(imitation)}
    imitation.bodies.clear()
    run(imitation, name, seed=2)
    assert first.isdisjoint(prompts(imitation))


def test_the_same_seed_gives_the_same_prompts(imitation):
    run(imitation, "decode", users=3)
    run(imitation, "decode", users=3)
    asked = sorted(prompts(imitation))
    assert asked[::2] == asked[1::2]
    assert len(set(asked)) == 3


def test_users_of_shared_have_all_but_the_question_in_common(imitation):
    run(imitation, "shared", users=3)
    heads = {prompt.partition(" QUESTION ")[0] for prompt in prompts(imitation)}
    assert len(heads) == 1
    assert len(heads.pop().split()) == 800
    assert len(set(prompts(imitation))) == 3


def test_turns_continue_the_conversation_with_its_reply(imitation):
    run(imitation, "turns", users=1)
    asked = prompts(imitation)
    assert len(asked) == 4
    for before, after in itertools.pairwise(asked):
        assert after.startswith(before + "word word word ")


def test_schema_counts_replies_that_parse(imitation):
    assert run(imitation, "schema", users=2)["parsed"] == 0
    imitation.text, imitation.n_max = "[]", 1
    assert run(imitation, "schema", users=2)["parsed"] == 2
    assert [("json_schema" in body) for body in imitation.bodies[-4:]] == [False, False, True, True]


def test_abort_leaves_streams_and_counts_slots_left_busy(imitation):
    imitation.n_max, imitation.wait_s = 40, 0.002
    assert run(imitation, "abort", users=2).items() >= {"aborted": 8, "slots_busy": 0}.items()
    imitation.n_stuck = 1
    assert run(imitation, "abort", users=1)["slots_busy"] == 1


def test_busy_asks_once_the_first_stream_has_begun_and_then_leaves_it(imitation):
    imitation.n_max, imitation.wait_s = 400, 0.001
    figures = run(imitation, "busy", users=2)
    assert figures["requests"] == 2
    assert [body["n_predict"] for body in imitation.bodies] == [400, 16, 16]


def test_poisson_counts_requests_within_both_limits(imitation):
    good = run(imitation, "poisson", n_requests=6, ttft_limit_ms=60_000.0, itl_limit_ms=60_000.0)
    assert (good["requests"], good["good_share"], good["failed"]) == (6, 1.0, 0)
    assert run(imitation, "poisson", n_requests=6, ttft_limit_ms=0.0)["good_share"] == 0.0


def test_poisson_counts_refused_requests_as_failed(imitation):
    imitation.status = 503
    figures = run(imitation, "poisson", n_requests=5)
    assert (figures["failed"], figures["requests"], figures["good_share"]) == (5, 0, 0.0)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_poisson_prefixes_are_shared_by_as_many_as_asked(imitation, share):
    run(imitation, "poisson", n_requests=8, prefix_share=share)
    heads = [prompt.partition(" QUESTION ")[0] for prompt in prompts(imitation)]
    assert len(set(heads)) <= 4
    assert all(bool(head) == bool(share) for head in heads)


@pytest.mark.parametrize("name", ["decode", "mixed", "busy", "abort", "fork", "late"])
def test_a_refused_request_ends_the_measurement_and_is_all_that_is_told(imitation, name, caplog):
    imitation.status = 503
    with pytest.raises(RequestFailed):
        run(imitation, name)
    gc.collect()
    assert not caplog.records
