"""The fake and libllama answer alike where memory cannot be cut anywhere: same refusals, bounds and room."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.props.test_backends_agree import CONFIG, PARTIAL_OPS, Append, Side, Stream, open_fake, streams

from corral.config import ModelConfig
from corral.ids import RowId
from corral.llama.model import LlamaModel
from corral.ops import Trim
from corral.ports import DecodeStatus
from corral.sim.context import SimContext
from corral.sim.model import SimSpec
from corral.sim.shape import Kind

KINDS = {
    "window": SimSpec(n_pad=256, kind=Kind.SLIDING, window=16),
    "window-full": SimSpec(n_pad=256, kind=Kind.SLIDING, window=16),
    "recurrent": SimSpec(n_pad=256, kind=Kind.RECURRENT),
    "hybrid": SimSpec(n_pad=256, kind=Kind.HYBRID),
    "hybrid-window": SimSpec(n_pad=256, kind=Kind.SLIDING_HYBRID, window=16),
    "hybrid-window-full": SimSpec(n_pad=256, kind=Kind.SLIDING_HYBRID, window=16),
}


SIDES = [(kind, unified) for kind in KINDS for unified in (True, False) if not (unified and "hybrid-" in kind)]
"""With states and a window at once KV is split, whatever was asked for."""


@pytest.fixture(scope="module", params=SIDES, ids=str)
def sides(request: pytest.FixtureRequest, kinds_of_models: dict[str, Path]) -> Iterator[tuple[Side, Side]]:
    kind, unified = request.param
    model = LlamaModel.load(ModelConfig(kinds_of_models[kind.removesuffix("-full")]))
    # More cells than the window's pool has; ubatches of all that a step asks for, as with a window there is one.
    config = replace(CONFIG, n_ctx=1024, n_ubatch=128, kv_unified=unified, swa_full=kind.endswith("-full"))
    real = model.new_context(config)
    logging.getLogger("corral.llama").setLevel(logging.CRITICAL)
    yield Side(real), open_fake(config, KINDS[kind])
    logging.getLogger("corral.llama").setLevel(logging.NOTSET)
    real.close()
    model.close()


def test_traits_agree(sides: tuple[Side, Side]) -> None:
    real, fake = (side.context.traits for side in sides)
    of_bytes = {"n_extra_outputs": 0, "bytes_per_token": 0, "bytes_per_row": 0, "state_version": 0, "state_head": b""}
    assert replace(real, **of_bytes) == replace(fake, **of_bytes)


@given(ops=streams(PARTIAL_OPS))
def test_kinds_agree(sides: tuple[Side, Side], ops: Stream) -> None:
    real, fake = sides
    for side in sides:
        side.reset()
    for op in ops:
        if isinstance(op, Append) and fake.context.traits.window:
            op = replace(op, abort=False)  # how much of other windows a pass took before it broke off may differ by one
        assert real.run(op) == fake.run(op), op
        assert real.readable() == fake.readable(), op
        for row in range(CONFIG.n_rows):
            assert real.context.bounds(RowId(row)) == fake.context.bounds(RowId(row)), (op, row)
    assert isinstance(fake.context, SimContext)
    fake.context.check()


@settings(max_examples=settings.default.max_examples // 2)
@given(ops=streams(PARTIAL_OPS), row=st.sampled_from([RowId(0), RowId(3)]))
def test_room_agrees(sides: tuple[Side, Side], ops: Stream, row: RowId) -> None:
    real, fake = sides
    if fake.context.traits.n_streams == 1 and not fake.context.traits.shared_cells:
        return  # recurrent: no cells
    for side in sides:
        side.reset()
        for op in ops:
            side.run(op)
    assert isinstance(fake.context, SimContext)
    if fake.context.memory.is_headless(row):
        for side in sides:
            side.context.apply(Trim(row, 0))
    n_free, n_batch = fake.context.n_free(row), fake.context.traits.n_batch
    if n_free < n_batch:
        assert real.takes(row, n_free + 1) is fake.takes(row, n_free + 1) is DecodeStatus.NO_ROOM
    if 0 < n_free <= n_batch:
        assert real.takes(row, n_free) is fake.takes(row, n_free) is DecodeStatus.OK
