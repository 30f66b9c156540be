"""What malloc keeps of freed states, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
