"""How much of a prompt goes beside running generations: within the target, in sizes that the kernel likes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.props.engine_machine import Player, Setup, Submit
from tests.props.histories import PATIENT

from corral.engine.chunks import PATIENCE, Pending, choose_chunks, n_given_back
from corral.engine.cost import N_TILED, PRIOR, CostModel, Features, Part, features
from corral.ids import RowId
from corral.ports import MemoryTraits

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
N_USED = 1000


def cost_model(unified: bool, scale: float = 1.0, n_ubatch: int = 512) -> CostModel:
    traits = MemoryTraits(
        n_cells=8192,
        n_cells_row=8192 if unified else 512,
        n_rows=16,
        n_streams=1 if unified else 16,
        n_batch=2048,
        n_ubatch=n_ubatch,
        shared_cells=unified,
    )
    cost = CostModel(traits)
    cost.weights = Features(*(w * scale for w in PRIOR))
    return cost


def running(n: int) -> list[Part]:
    return [Part(RowId(i), 200, 1) for i in range(n)]


def pending(*sizes: int) -> list[Pending]:
    return [Pending(RowId(8 + i), 0, n) for i, n in enumerate(sizes)]


def price(cost: CostModel, n_running: int, prompts: list[Pending], chunks: list[int]) -> float:
    parts = [Part(p.row, p.pos0, n) for p, n in zip(prompts, chunks, strict=False)]
    return cost.predict(features([*running(n_running), *parts], cost.traits, N_USED))


@PATIENT
@given(
    unified=st.booleans(),
    n_running=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=4),
    n_budget=st.integers(1, 512),
    target_ms=st.floats(1.0, 2000.0),
    scale=st.floats(0.01, 10.0),
)
def test_n4_chunks_keep_the_target_wherever_they_can(
    unified: bool, n_running: int, sizes: list[int], n_budget: int, target_ms: float, scale: float
) -> None:
    """Something is always computed, nothing beyond the budget, and a step is late only where a few tokens are."""
    cost, prompts = cost_model(unified, scale), pending(*sizes)
    chunks = choose_chunks(cost, running(n_running), prompts, n_budget, N_USED, target_ms)
    assert 1 <= len(chunks) <= len(prompts)
    assert all(1 <= n <= size for n, size in zip(chunks, sizes, strict=False))
    assert all(n == size for n, size in zip(chunks[:-1], sizes, strict=False)), "a part of one before the whole of it"
    assert sum(chunks) <= n_budget
    few = price(cost, n_running, prompts, [min(8, sizes[0], n_budget)])
    assert price(cost, n_running, prompts, chunks) <= max(PATIENCE * target_ms, few) * (1 + 1e-9)


@MEMORIES
def test_n4_a_part_of_a_prompt_fills_the_tiles_of_the_kernel(unified: bool) -> None:
    """On split KV one token goes with the others and the rest alone; on unified KV all go together."""
    cost = cost_model(unified)
    for target_ms in (150.0, 250.0, 400.0):
        (n,) = choose_chunks(cost, running(3), pending(5000), 480, N_USED, target_ms)
        assert 60 < n < 480
        assert (n - 1) % 64 == 0 if not unified else (n + 3) % 64 == 0


@MEMORIES
def test_no_chunk_leaves_a_rest_below_a_tile(unified: bool) -> None:
    """Queries below a tile cost three times as much: 30 tokens at position 1,170 took longer than 65."""
    for n_left in range(200, 330):
        prompt = Pending(RowId(8), 900, n_left)
        (n,) = choose_chunks(cost_model(unified), running(2), [prompt], 2048, N_USED, 250.0)
        assert n == n_left or n_left - n >= N_TILED


def test_short_prompts_that_fill_a_tile_together_go_together() -> None:
    """Rests of 20 tokens behind one long prefix: one alone misses the target, several at once cost less."""
    cost = cost_model(unified=True)
    cost.weights = PRIOR._replace(seen=12 * PRIOR.seen_tiled)  # as measured on another processor
    prompts = [Pending(RowId(8 + i), 2000, 20) for i in range(8)]
    assert price(cost, 1, prompts, [20]) > price(cost, 1, prompts, [20] * 4)
    chunks = choose_chunks(cost, running(1), prompts, 2048, N_USED, price(cost, 1, prompts, [20] * 5) + 1)
    assert len(chunks) >= 5


@MEMORIES
def test_n4_without_a_tight_target_whole_prompts_go_at_once(unified: bool) -> None:
    cost = cost_model(unified)
    assert choose_chunks(cost, running(3), pending(300, 40), 500, N_USED, 1e6) == [300, 40]
    assert choose_chunks(cost, running(3), pending(300), 0, N_USED, 1e6) == []
    assert choose_chunks(cost, running(3), [], 500, N_USED, 1e6) == []


@MEMORIES
def test_n4_running_streams_keep_their_pace_beside_a_long_prompt(unified: bool) -> None:
    """In virtual time, step by step; in one piece the prompt would take more than a second."""
    target_ms = 250.0
    setup = Setup(unified, n_slots=2, n_ctx=1200, n_spare=1, n_batch=1024, n_ubatch=512, itl_target_ms=target_ms)
    player = Player(setup)
    (first,) = player.submit(Submit(n_prompt=20, n_predict=100))
    player.until(lambda: first in player.open and len(player.open[first].tokens) > 3)
    (long,) = player.submit(Submit(stem=1, n_prompt=800, n_predict=2))
    times_ms: list[float] = []

    def long_is_done() -> bool:
        times_ms.append(player.engine._clock.now_ms())
        return long in player.finished

    player.until(long_is_done)
    assert first in player.open, "the running stream ended before it could be disturbed"
    assert max(b - a for a, b in pairwise(times_ms)) <= target_ms
    assert len(times_ms) < 15, "the chunks are smaller than the target asks for"
    player.drain()


def test_where_each_row_has_its_stream_others_do_not_fill_its_tile() -> None:
    """Four conversations return at once: what the first gives back is of no use to the second."""
    cost = cost_model(unified=False)
    cost.weights = PRIOR._replace(seen=4 * PRIOR.seen)
    alone, beside = (n_given_back(cost, 700, 20, n_beside) for n_beside in (0, 65))
    assert alone == beside == N_TILED - 19


@MEMORIES
def test_nothing_is_given_back_for_a_tile_that_ubatches_cannot_fill(unified: bool) -> None:
    for n_ubatch, is_given in ((N_TILED, True), (N_TILED // 2, False)):
        cost = cost_model(unified, n_ubatch=n_ubatch)
        cost.weights = PRIOR._replace(seen=100 * PRIOR.seen)
        assert (n_given_back(cost, 700, 20, 0) > 0) is is_given
