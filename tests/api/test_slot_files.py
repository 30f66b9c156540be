"""POST /slots/{id}: wire formats and errors as llama-server's; conversations that survive in files."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.conftest import SimServer
from tests.api.live import send_raw, until

from corral.config import ApiKey, ServerConfig
from corral.engine import slot_file
from corral.ports import MemoryTraits

TRAITS = MemoryTraits(2048, 2048, 4, 1, 64, 64, True, state_version=3)
TEXT = "Once upon a time there was a llama that lived in a corral with others"


def server(folder: Path, **more: Any) -> ServerConfig:
    return ServerConfig(port=0, alias=("sim",), slot_save_path=folder, **more)


def complete(http: httpx.Client, prompt: str, n: int = 4, **more: Any) -> Any:
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True, **more}
    reply = http.post("/completion", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def act(http: httpx.Client, slot: object, action: str, name: str | None = None, **more: Any) -> httpx.Response:
    body = {"filename": name, **more} if name is not None else more
    return http.post(f"/slots/{slot}?action={action}", json=body)


def message(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["message"]


@pytest.fixture
def files(serve_sim: SimServer, tmp_path: Path) -> httpx.Client:
    return serve_sim(server(tmp_path), n_slots=1)


def test_s28_a_saved_slot_is_restored_by_another_server(serve_sim: SimServer, tmp_path: Path) -> None:
    first = serve_sim(server(tmp_path), n_slots=2)
    answer = complete(first, TEXT, id_slot=1)
    saved = act(first, 1, "save", "chat").json()
    n_held = answer["tokens_evaluated"] + 3
    assert saved == {
        "id_slot": 1,
        "filename": "chat",
        "n_saved": n_held,
        "n_written": (tmp_path / "chat").stat().st_size,
        "timings": saved["timings"],
    }
    assert saved["timings"]["save_ms"] > 0
    second = serve_sim(server(tmp_path), n_slots=2)
    restored = act(second, 0, "restore", "chat").json()
    assert (restored["n_restored"], restored["n_read"]) == (n_held, saved["n_written"])
    assert set(restored) == {"id_slot", "filename", "n_restored", "n_read", "timings"}
    assert set(restored["timings"]) == {"restore_ms"}
    assert second.get("/slots").json()[0]["kept"].startswith("row")
    again = complete(second, TEXT + answer["content"] + " and more")
    assert again["timings"]["cache_n"] >= answer["tokens_evaluated"]
    assert again["content"] == complete(first, TEXT + answer["content"] + " and more", cache_prompt=False)["content"]


@pytest.mark.parametrize("n_slots", [2, 12], ids=["few", "many"])
def test_a_restored_prefix_leaves_other_conversations_alone(serve_sim: SimServer, tmp_path: Path, n_slots: int) -> None:
    http = serve_sim(server(tmp_path), n_slots=n_slots, n_ctx=600)
    answers = [complete(http, f"{i} {TEXT}", id_slot=i)["content"] for i in range(2)]
    for i in range(2):
        assert act(http, i, "save", f"chat {i}").json()["n_saved"] > 60
    for i in range(2):
        assert act(http, i, "restore", f"chat {1 - i}").status_code == 200
    for i in range(2):
        again = complete(http, f"{i} {TEXT}", id_slot=1 - i)
        assert again["content"] == answers[i]
        assert again["timings"]["cache_n"] > 60


def test_erase_forgets(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(server(tmp_path), n_slots=1)
    answer = complete(http, TEXT)
    n_held = http.get("/slots").json()[0]["n_prompt_tokens"]
    assert act(http, 0, "erase").json() == {"id_slot": 0, "n_erased": n_held}
    assert http.get("/slots").json()[0]["n_prompt_tokens"] == 0
    assert act(http, 0, "erase").json()["n_erased"] == 0
    again = complete(http, TEXT)
    assert (again["timings"]["cache_n"], again["content"]) == (0, answer["content"])


def test_saving_what_another_slot_went_on_from(serve_sim: SimServer, tmp_path: Path) -> None:
    """Slot 0 stands for a beginning of what row and slot 1 hold: just that beginning is saved."""
    http = serve_sim(server(tmp_path), n_slots=2)
    first = complete(http, TEXT, id_slot=0)
    complete(http, TEXT + first["content"] + " and on", id_slot=1)
    n_held = http.get("/slots").json()[0]["n_prompt_tokens"]
    assert act(http, 0, "save", "beginning").json()["n_saved"] == n_held
    other = serve_sim(server(tmp_path), n_slots=2)
    assert act(other, 1, "restore", "beginning").json()["n_restored"] == n_held
    assert complete(other, TEXT)["content"] == first["content"]


def test_an_empty_slot(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(server(tmp_path), n_slots=2)
    assert act(http, 0, "save", "empty").json()["n_saved"] == 0
    complete(http, TEXT, id_slot=1)
    assert act(http, 1, "restore", "empty").json()["n_restored"] == 0
    assert http.get("/slots").json()[1]["n_prompt_tokens"] == 0


def test_the_number_of_a_slot_wraps_around(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(server(tmp_path), n_slots=2)
    complete(http, TEXT, id_slot=1)
    reply = act(http, 7, "save", "seven").json()
    assert (reply["id_slot"], reply["n_saved"] > 0) == (7, True)


def test_refusals(serve_sim: SimServer, tmp_path: Path, http: httpx.Client) -> None:
    off = act(http, 0, "save", "x")
    hint = "This server does not support slots action. Start it with `--slot-save-path`"
    assert (*message(off), off.json()["error"]["type"]) == (501, hint, "not_supported_error")
    on = serve_sim(server(tmp_path), n_slots=1)
    assert message(act(on, "one", "save", "x")) == (400, "Invalid slot ID: 'one' (slots are numbered from 0)")
    assert message(act(on, 0, "load", "x")) == (400, "Invalid action")
    assert message(on.post("/slots/0", json={})) == (400, "Invalid action")
    assert message(act(on, 0, "save", "../x")) == (400, "Invalid filename")
    assert message(act(on, 0, "save")) == (400, "key 'filename' not found")
    assert message(act(on, 0, "restore", "none")) == (400, "Unable to restore slot: No such file or directory")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "slot", ["18446744073709551616", "9" * 5000, "1_0", "+1", "-1", "%D9%A3", "%201", "1.0", "0x1"]
)
def test_what_is_no_number_of_a_slot_does_nothing(files: httpx.Client, slot: str) -> None:
    before = complete(files, TEXT)["timings"]
    for action in ("save", "restore", "erase"):
        code, text = message(act(files, slot, action, "x"))
        assert (code, text.startswith("Invalid slot ID")) == (400, True), text
        assert len(text) < 200
    assert complete(files, TEXT)["timings"]["cache_n"] >= before["prompt_n"] + before["cache_n"] - 1


def test_a_failed_restore_leaves_the_slot_as_it_was(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(server(tmp_path), n_slots=1)
    complete(http, TEXT)
    act(http, 0, "save", "good")
    before = http.get("/slots").json()
    raw = bytearray((tmp_path / "good").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "flipped").write_bytes(raw)
    (tmp_path / "other version").write_bytes(raw[:4] + struct.pack("<I", 9) + raw[8:])
    (tmp_path / "other tokens").write_bytes(struct.pack("<III2i", 0x67677371, 3, 2, 7, 8) + b"no state")
    (tmp_path / "no vocabulary").write_bytes(struct.pack("<IIIi", 0x67677371, 3, 1, 99_999) + b"no state")
    for name, why in (
        ("flipped", "checksum"),
        ("other version", "state version 9"),
        ("other tokens", "not the state of 2 tokens"),
        ("no vocabulary", "Invalid tokens"),
    ):
        code, text = message(act(http, 0, "restore", name))
        assert (code, why in text) == (400, True), text
    assert http.get("/slots").json() == before
    assert complete(http, TEXT)["timings"]["cache_n"] > 60


def test_what_is_wrong_with_a_file_is_told(files: httpx.Client, tmp_path: Path) -> None:
    complete(files, TEXT)
    act(files, 0, "save", "good")
    before = files.get("/slots").json()
    raw = (tmp_path / "good").read_bytes()
    model = raw.replace(b'"model":"', b'"model":"x', 1)
    assert model != raw
    for name, data, why in (
        ("cut", raw[:-20], "it is cut short, or its end is damaged"),
        ("cut to its head", raw[:200], "it is cut short"),
        ("more", raw + b"more", "4 bytes were added behind its end"),
        ("damaged", model, "it is damaged"),
        ("text", b"root:x:0:0:root:/root:/bin/bash", "it is no slot file"),
        ("empty file", b"", "it is empty"),
    ):
        (tmp_path / name).write_bytes(data)
        code, text = message(act(files, 0, "restore", name))
        assert (code, text.startswith(f"Unable to restore slot: {why}")) == (400, True), text
    assert files.get("/slots").json() == before
    assert complete(files, TEXT)["timings"]["cache_n"] > 60


def test_a_file_of_another_model_is_told(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(server(tmp_path), n_slots=1)
    complete(http, TEXT)
    act(http, 0, "save", "good")
    before = http.get("/slots").json()
    file, _ = slot_file.load(tmp_path / "good", TRAITS)
    (tmp_path / "good").unlink()
    other = replace(file, origin=replace(file.origin, weights="other", model="Alpaca"))
    slot_file.save(tmp_path / "other", other, TRAITS.state_version)
    why = "Unable to restore slot: the model 'Alpaca' wrote it, and this server runs 'sim'"
    assert message(act(http, 0, "restore", "other")) == (400, why)
    assert http.get("/slots").json() == before


@pytest.mark.parametrize("action", ["save", "restore"])
def test_a_folder_is_no_slot_file(files: httpx.Client, tmp_path: Path, action: str) -> None:
    complete(files, TEXT)
    (tmp_path / "folder").mkdir()
    assert message(act(files, 0, action, "folder")) == (400, "Invalid filename: folder is a folder, not a file")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_save_that_fails_is_logged_with_its_reason(
    files: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    complete(files, TEXT)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    told = "Unable to save slot: No space left on device"
    assert message(act(files, 0, "save", "x")) == (500, told)
    assert f"POST /slots/0 failed: {told}" in caplog.messages


def test_a_busy_slot_is_waited_for_and_streams_go_on(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(server(tmp_path), n_slots=1, n_ctx=4096)
    with send_raw(http, {"prompt": TEXT, "n_predict": 300, "ignore_eos": True}):
        until(lambda: http.get("/slots").json()[0]["is_processing"], "the slot is busy")
        assert act(http, 0, "save", "busy").json()["n_saved"] >= 299


def test_restores_that_wait_for_a_slot_hold_one_file_in_memory(
    serve_sim: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = serve_sim(server(tmp_path), n_slots=1, n_ctx=100_000)
    complete(http, TEXT)
    act(http, 0, "save", "x")
    n_loaded, n_asked, load, inside = [0], [0], slot_file.load, slot_file.inside

    def counted(*args: Any) -> Any:
        n_loaded[0] += 1
        return load(*args)

    def asked(*args: Any) -> Any:
        n_asked[0] += 1
        return inside(*args)

    monkeypatch.setattr(slot_file, "load", counted)
    with send_raw(http, {"prompt": TEXT, "n_predict": -1, "ignore_eos": True}):
        until(lambda: http.get("/slots").json()[0]["is_processing"], "the slot is busy")
        monkeypatch.setattr(slot_file, "inside", asked)
        waiting = [send_raw(http, {"filename": "x"}, "/slots/0?action=restore") for _ in range(5)]
        until(lambda: n_asked[0] == 5 and n_loaded[0] > 0, "all are there")
        assert http.get("/slots").json()[0]["is_processing"]
        assert n_loaded == [1]
        for gone in waiting[:3]:
            gone.close()
    for one in waiting[3:]:
        assert one.recv(100).startswith(b"HTTP/1.1 200")
        one.close()


def test_keys_do_not_read_each_others_slots(serve_sim: SimServer, tmp_path: Path) -> None:
    http = serve_sim(server(tmp_path, api_keys=(ApiKey("ann"), ApiKey("bob"))), n_slots=1)
    assert act(http, 0, "save", "x").status_code == 401
    http.headers["Authorization"] = "Bearer ann"
    complete(http, TEXT)
    http.headers["Authorization"] = "Bearer bob"
    for action in ("save", "erase", "restore"):
        act(http, 0, action, "x")
    assert message(act(http, 0, "save", "x")) == (400, "slot 0 holds what another API key sent")
    assert os.listdir(tmp_path) == []


KILLED = """
import sys
from pathlib import Path
from corral.engine import slot_file
path, n = Path(sys.argv[1]), 0
while True:
    n += 1
    slot_file.save(path, slot_file.SlotFile((n,) * 1000, b"s" * 300_000), 3)
    print(n, flush=True)
"""


CUT = """
import os, signal, sys
from pathlib import Path
from corral.engine.whole_file import write_whole
def parts():
    yield b"new" * 1_000_000
    os.kill(os.getpid(), signal.SIGKILL)
write_whole(Path(sys.argv[1]), parts())
"""


def test_kill_9_in_the_middle_of_a_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    assert subprocess.run([sys.executable, "-c", CUT, str(path)], check=False).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_kill_9_during_a_save_leaves_a_whole_file(tmp_path: Path) -> None:
    for n_before in range(1, 6):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(n_before):
                process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        file, _ = slot_file.load(tmp_path / "a", TRAITS)
        assert (len(set(file.tokens)), file.tokens[0] >= n_before) == (1, True)
