"""``corral serve`` as a process: what is printed, how it stops, and how it fails."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Self

import httpx
import pytest

WAIT_S = 60
SMALL = ("-np", "2", "-c", "1024", "-b", "256", "-t", "1", "--port", "0")


class Server:
    """A running ``corral serve`` whose output is read line by line."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "corral.cli.main", *SMALL, *flags]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
        )
        self.lines: list[str] = []
        self._queue: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def line(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches."""
        while (text := self._queue.get(timeout=WAIT_S)) is not None:
            self.lines.append(text)
            if match := re.search(pattern, text):
                return match
        raise AssertionError(f"no line {pattern!r} in:\n" + "\n".join(self.lines))

    def ready(self) -> str:
        """Wait until it serves; its URL."""
        return self.line(r"is ready on (\S+)")[1]

    def end(self) -> int:
        """Wait for the process; its exit code. All output is in ``lines`` then."""
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        while (text := self._queue.get(timeout=WAIT_S)) is not None:
            self.lines.append(text)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdout
        self._reader.join(WAIT_S)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Server, str]]:
    with Server("--alias", "small,other") as server:
        yield server, server.ready()


def test_the_example_that_is_printed_works(shared: tuple[Server, str]) -> None:
    server, url = shared
    assert not any(re.search("AMX|error|Traceback", line) for line in server.lines)
    example = server.line(r"curl (\S+) -H 'Content-Type: application/json' -d '(.*)'$")
    body = {**json.loads(example[2]), "max_tokens": 4}
    reply = httpx.post(example[1], json=body, timeout=WAIT_S)
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["content"]
    assert example[1].startswith(url)


def test_a_request_is_logged_with_its_id_counts_and_times(shared: tuple[Server, str]) -> None:
    server, url = shared
    asked = {"prompt": "One two three", "n_predict": 3, "ignore_eos": True}
    reply = httpx.post(f"{url}/completion", json=asked, headers={"X-Request-Id": "trace-1"}, timeout=WAIT_S)
    assert reply.headers["x-request-id"] == "trace-1"
    line = server.line(r"\[trace-1\]")
    for part in (r"prompt \d+", r"cached \d+", r"generated 3", r"tok/s", r"queue", r"limit"):
        assert re.search(part, line.string), line.string


def test_the_flags_reach_the_routes(shared: tuple[Server, str]) -> None:
    _, url = shared
    models = httpx.get(f"{url}/v1/models", timeout=WAIT_S).json()
    assert models["data"][0]["id"] == "other"
    assert models["data"][0]["meta"]["n_ctx"] == 512
    assert httpx.get(f"{url}/metrics", timeout=WAIT_S).status_code == 501


def test_a_probe_for_websockets_is_a_request_like_others(shared: tuple[Server, str]) -> None:
    server, url = shared
    n_before = len(server.lines)
    probe = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "eA==",
    }
    assert httpx.get(f"{url}/health", headers=probe, timeout=WAIT_S).status_code == 200
    missing = httpx.get(f"{url}/ws", headers=probe, timeout=WAIT_S)
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, "File Not Found")
    httpx.post(f"{url}/completion", json={"prompt": "x", "n_predict": 1}, timeout=WAIT_S)
    server.line("generated 1")
    assert not [line for line in server.lines[n_before:] if re.search("upgrade|pip install", line, re.IGNORECASE)]


def test_a_signal_lets_running_requests_finish() -> None:
    with Server() as server:
        url = server.ready()
        asked = {"prompt": "Once upon a time", "n_predict": 48, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/completion", json=asked, timeout=WAIT_S) as reply:
            events = (line for line in reply.iter_lines() if line.startswith("data: "))
            next(events)
            server.process.send_signal(signal.SIGTERM)
            server.line("stopping: SIGTERM; running requests get up to 30 s")
            health = httpx.get(f"{url}/health", timeout=WAIT_S)
            assert (health.status_code, health.json()["error"]["type"]) == (503, "unavailable_error")
            last = json.loads(list(events)[-1].removeprefix("data: "))
        assert last["stop"]
        assert last["tokens_predicted"] == 48
        assert server.end() == 0
        assert server.lines[-1].endswith(" stopped")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health", timeout=WAIT_S)


def test_requests_that_outlast_the_drain_time_are_dropped() -> None:
    with Server("--drain-s", "0") as server:
        url = server.ready()
        asked = {"prompt": "Once upon a time", "n_predict": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/completion", json=asked, timeout=WAIT_S) as reply:
            next(reply.iter_lines())
            server.process.send_signal(signal.SIGINT)
            assert server.end() == 0
        assert any("dropped" in line for line in server.lines)


def test_a_second_signal_stops_at_once() -> None:
    with Server() as server:
        url = server.ready()
        asked = {"prompt": "Once upon a time", "n_predict": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/completion", json=asked, timeout=WAIT_S) as reply:
            next(reply.iter_lines())
            server.process.send_signal(signal.SIGINT)
            server.line("stopping: SIGINT; ")
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == 130
        assert any("stopped at once: SIGTERM" in line for line in server.lines)


def test_it_listens_before_the_model_is_there_and_stops_then_too() -> None:
    with Server() as server:
        server.line("listening on")
        server.process.send_signal(signal.SIGINT)
        assert server.end() == 0
        assert not any("Traceback" in line for line in server.lines)
        assert any("stopping: SIGINT; " in line for line in server.lines)
        assert server.lines[-1].endswith("stopped: the model was not loaded yet")


def test_the_last_line_says_what_is_on_disk_now(tmp_path: Path) -> None:
    with Server("--cache-disk", str(tmp_path)) as server:
        url = server.ready()
        asked = {"prompt": "One two three " * 60, "n_predict": 2}
        httpx.post(f"{url}/completion", json=asked, timeout=WAIT_S).raise_for_status()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    n_files = len(list(tmp_path.glob("*.kv")))
    assert n_files
    assert server.lines[-1].endswith(f"stopped: {n_files} prefix was written to {tmp_path}"), server.lines[-1]


def failure(*flags: str) -> tuple[int, list[str]]:
    with Server(*flags) as server:
        return server.end(), server.lines


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, lines = failure("--port", str(port))
    assert code == 1
    assert [line for line in lines if line.startswith("error: ")] == [
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; --host and --port name another address, "
        "--port 0 takes any free port"
    ]
    assert not any("Traceback" in line for line in lines)


def test_a_model_that_is_none_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    for path in (broken, tmp_path / "missing.gguf"):
        code, lines = failure("-m", str(path))
        assert code == 1
        assert lines[-1].startswith("error: ")
        assert str(path) in lines[-1]
        assert "--model" in lines[-1] or path == broken
        assert lines[-1].endswith("the file is cut short or damaged: get it again") == (path == broken)
        assert not any("ready" in line for line in lines)
        assert not any("Traceback" in line for line in lines)
    assert not any("listening" in line for line in lines), "nothing is said of a server for a file that is not there"


def test_a_grammar_that_cannot_be_used_is_two_lines() -> None:
    code, lines = failure("--grammar", "bad")
    assert code == 2
    assert lines[-2].startswith("error: --grammar: ")
    assert lines[-1] == "See corral --help."
    assert not any("listening" in line for line in lines)


def test_a_template_that_does_not_compile_is_one_line() -> None:
    code, lines = failure("--chat-template", "{% if %}")
    assert code == 1
    assert lines[-1].startswith("error: --chat-template: the chat template does not compile")
    assert not any("listening" in line or "loading" in line for line in lines)
    assert not any("Traceback" in line for line in lines)


def test_a_certificate_that_is_none_is_one_line(tmp_path: Path) -> None:
    pem = tmp_path / "broken.pem"
    pem.write_text("not a certificate")
    code, lines = failure("--ssl-key-file", str(pem), "--ssl-cert-file", str(pem))
    assert code == 1
    assert lines[-1].startswith(f"error: --ssl-cert-file, --ssl-key-file: cannot use {pem} with {pem}: ")
    assert not any("loading" in line for line in lines)
    assert not any("Traceback" in line for line in lines)


def test_a_host_that_is_none_is_one_line() -> None:
    code, lines = failure("--host", "host.invalid")
    assert code == 1
    assert lines[-1].startswith("error: cannot listen on host.invalid:0: ")
