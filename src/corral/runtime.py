"""The composition root: loads a model, makes a context and an engine, and frees them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from corral.config import ContextConfig, EngineConfig, ModelConfig
from corral.engine.core import Engine
from corral.engine.disk_entry import identity_of
from corral.engine.disk_tier import DiskTier, prepare_folder
from corral.engine.sampling import new_row_sampler
from corral.engine.shift import can_move
from corral.engine.slot_file import NOBODY_KNOWN, Origin
from corral.engine.thread import EngineThread
from corral.ports import Clock, Context, MemoryTraits, Model, ModelInfo
from corral.tasks import Sampling

if TYPE_CHECKING:
    from corral.sim.clock import VirtualClock
    from corral.sim.model import SimSpec

log = logging.getLogger("corral.runtime")


class SystemClock:
    """The monotonic clock of the machine."""

    def now_ms(self) -> float:
        return time.perf_counter() * 1000


@dataclass(frozen=True, slots=True)
class Runtime:
    """A model that serves.

    ``n_ctx_slot``: the most tokens of a conversation; ``max_queue``: tasks that may wait for a slot; ``origin``: as
    slot files name it.
    """

    model: Model
    engine: EngineThread
    traits: MemoryTraits
    n_slots: int
    n_ctx_slot: int
    origin: Origin = NOBODY_KNOWN
    max_queue: int = EngineConfig().max_queue

    @staticmethod
    def open(
        model: ModelConfig,
        context: ContextConfig,
        engine: EngineConfig,
        on_progress: Callable[[float], None] | None = None,
    ) -> Runtime:
        """Load and start. ``on_progress`` hears the loaded fraction, 0..1, on this thread. Raises LoadError."""
        from corral.llama.model import LlamaModel  # the fake must run where libllama is not built

        if engine.cache_disk is not None:
            prepare_folder(engine.cache_disk)
        loaded = LlamaModel.load(model, on_progress)
        try:
            memory = loaded.new_context(context)
        except BaseException:
            loaded.close()
            raise

        def warm_up() -> None:
            memory.warmup()
            loaded.tokenizer.piece(0, special=False)
            loaded.tokenizer.n_tokens_at_least("")

        return _start(loaded, memory, context, engine, warm_up)

    @staticmethod
    def simulated(
        context: ContextConfig, engine: EngineConfig, spec: SimSpec | None = None, clock: VirtualClock | None = None
    ) -> Runtime:
        """The same over the fake model, for tests and trials without weights.

        The fake is fast beyond comparison; with a ``clock`` its steps take the time that those of a real model do.
        """
        from corral.sim.model import SimModel

        model = SimModel(spec)
        return _start(model, model.new_context(context, clock), context, engine, clock=clock)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises InvalidRequest if no task with this sampling could run. From any thread."""
        new_row_sampler(sampling, self.model, self.model.info.eog_tokens, ()).close()

    def close(self, drain_s: float = 0.0) -> None:
        """Stop the engine and free everything."""
        self.engine.stop(drain_s)
        self.model.close()


def _start(
    model: Model,
    context: Context,
    shape: ContextConfig,
    config: EngineConfig,
    first: Callable[[], None] | None = None,
    clock: Clock | None = None,
) -> Runtime:
    if config.context_shift and not can_move(context.traits):
        log.warning("--context-shift is ignored: this model's memory cannot be shifted")
        config = replace(config, context_shift=False)
    try:
        disk = _open_disk(config, state_identity(model.info, shape, context.traits))
    except BaseException:
        context.close()
        model.close()
        raise
    thread = EngineThread(Engine(model, context, clock or SystemClock(), config, disk))
    if disk:
        disk.on_news = thread.wake
    thread.start(first)
    origin = Origin(model.info.weights, model.info.name, shape.rope_freq_base, shape.rope_freq_scale)
    n_ctx_slot = context.traits.n_cells_row
    return Runtime(model, thread, context.traits, config.n_slots, n_ctx_slot, origin, config.max_queue)


def _open_disk(config: EngineConfig, identity: str) -> DiskTier | None:
    if config.cache_disk is None:
        return None
    return DiskTier(config.cache_disk, config.cache_disk_bytes, identity_of(identity))


def state_identity(info: ModelInfo, config: ContextConfig, traits: MemoryTraits) -> str:
    """All that the bytes of a saved row depend on besides its tokens and adapters (these are part of cache keys)."""
    parts: list[object] = [info.fingerprint, "state", traits.state_version, "streams", traits.n_streams]
    parts += ["kv", config.type_k, config.type_v, "flash", config.flash_attn, "window", traits.window]
    parts += ["memory", traits.rollback.name, "full window", config.swa_full and traits.window > 0]
    parts += ["ranges", traits.ranges, "rope", config.rope_freq_base, config.rope_freq_scale]
    if any(".rope.scaling." in key for key in info.meta):  # some such models compute otherwise in long contexts
        parts += ["context", traits.n_cells_row]
    return " ".join(map(str, parts))
