"""Slot files of the real library: libllama's own functions read ours, and ours read libllama's."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest
from tests.model.test_pressure import EXACT

from corral.config import ContextConfig, EngineConfig, ModelConfig, n_rows_for
from corral.engine import slot_file
from corral.engine.core import Engine
from corral.engine.slot_file import SlotFile
from corral.errors import InvalidRequest
from corral.events import Event, Failed, Finished, SlotDone
from corral.ids import RowId, SlotId, TaskId
from corral.llama.context import LlamaContext
from corral.llama.model import LlamaModel
from corral.ops import Span
from corral.runtime import SystemClock
from corral.tasks import Limits, Sampling, SlotAction, Task, TaskKind

PROMPT = tuple(range(100, 160))
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
MODES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


@contextlib.contextmanager
def engine_over(path: Path, unified: bool, **kinds: object) -> Iterator[tuple[Engine, LlamaContext]]:
    config = ContextConfig(
        n_ctx=1024, n_slots=2, n_rows=n_rows_for(2, unified), kv_unified=unified, n_threads=1, **{**EXACT, **kinds}
    )  # type: ignore[arg-type]
    model = LlamaModel.load(ModelConfig(path))
    context = model.new_context(config)
    context.warmup()
    engine = Engine(model, context, SystemClock(), EngineConfig(n_slots=2, audit=True))
    yield engine, context
    engine.close()
    model.close()


def run(engine: Engine) -> Event:
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
    return events[-1]


def answer(engine: Engine, task: int) -> Finished:
    engine.submit((Task(TaskId(task), PROMPT, sampling=GREEDY, limits=Limits(n_predict=8), id_slot=SlotId(0)),))
    end = run(engine)
    assert isinstance(end, Finished), end
    return end


def save(engine: Engine, context: LlamaContext, path: Path) -> SlotDone:
    engine.act(SlotAction(TaskId(100), TaskKind.SLOT_SAVE, SlotId(0)))
    done = run(engine)
    assert isinstance(done, SlotDone), done
    state = done.data[len(context.traits.state_head) :]
    slot_file.save(path, SlotFile(done.tokens, state), context.traits.state_version)
    return done


def restore(engine: Engine, context: LlamaContext, path: Path) -> Event:
    file, _ = slot_file.load(path, context.traits)
    data = context.traits.state_head + file.state
    engine.act(SlotAction(TaskId(101), TaskKind.SLOT_RESTORE, SlotId(1), tokens=file.tokens, data=data))
    return run(engine)


@MODES
def test_s28_libllama_reads_our_file_and_we_read_its(tiny_model: Path, tmp_path: Path, unified: bool) -> None:
    with engine_over(tiny_model, unified) as (engine, context):
        first = answer(engine, 1)
        done = save(engine, context, tmp_path / "ours")
        assert done.tokens == (*PROMPT, *first.tokens[:-1])
    with engine_over(tiny_model, unified) as (engine, context):
        words, n_words = (lib.llama_token * 200)(), ctypes.c_size_t()
        handle, row = context._handle, 1
        name = str(tmp_path / "ours").encode()
        assert lib.llama_state_seq_load_file(handle, name, row, words, 200, ctypes.byref(n_words)) > 0
        assert tuple(words[3 : n_words.value - 1]) == done.tokens
        assert context.bounds(RowId(row)) == (0, len(done.tokens))
        plain = (lib.llama_token * len(done.tokens))(*done.tokens)
        name = str(tmp_path / "theirs").encode()
        assert lib.llama_state_seq_save_file(handle, name, row, plain, len(done.tokens)) > 0
    with engine_over(tiny_model, unified) as (engine, context):
        for i, path in enumerate((tmp_path / "ours", tmp_path / "theirs")):
            assert restore(engine, context, path) == SlotDone(TaskId(101), len(done.tokens))
            again = answer(engine, 2 + i)
            assert (again.tokens, again.timings.n_cached) == (first.tokens, len(PROMPT) - 1)


def test_files_of_other_settings_say_so(tiny_model: Path, tmp_path: Path) -> None:
    with engine_over(tiny_model, True) as (engine, context):
        answer(engine, 1)
        save(engine, context, tmp_path / "unified")
    for unified, kinds, why in (
        (False, {}, "saved with 1 KV pools"),
        (True, {"type_k": "f16"}, "-ctk f32, here it is f16"),
    ):
        with engine_over(tiny_model, unified, **kinds) as (engine, context):
            first = answer(engine, 1)
            end = restore(engine, context, tmp_path / "unified")
            assert isinstance(end, Failed)
            assert isinstance(end.error, InvalidRequest)
            assert why in str(end.error)
            assert answer(engine, 2).tokens == first.tokens


def test_positions_that_would_end_the_process_are_found_before(tiny_model: Path) -> None:
    with engine_over(tiny_model, True) as (_, context):
        context.decode([Span(RowId(0), 0, PROMPT)])
        data = bytearray(context.save(RowId(0)))
        assert context.fault(bytes(data), len(PROMPT)) == ""
        data[16:20] = (-1).to_bytes(4, "little", signed=True)
        assert "its cells" in context.fault(bytes(data), len(PROMPT))
        assert "saved row" in context.fault(b"", 1)
        assert "cut short" in context.fault(bytes(data[:40]), len(PROMPT))
