"""The composition root: loads a model, makes a context and an engine, and frees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from corral.config import ContextConfig, EngineConfig, ModelConfig
from corral.engine.thread import EngineThread
from corral.ports import MemoryTraits, Model


@dataclass(frozen=True, slots=True)
class Runtime:
    """A model that serves. ``n_ctx_slot`` is the most tokens one conversation may hold."""

    model: Model
    engine: EngineThread
    traits: MemoryTraits
    n_slots: int
    n_ctx_slot: int

    @staticmethod
    def open(
        model: ModelConfig,
        context: ContextConfig,
        engine: EngineConfig,
        on_progress: Callable[[float], None] | None = None,
    ) -> Runtime:
        """Load and start. ``on_progress`` hears the loaded fraction, 0..1, on this thread. Raises LoadError."""
        raise NotImplementedError

    @staticmethod
    def simulated(context: ContextConfig, engine: EngineConfig, seed: int = 0) -> Runtime:
        """The same over the fake model, for tests and trials without weights."""
        raise NotImplementedError

    def close(self, drain_s: float = 0.0) -> None:
        """Stop the engine and free everything."""
        raise NotImplementedError
