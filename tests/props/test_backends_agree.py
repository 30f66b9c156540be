"""The fake and libllama answer alike: same refusals, same bounds, same room, same pieces of a batch."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.config import ContextConfig, ModelConfig
from corral.ids import RowId, SnapshotId
from corral.llama.context import LlamaContext
from corral.llama.model import LlamaModel
from corral.ops import Checkpoint, Copy, Load, Restore, Save, Shift, Span, Trim
from corral.ports import Context, DecodeStatus
from corral.sim.context import Faults, SimContext
from corral.sim.model import SimModel, SimSpec
from corral.sim.ubatch import ubatches

CONFIG = ContextConfig(n_ctx=512, n_slots=2, n_rows=4, n_batch=256, n_ubatch=24, n_threads=1, flash_attn=False)
"""256 cells a row on split KV, 512 for all on unified KV: a few decodes fill them."""

ROWS = st.sampled_from([RowId(row) for row in [0, 1, 2, 3] * 12 + [4, -1]])
SHARES = st.sampled_from([0, 20, 50, 90, 100, 100] * 4 + [-1, 101])
"""Of a row, in percent, for Trim and Copy; -1 and 101 stand for one position out of range."""
SNAPSHOTS = st.integers(0, 1).map(SnapshotId)
TOKENS = st.sampled_from([3] * 30 + [-1, 10**6])


@dataclass(frozen=True)
class Append:
    """A decode: for each part (row, n_tokens, token, slip, n_outputs); ``slip`` is how wrong its start is."""

    parts: tuple[tuple[RowId, int, int, int, int], ...]
    abort: bool = False


PARTS = st.tuples(
    ROWS,
    st.sampled_from([1, 2, 7, 25, 60, 90, 120, 120] * 3 + [0, 140]),
    TOKENS,
    st.sampled_from([0] * 30 + [-1, 1]),
    st.sampled_from([0, 1, 1, 2, 5]),
)
APPENDS = st.builds(
    Append,
    st.lists(PARTS, min_size=1, max_size=2, unique_by=lambda part: part[0]).map(tuple),
    st.sampled_from([False] * 5 + [True]),
)
OPS = st.one_of(
    APPENDS,
    APPENDS,
    APPENDS,
    st.builds(Trim, ROWS, SHARES),
    st.builds(Copy, ROWS, ROWS, SHARES),
    st.builds(Shift, ROWS, st.sampled_from([0, 3, 20, -1]), st.sampled_from([1, 5, 30, 0])),
    st.builds(Save, ROWS, SNAPSHOTS),
    st.builds(Load, SNAPSHOTS, ROWS),
)


PARTIAL_OPS = st.one_of(
    OPS,
    OPS,
    st.builds(Checkpoint, ROWS, SNAPSHOTS),
    st.builds(Restore, SNAPSHOTS, ROWS, st.sampled_from([0] * 8 + [-1, 1])),
)
"""``n`` of a Restore here is how far it is from that of the checkpoint."""


AnyOp = Append | Trim | Copy | Shift | Save | Load | Checkpoint | Restore
Stream = list[AnyOp]


@st.composite
def streams(draw: st.DrawFn, ops: st.SearchStrategy[AnyOp] = OPS) -> Stream:
    """Rows that are filled more or less, then anything."""
    fills = draw(st.lists(st.sampled_from([0, 100, 200, 250]), min_size=4, max_size=4))
    first: Stream = [Append(((RowId(row), 50, 3, 0, 0),)) for row, n in enumerate(fills) for _ in range(n // 50)]
    return first + draw(st.lists(ops, min_size=2, max_size=10))


@dataclass
class Side:
    """One backend and the bytes it saved."""

    context: Context
    bytes_of: dict[SnapshotId, bytes] = field(default_factory=dict)
    partial: dict[SnapshotId, tuple[bytes, int]] = field(default_factory=dict)
    abort_next: bool = False

    def decode(self, spans: list[Span], abort: bool) -> DecodeStatus:
        if abort and isinstance(self.context, LlamaContext):
            self.context.request_abort()
        self.abort_next = abort
        try:
            return self.context.decode(spans)
        finally:
            self.abort_next = False

    def run(self, op: AnyOp) -> object:
        """What came of the op: a status, a flag, or ValueError."""
        try:
            match op:
                case Append(parts, abort):
                    return self._append(parts, abort)
                case Shift():
                    return self.context.apply(op)
                case Save(row, snapshot):
                    self.bytes_of[snapshot] = self.context.save(row)
                    return None
                case Checkpoint(row, snapshot):
                    self.partial[snapshot] = self.context.checkpoint(row), self._end(row)
                    return None
                case Restore(snapshot, row, slip):
                    data, n = self.partial.get(snapshot, (b"nothing", 1))
                    return self.context.restore(row, n + slip, data)
                case Load(snapshot, row):
                    return self.context.load(row, self.bytes_of.get(snapshot, b"nothing"))
                case Trim(row, share):
                    return self.context.apply(Trim(row, self._share(row, share)))
                case Copy(src, dst, share):
                    return self.context.apply(Copy(src, dst, self._share(src, share)))
        except ValueError:
            return ValueError

    def _append(self, parts: tuple[tuple[RowId, int, int, int, int], ...], abort: bool) -> DecodeStatus:
        spans = [
            Span(row, self._end(row) + slip, (token,) * n, min(n_outputs, n))
            for row, n, token, slip, n_outputs in parts
        ]
        # An abort is only asked for where the pass will begin: libllama's flag stays up until then.
        status = self.decode(spans, abort and self._begins(spans))
        for span in spans:
            end = self._end(span.row)
            assert span.pos0 <= end <= span.pos0 + len(span.tokens) or (end == 0 and status is not DecodeStatus.OK)
            if status is not DecodeStatus.OK:
                self._cut(span.row, span.pos0)
        if status is DecodeStatus.ABORTED and self.context.traits.whole_copy_only:
            self.reset()  # what it did to other rows is not promised
        return status

    def _cut(self, row: RowId, n: int) -> None:
        can_cut = self.context.traits.can_cut(n, *self.context.bounds(row))
        self.context.apply(Trim(row, min(n, self._end(row)) if can_cut else 0))

    def _begins(self, spans: list[Span]) -> bool:
        n_tokens = sum(len(span.tokens) for span in spans)
        good = all(span.tokens and span.tokens[0] == 3 and 0 <= span.row < 4 for span in spans)
        right = all(span.pos0 == self._end(span.row) for span in spans) and sum(s.n_outputs for s in spans) <= 4
        return good and right and 0 < n_tokens <= 120 and all(span.pos0 < 120 for span in spans)

    def _share(self, row: RowId, percent: int) -> int:
        return {-1: -1, 101: self._end(row) + 1}.get(percent, self._end(row) * percent // 100)

    def _end(self, row: RowId) -> int:
        return self.context.bounds(row)[1] if 0 <= row < CONFIG.n_rows else 0

    def readable(self) -> object:
        """How many rows of logits there are."""
        try:
            return len(self.context.logits())
        except ValueError:
            return ValueError

    def takes(self, row: RowId, n: int) -> DecodeStatus:
        """Whether the row can take ``n`` more tokens, which it then has."""
        return self.context.decode([Span(row, self._end(row), (3,) * n)])

    def reset(self) -> None:
        for row in range(CONFIG.n_rows):
            self.context.apply(Trim(RowId(row), 0))
        self.bytes_of.clear()
        self.partial.clear()


def open_fake(config: ContextConfig, spec: SimSpec) -> Side:
    side: Side
    faults = Faults(decode=lambda n: DecodeStatus.ABORTED if side.abort_next else None)
    side = Side(SimModel(spec).new_context(config, faults=faults))
    return side


def shares_cells(fake: Side, row: RowId) -> bool:
    assert isinstance(fake.context, SimContext)
    return row in range(CONFIG.n_rows) and fake.context.memory.main.is_shared(row, 0)


@pytest.fixture(scope="module")
def weights(tiny_model: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(ModelConfig(tiny_model))
    yield model
    model.close()


@pytest.fixture(scope="module", params=[True, False], ids=["unified", "split"])
def sides(request: pytest.FixtureRequest, weights: LlamaModel) -> Iterator[tuple[Side, Side]]:
    config = replace(CONFIG, kv_unified=request.param)
    real = weights.new_context(config)
    logging.getLogger("corral.llama").setLevel(logging.CRITICAL)
    yield Side(real), open_fake(config, SimSpec(n_pad=256))
    logging.getLogger("corral.llama").setLevel(logging.NOTSET)
    real.close()


def test_traits_agree(sides: tuple[Side, Side]) -> None:
    real, fake = (side.context.traits for side in sides)
    of_bytes = {"n_extra_outputs": 0, "bytes_per_token": 0, "bytes_per_row": 0, "state_version": 0, "state_head": b""}
    assert replace(real, **of_bytes) == replace(fake, **of_bytes)


@given(ops=streams())
def test_backends_agree(sides: tuple[Side, Side], ops: Stream) -> None:
    real, fake = sides
    for side in sides:
        side.reset()
    for op in ops:
        if isinstance(op, Shift) and shares_cells(fake, op.row):
            continue  # the fake refuses; libllama would move them for all who hold them
        assert real.run(op) == fake.run(op), op
        assert real.readable() == fake.readable(), op
        for row in range(CONFIG.n_rows):
            assert real.context.bounds(RowId(row)) == fake.context.bounds(RowId(row)), (op, row)
    assert isinstance(fake.context, SimContext)
    fake.context.check()


@settings(max_examples=settings.default.max_examples // 2)
@given(ops=streams(), row=st.sampled_from([RowId(0), RowId(3)]))
def test_room_agrees(sides: tuple[Side, Side], ops: Stream, row: RowId) -> None:
    for side in sides:
        side.reset()
        for op in ops:
            if not isinstance(op, Shift):  # would move the cells of others
                side.run(op)
    real, fake = sides
    assert isinstance(fake.context, SimContext)
    n_free, n_batch = fake.context.n_free(row), CONFIG.n_batch
    if n_free < n_batch:
        assert real.takes(row, n_free + 1) is fake.takes(row, n_free + 1) is DecodeStatus.NO_ROOM
    if 0 < n_free <= n_batch:
        assert real.takes(row, n_free) is fake.takes(row, n_free) is DecodeStatus.OK


class PieceLog(logging.Handler):
    """Reads from libllama's debug log how it cut a batch."""

    _token = re.compile(r"pos = *\d+, n_seq_id = *1, seq_id = \[([.\d]*)\]")

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[dict[int, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if re.search(r" n_tokens +=", line):
            self.pieces.append({})
        elif found := self._token.search(line):
            row = len(found.group(1)) - 1
            row = next(i for i, c in enumerate(found.group(1)) if c != ".") if row else 0
            self.pieces[-1][row] = self.pieces[-1].get(row, 0) + 1


@pytest.fixture(scope="module", params=[True, False], ids=["unified", "split"])
def logged(request: pytest.FixtureRequest, weights: LlamaModel) -> Iterator[tuple[LlamaContext, PieceLog]]:
    config = replace(CONFIG, kv_unified=request.param, n_rows=8, n_ubatch=6, n_ctx=1024)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_BATCH_DEBUG", "1")
        context = weights.new_context(config)
    logger, handler = logging.getLogger("corral.llama"), PieceLog()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield context, handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
    context.close()


@settings(max_examples=settings.default.max_examples // 2)
@given(lengths=st.dictionaries(st.integers(0, 7), st.integers(1, 16), min_size=1), in_order=st.booleans())
def test_batches_are_cut_alike(logged: tuple[LlamaContext, PieceLog], lengths: dict[int, int], in_order: bool) -> None:
    context, log = logged
    for row in range(8):
        context.apply(Trim(RowId(row), 0))
    spans = [Span(RowId(row), 0, (3,) * n) for row, n in (sorted(lengths.items()) if in_order else lengths.items())]
    log.pieces.clear()
    assert context.decode(spans) is DecodeStatus.OK
    assert log.pieces[1:] == [dict(piece) for piece in ubatches(spans, context.traits)]
