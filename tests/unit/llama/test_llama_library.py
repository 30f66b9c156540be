"""libllama's log lines become Python's, and what it says on failure can be told apart from noise."""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
import threading
from collections import deque

import pytest

from corral.llama.library import LogRouter, n_physical_cores, reason, start

DEBUG, INFO, WARN, ERROR, MORE = 1, 2, 3, 4, 5


def test_fragments_are_joined_to_lines(caplog):
    router = LogRouter()
    with caplog.at_level(logging.DEBUG, logger="corral.llama"):
        router.write(INFO, b"one ")
        router.write(MORE, b"line\ntwo\nthr")
        router.write(MORE, b"ee\n")
        router.write(ERROR, b"b\xffd\n")
    assert caplog.messages == ["one line", "two", "three", "b\ufffdd"]
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 3 + [logging.ERROR]


def test_collected_lines_are_quiet(caplog):
    router = LogRouter()
    with caplog.at_level(logging.INFO, logger="corral.llama"):
        with router.collect() as lines:
            router.write(WARN, b"careful\n")
            router.write(ERROR, b"broken\n")
            router.write(INFO, b"chatter\n")
        router.write(ERROR, b"later\n")
    assert list(lines) == ["careful", "broken"]
    assert caplog.messages == ["later"]


def test_a_thread_collects_only_its_own_lines():
    router = LogRouter()
    with router.collect() as mine:
        other = threading.Thread(target=router.write, args=(ERROR, b"other\n"))
        other.start()
        other.join(5)
    assert not mine


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "unknown"),
        (["llama_model_load: error loading model: unknown model architecture: 'x'"], "unknown model architecture: 'x'"),
        (["llama_model_load_from_file_impl: failed to load model", "gguf_init: bad magic"], "bad magic"),
    ],
)
def test_the_reason_is_the_most_telling_line(lines, expected):
    assert reason(deque(lines), "unknown") == expected


LOAD_AND_COMPUTE = """
import sys
from pathlib import Path
from corral.config import ContextConfig, ModelConfig
from corral.llama.model import LlamaModel
model = LlamaModel.load(ModelConfig(Path(sys.argv[1])))
model.new_context(ContextConfig(n_ctx=256, n_slots=1, n_rows=1, n_batch=32, n_ubatch=32, n_threads=1)).warmup()
model.close()
"""


def test_a_load_says_nothing_on_stderr(tiny_model):
    command = [sys.executable, "-c", LOAD_AND_COMPUTE, str(tiny_model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_on_which_libllama_gives_up_is_one_line_and_an_exit_code(tiny_model, tmp_path):
    key, damaged = b"llama.block_count" + struct.pack("<I", 4), tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_model.read_bytes().replace(key + struct.pack("<I", 2), key + struct.pack("<I", 0)))
    command = [sys.executable, "-c", LOAD_AND_COMPUTE, str(damaged)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: libllama ended the process: llama-model.cpp:")
    assert "that file is damaged" in done.stderr and done.stderr.count("\n") == 1


def test_libllama_starts_once():
    assert start() is start()


def test_cores_are_among_those_allowed():
    assert 1 <= n_physical_cores() <= (os.cpu_count() or 1)
