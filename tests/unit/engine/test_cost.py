"""The planner's idea of a step's cost: the right pieces, a fit that converges, chunks that keep the target."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.props.histories import PATIENT

from corral.engine.cost import N_TILED, PRIOR, CostModel, Features, Part, features, ubatches
from corral.ids import RowId
from corral.ops import Span
from corral.ports import MemoryTraits
from corral.sim.ubatch import ubatches as sim_ubatches

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


def traits(unified: bool, n_ubatch: int = 512, n_rows: int = 8) -> MemoryTraits:
    return MemoryTraits(
        n_cells=4096,
        n_cells_row=4096 if unified else 512,
        n_rows=n_rows,
        n_streams=1 if unified else n_rows,
        n_batch=2048,
        n_ubatch=n_ubatch,
        shared_cells=unified,
        bytes_per_token=20_000,
    )


def running(n: int, pos: int = 200) -> list[Part]:
    return [Part(RowId(i), pos, 1) for i in range(n)]


@given(
    sizes=st.dictionaries(st.integers(0, 7), st.integers(1, 40), min_size=1),
    n_ubatch=st.integers(1, 16),
    unified=st.booleans(),
)
@PATIENT
def test_pieces_are_those_that_the_memory_computes(sizes: dict[int, int], n_ubatch: int, unified: bool) -> None:
    """Positions go on where the piece before left off."""
    shape = traits(unified, n_ubatch)
    parts = [Part(RowId(row), 3, n) for row, n in sorted(sizes.items())]
    spans = [Span(part.row, part.pos0, (1,) * part.n_tokens) for part in parts]
    pieces = ubatches(parts, shape)
    assert [[(p.row, p.n_tokens) for p in piece] for piece in pieces] == sim_ubatches(spans, shape)
    ends = dict.fromkeys((part.row for part in parts), 3)
    for part in (part for piece in pieces for part in piece):
        assert part.pos0 == ends[part.row]
        ends[part.row] += part.n_tokens
    assert features(parts, shape, 0).n_ubatches == len(pieces)
    assert features(parts, shape, 0).n_tokens == sum(sizes.values())


def test_every_pair_of_a_query_and_a_cell_is_counted_once() -> None:
    split, unified = traits(unified=False), traits(unified=True)
    parts = [Part(RowId(0), 10, 2), Part(RowId(1), 0, 3)]
    n_pairs = (11 + 12) + (1 + 2 + 3)
    assert features(parts, split, 10).seen == n_pairs
    assert features(parts, split, 10).masked == 0
    f = features(parts, unified, 10)
    assert f.seen == n_pairs
    assert f.masked == 5 * 15 - n_pairs


@pytest.mark.parametrize("n", [N_TILED - 1, N_TILED])
def test_pairs_of_queries_that_fill_a_tile_are_counted_apart(n: int) -> None:
    """On split KV each row has its tile, on unified KV all of a ubatch share it."""
    parts = [Part(RowId(0), 10, n), Part(RowId(1), 10, n)]
    n_pairs = 2 * sum(range(11, 11 + n))
    split, unified = features(parts, traits(unified=False), 20), features(parts, traits(unified=True), 20)
    assert (split.seen, split.seen_tiled) == ((n_pairs, 0) if n < N_TILED else (0, n_pairs))
    assert (unified.seen, unified.seen_tiled) == (0, n_pairs)


@given(st.data())
@PATIENT
def test_the_fit_comes_close_to_a_machine_that_differs_from_the_prior(data: st.DataObject) -> None:
    truth = Features(*(w * data.draw(st.floats(0.2, 5.0)) for w in PRIOR))
    shape = traits(unified=True)
    model, oracle = CostModel(shape), CostModel(shape)
    oracle.weights = truth
    steps = [
        features([*running(n, pos), *([Part(RowId(7), pos, chunk)] if chunk else [])], shape, 300)
        for n in (1, 2, 4)
        for pos in (10, 200, 900)
        for chunk in (0, 8, 32, 64, 256)
    ]
    for _ in range(10):
        for f in steps:
            model.learn(f, oracle.predict(f))
    assert all(w > 0 for w in model.weights)
    for f in steps:
        assert model.predict(f) == pytest.approx(oracle.predict(f), rel=0.25)


def test_the_first_step_sets_the_scale_and_one_slow_step_does_not_spoil_it() -> None:
    model = CostModel(traits(unified=True))
    f = features(running(4), model.traits, 800)
    model.learn(f, 100.0)
    assert model.predict(f) == pytest.approx(100.0)
    for _ in range(20):
        model.learn(f, 100.0)
    model.learn(f, 100_000.0)
    assert 100.0 < (told := model.predict(f)) < 115.0
    model.learn(f, 0.0)
    assert model.predict(f) == told, "nothing was measured"


def test_decoding_does_not_teach_the_price_of_prompt_tokens() -> None:
    """A ubatch twice as dear as thought looks, with two tokens in it, like dear tokens; one prompt tells them apart."""
    shape = traits(unified=True)
    model, machine = CostModel(shape), CostModel(shape)
    machine.weights = PRIOR._replace(n_ubatches=3 * PRIOR.n_ubatches)
    decode, prompt = features(running(2), shape, 100), features([Part(RowId(7), 0, 48)], shape, 0)
    for f in (prompt, *[decode] * 500):
        model.learn(f, machine.predict(f))
    chunk = features([*running(2), Part(RowId(7), 0, 256)], shape, 100)
    assert model.predict(chunk) == pytest.approx(machine.predict(chunk), rel=0.15)


def test_a_machine_that_changes_after_very_many_steps_is_followed_soon() -> None:
    model = CostModel(traits(unified=True))
    f = features(running(4), model.traits, 800)
    for _ in range(5000):
        model.learn(f, 100.0)
    for _ in range(6):
        model.learn(f, 140.0)
    assert model.predict(f) == pytest.approx(140.0, rel=0.02)


def test_the_time_between_a_row_and_bytes_is_learned_from_states_that_are_large() -> None:
    model = CostModel(traits(unified=True))
    n_bytes = 100 * model.traits.bytes_per_token
    for _ in range(40):
        model.learn_state(n_bytes, 8.0)
    assert model.state_ms(100) == pytest.approx(8.0, rel=0.05)
    assert model.state_ms(400) == pytest.approx(32.0, rel=0.05)
    told = model.state_ms(100)
    for small in ((1000, 5.0), (n_bytes, 0.0)):
        model.learn_state(*small)
    assert model.state_ms(100) == told
    stateful = CostModel(replace(model.traits, bytes_per_token=0, bytes_per_row=n_bytes))
    assert stateful.state_ms(1) == stateful.state_ms(400) == CostModel(model.traits).state_ms(100)


@pytest.mark.parametrize("n_tokens", [64, 256, 512])
def test_a_prompt_alone_costs_about_what_its_step_does(n_tokens: int) -> None:
    model = CostModel(traits(unified=False))
    f = features([Part(RowId(0), 0, n_tokens)], model.traits, 0)
    assert model.prefill_ms(n_tokens) == pytest.approx(model.predict(f), rel=0.01)
    without = model.weights.n_ubatches + model.weights.n_tokens * n_tokens
    assert model.prefill_ms(n_tokens) - without == pytest.approx(model.weights.seen_tiled * f.seen_tiled, rel=0.02)


def test_cells_of_nobody_in_the_batch_cost_what_scanning_them_does() -> None:
    """On unified KV; where each row has its stream, nobody scans another's cells."""
    model, parts = CostModel(traits(unified=True)), running(3)
    more, less = (model.predict(features(parts, model.traits, n_used)) for n_used in (1500, 1000))
    assert model.rent_ms(500, 3) == pytest.approx(more - less)
    assert CostModel(traits(unified=False)).rent_ms(500, 3) == 0
