"""What malloc keeps of freed states, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from corral.config import ContextConfig, ModelConfig
from corral.llama import heap
from corral.llama.model import LlamaModel

_FILL = """
import random, re
from corral.engine.snapshots import SnapshotStore
from corral.llama.heap import give_back

def rss():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

draw, store, before, most = random.Random(1), SnapshotStore(give_back), rss(), 0
for i in range(150):
    store.put(i, b"x" * draw.randint(1_000_000, 6_000_000))
    first = min(store._data)
    while store.n_bytes > 30_000_000:
        store.drop(first)
        first += 1
    most = max(most, rss() - before)
print(most / 30_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_snapshots_of_many_sizes_take_little_more_than_their_budget() -> None:
    ran = subprocess.run([sys.executable, "-c", _FILL], capture_output=True, text=True, check=True, timeout=300)
    assert 0.9 < float(ran.stdout) < 1.3


def test_a_context_gives_back(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(heap, "give_back", lambda: calls.append(1))
    model = LlamaModel.load(ModelConfig(tiny_model))
    context = model.new_context(ContextConfig(n_ctx=64, n_threads=1))
    context.give_back()
    context.close()
    model.close()
    assert calls == [1]
