"""docs/library.md: its examples work, and it names every field and argument that there is."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.unit.llm.simulated import WatchedLLM, simulated_llm

import corral
from corral import LLM, SamplingParams

PAGE = (Path(__file__).parents[3] / "docs" / "library.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_work(code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def open_simulated(path: str, n_slots: int = 3, n_ctx: int = 4096) -> WatchedLLM:
        return simulated_llm(n_slots, n_ctx)

    monkeypatch.setattr(corral, "LLM", open_simulated, raising=False)
    exec(compile(code, "docs/library.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_page_names_everything() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {field.name for field in fields(SamplingParams)} <= named
    arguments: Any = inspect.signature(LLM.chat).parameters
    assert set(arguments) - {"self", "messages", "params", "progress"} <= named
