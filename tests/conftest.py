"""Model files for all tests: a tiny random one, and SmolLM2-135M in two weight types."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.model.tiny import write_tiny_jamba, write_tiny_lfm2, write_tiny_llama, write_tiny_mamba

from corral.errors import LoadError

# A busy machine is no fault.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF with random F32 weights that loads in milliseconds; 354 tokens, context 1024."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_window_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like ``tiny_model`` but every other layer attends to the last 16 positions only."""
    path = tmp_path_factory.mktemp("models") / "window.gguf"
    return write_tiny_llama(path, arch="gemma2", name="Tiny window", window=16)


@pytest.fixture(scope="session")
def tiny_recurrent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vocabulary of ``tiny_model`` over one recurrent state for each row."""
    return write_tiny_mamba(tmp_path_factory.mktemp("models") / "recurrent.gguf")


@pytest.fixture(scope="session")
def tiny_hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells and a state for each row; the vocabulary of ``tiny_model``."""
    return write_tiny_jamba(tmp_path_factory.mktemp("models") / "hybrid.gguf")


@pytest.fixture(scope="session")
def tiny_window_hybrid_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state for each row and attention to the last 16 positions only; the vocabulary of ``tiny_model``."""
    return write_tiny_lfm2(tmp_path_factory.mktemp("models") / "window-hybrid.gguf", window=16)


@pytest.fixture(scope="session")
def kinds_of_models(
    tiny_model: Path,
    tiny_window_model: Path,
    tiny_recurrent_model: Path,
    tiny_hybrid_model: Path,
    tiny_window_hybrid_model: Path,
) -> dict[str, Path]:
    """One model for each kind of memory."""
    paths = {"attention": tiny_model, "window": tiny_window_model, "recurrent": tiny_recurrent_model}
    return paths | {"hybrid": tiny_hybrid_model, "hybrid-window": tiny_window_hybrid_model}


@pytest.fixture(scope="session")
def smollm2_q4_0() -> Path:
    return _demo("Q4_0")


@pytest.fixture(scope="session")
def smollm2_f32() -> Path:
    """For exact comparisons: with F32 weights rounding does not depend on the company of a row."""
    return _demo("F32")


def _demo(ftype: str) -> Path:
    from corral.llama.demo import demo_model

    try:
        return demo_model(ftype)
    except LoadError as error:
        pytest.skip(str(error))
