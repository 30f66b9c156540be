"""Which models the composition root takes, and how."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corral.config import ContextConfig, EngineConfig, ModelConfig
from corral.engine import shelving, slot_file
from corral.engine.slot_file import SlotFile
from corral.events import Event, Failed, Finished, SlotDone
from corral.ids import SlotId, Token
from corral.llama.model import LlamaModel
from corral.ops import SavedCheckpoint
from corral.runtime import Runtime
from corral.tasks import CacheAction, Limits, Sampling, SlotAction, Task, TaskKind

CONTEXT = ContextConfig(n_ctx=512, n_slots=2, n_rows=4, n_batch=64, n_ubatch=32, n_threads=1, n_threads_batch=1)


def answer(runtime: Runtime, prompt: tuple[Token, ...], **fields: Any) -> Finished:
    """The end of one greedy task of 8 tokens; ``fields`` are further ones of the task."""
    from queue import SimpleQueue

    ends: SimpleQueue[Event] = SimpleQueue()
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    task = Task(runtime.engine.new_task_id(), prompt, sampling=sampling, limits=Limits(n_predict=8), **fields)
    runtime.engine.submit([(task,)], lambda events: [ends.put(e) for e in events if isinstance(e, Finished | Failed)])
    end = ends.get(timeout=60)
    assert isinstance(end, Finished), end
    return end


SYSTEM = tuple(range(20, 84))
KINDS = pytest.mark.parametrize(
    "kind", ["attention", "window", "window-full", "recurrent", "hybrid", "hybrid-window", "hybrid-window-full"]
)


@pytest.fixture
def weights(kind: str, kinds_of_models: dict[str, Path]) -> Path:
    """A tiny model with the kind of memory; the window (16) is shorter than the prompts here."""
    return kinds_of_models[kind.removesuffix("-full")]


@contextmanager
def served(path: Path, kind: str, unified: bool = True, **more: Any) -> Iterator[Runtime]:
    """``more`` are further fields of the engine's settings."""
    shape = replace(CONTEXT, kv_unified=unified, n_rows=6 if unified else 2, swa_full=kind.endswith("-full"))
    settings = EngineConfig(n_slots=2, min_checkpoint=8, audit=True, **more)
    runtime = Runtime.open(ModelConfig(path), replace(shape, type_k="f32", type_v="f32", flash_attn=False), settings)
    try:
        yield runtime
    finally:
        runtime.close()


@KINDS
def test_slots_that_were_asked_for_have_pools_of_their_own_on_a_plain_model(weights: Path, kind: str) -> None:
    shape = replace(CONTEXT, n_rows=6, swa_full=kind.endswith("-full"), split_if_plain=True)
    with closing(LlamaModel.load(ModelConfig(weights))) as model:
        traits = model.new_context(shape).traits
    assert traits.n_rows == (6 if kind in ("window", "recurrent", "hybrid") else 2)


@KINDS
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_s16_a_chat_computes_only_what_is_new_in_each_turn(weights: Path, kind: str, unified: bool) -> None:
    prompt = SYSTEM
    with served(weights, kind, unified) as runtime, served(weights, kind, unified) as cold:
        for turn in range(3):
            end = answer(runtime, prompt)
            assert end.tokens == answer(cold, prompt, cache_prompt=False).tokens
            if turn:
                assert end.timings.n_prompt <= 21, "the last answer's last token and the new question"
            prompt += end.tokens + tuple(range(100, 120))


@KINDS
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_n3_another_conversation_with_the_same_beginning_computes_only_its_own(
    weights: Path, kind: str, unified: bool
) -> None:
    """Another slot restores what the first one's prompt left behind at the border of the messages."""
    first, second = SYSTEM + tuple(range(100, 130)), SYSTEM + tuple(range(140, 160))
    with served(weights, kind, unified) as runtime, served(weights, kind, unified) as cold:
        answer(runtime, first, borders=(len(SYSTEM),))
        end = answer(runtime, second, borders=(len(SYSTEM),))
        assert end.timings.n_cached == len(SYSTEM)
        assert end.tokens == answer(cold, second, cache_prompt=False).tokens


@KINDS
def test_going_back_restores_a_checkpoint(weights: Path, kind: str) -> None:
    with served(weights, kind) as runtime, served(weights, kind) as cold:
        borders = [len(SYSTEM)]
        prompt = SYSTEM + tuple(range(100, 130))
        for _ in range(3):
            prompt += answer(runtime, prompt, borders=tuple(borders)).tokens
            borders.append(len(prompt))
            prompt += tuple(range(130, 160))
        back = prompt[: borders[1]] + tuple(range(161, 170))
        end = answer(runtime, back, borders=tuple(borders[:2]))
        assert end.timings.n_cached == borders[1]
        assert end.tokens == answer(cold, back, cache_prompt=False).tokens


@KINDS
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_s28_a_slot_restored_from_its_file_goes_on_at_any_message(
    weights: Path, kind: str, unified: bool, tmp_path: Path
) -> None:
    prompt, borders = SYSTEM + tuple(range(100, 130)), (len(SYSTEM), len(SYSTEM) + 20)
    with served(weights, kind, unified) as runtime:
        save(runtime, answer(runtime, prompt, borders=borders, id_slot=SlotId(1)), tmp_path / "chat")
    with served(weights, kind, unified) as runtime, served(weights, kind, unified) as cold:
        for n in borders:
            n_restored = restore(runtime, tmp_path / "chat")
            other = (*prompt[:n], *range(161, 170))
            end = answer(runtime, other, borders=borders, id_slot=SlotId(0))
            assert end.timings.n_cached == n
            assert end.tokens == answer(cold, other, cache_prompt=False).tokens
        longer = (*prompt, *answer(cold, prompt).tokens, 150, 151)
        end = answer(runtime, longer, borders=borders)
        assert end.timings.n_cached == n_restored == len(longer) - 3
        assert end.tokens == answer(cold, longer, cache_prompt=False).tokens


@KINDS
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_after_a_restart_a_chat_goes_on_from_disk(
    weights: Path, kind: str, unified: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("is_worth_writing", "is_worth_reading"):  # the model is too small for it
        monkeypatch.setattr(shelving, name, lambda *_: True)
    prompt, borders = SYSTEM + tuple(range(100, 130)), (len(SYSTEM), len(SYSTEM) + 20)
    with served(weights, kind, unified, cache_disk=tmp_path / "first") as runtime:
        longer = (*prompt, *answer(runtime, prompt, borders=borders).tokens, 150, 151)
    others = [(longer, len(longer) - 3)] + [((*prompt[:n], *range(161, 170)), n) for n in borders]
    for other, n_known in others:
        copy = shutil.copytree(tmp_path / "first", tmp_path / str(n_known))
        with served(weights, kind, unified, cache_disk=copy) as runtime, served(weights, kind, unified) as cold:
            end = answer(runtime, other, borders=borders)
            assert runtime.engine.snapshot.counters.n_fetched == 1
            assert end.timings.n_cached == n_known
            assert end.tokens == answer(cold, other, cache_prompt=False).tokens


@KINDS
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_a_pinned_prompt_outlasts_others(weights: Path, kind: str, unified: bool) -> None:
    with served(weights, kind, unified) as runtime, served(weights, kind, unified) as cold:
        pin(runtime, SYSTEM)
        for i in range(8):
            answer(runtime, (100 + i, *range(i, i + 200)))
        for prompt, n_max in (((*SYSTEM, *range(161, 170)), 9), (SYSTEM, 4)):
            end = answer(runtime, prompt)
            assert 1 <= end.timings.n_prompt <= n_max
            assert end.tokens == answer(cold, prompt, cache_prompt=False).tokens


def pin(runtime: Runtime, prompt: tuple[Token, ...]) -> None:
    engine = runtime.engine
    task = Task(engine.new_task_id(), prompt, sampling=Sampling(temperature=0.0), limits=Limits(n_predict=0))
    engine.submit([(task,)], lambda _: None)
    action = CacheAction(engine.new_task_id(), TaskKind.CACHE_PIN, task=task)
    assert asyncio.run(asyncio.wait_for(engine.act_on_cache(action), 60)).pin


def save(runtime: Runtime, end: Finished, path: Path) -> None:
    done = act(runtime, SlotAction(runtime.engine.new_task_id(), TaskKind.SLOT_SAVE, end.slot_id))
    n_head = len(runtime.traits.state_head)
    checkpoints = tuple(SavedCheckpoint(n, data[n_head:]) for n, data in done.checkpoints)
    slot_file.save(path, SlotFile(done.tokens, done.data[n_head:], checkpoints), runtime.traits.state_version)


def restore(runtime: Runtime, path: Path) -> int:
    """Into slot 1."""
    file, _ = slot_file.load(path, runtime.traits)
    head = runtime.traits.state_head
    checkpoints = tuple(SavedCheckpoint(n, head + data) for n, data in file.checkpoints)
    action = SlotAction(runtime.engine.new_task_id(), TaskKind.SLOT_RESTORE, SlotId(1), tokens=file.tokens)
    return act(runtime, replace(action, data=head + file.state, checkpoints=checkpoints)).n_tokens


def act(runtime: Runtime, action: SlotAction) -> SlotDone:
    return asyncio.run(asyncio.wait_for(runtime.engine.act(action), 60))
