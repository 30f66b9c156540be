"""A context that RAM cannot hold is refused with numbers, and the process lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.config import MIB, ContextConfig, ModelConfig
from corral.errors import LoadError
from corral.llama import fit
from corral.llama.model import LlamaModel

MEMINFO = "MemTotal:  100 kB\nMemAvailable:    2000 kB\nSwapFree: 48 kB\nHugePages_Total:       0\n"


def test_what_is_free_is_read_from_the_system(tmp_path: Path) -> None:
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    assert fit.free_bytes(meminfo, limit) is None
    meminfo.write_text(MEMINFO)
    assert fit.free_bytes(meminfo, limit) == 2 * MIB
    limit.write_text("max\n")
    assert fit.free_bytes(meminfo, limit) == 2 * MIB
    limit.write_text("4096\n")
    assert fit.free_bytes(meminfo, limit) == 4096
    meminfo.write_text("MemFree: 1 kB\n")
    assert fit.free_bytes(meminfo, limit) is None


@pytest.mark.parametrize("unified", [True, False])
def test_a_context_that_does_not_fit_is_a_load_error(
    tiny_model: Path, tiny_window_model: Path, monkeypatch: pytest.MonkeyPatch, unified: bool
) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda: 8 * MIB)
    for path in (tiny_model, tiny_window_model):
        model = LlamaModel.load(ModelConfig(path))
        shape = {"n_slots": 4, "n_rows": 4, "kv_unified": unified, "n_threads": 1}
        with pytest.raises(LoadError, match=r"a context of 200000 tokens \(-c\) needs \d+\.\d GiB for its KV cache"):
            model.new_context(ContextConfig(n_ctx=200_000, **shape))  # type: ignore[arg-type]
        model.new_context(ContextConfig(n_ctx=4096, **shape)).close()  # type: ignore[arg-type]
        model.close()


def test_where_nothing_is_told_nothing_is_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "free_bytes", lambda: None)
    model = LlamaModel.load(ModelConfig(tiny_model))
    model.new_context(ContextConfig(n_ctx=20_000, n_threads=1)).close()
    model.close()


def test_a_cell_is_measured_where_it_cannot_be_reckoned(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just enough is enough, although it is far less than the doubt."""
    model = LlamaModel.load(ModelConfig(tiny_model))
    context = model.new_context(ContextConfig(n_ctx=8192, n_threads=1))
    n_needed = 8192 * context.traits.bytes_per_token
    context.close()
    monkeypatch.setattr(fit, "free_bytes", lambda: n_needed)
    model.new_context(ContextConfig(n_ctx=8192, n_threads=1)).close()
    monkeypatch.setattr(fit, "free_bytes", lambda: n_needed * 9 // 10)
    with pytest.raises(LoadError, match="GiB of RAM are free"):
        model.new_context(ContextConfig(n_ctx=8192, n_threads=1))
    model.close()
