"""What is wrong with files and folders is found before a model is loaded, in one line with the flag and the value."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.cli.parse import UsageError, parse
from corral.cli.preflight import check
from corral.cli.resolve import resolve
from corral.errors import CorralError, LoadError

NOBODY = 65534


def checked(*words: str | Path) -> None:
    args = parse(list(map(str, words)), {})
    check(args, resolve(args))


def refusal(*words: str | Path, kind: type[CorralError] = LoadError) -> str:
    with pytest.raises(kind) as caught:
        checked(*words)
    text = str(caught.value)
    assert "\n" not in text and "Traceback" not in text
    return text


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder of a user who must not write there; the test becomes that user."""
    path = Path(tempfile.mkdtemp(prefix="corral-test-"))
    path.chmod(0o500)
    try:
        with as_nobody(path):
            yield path
    finally:
        path.chmod(0o700)
        shutil.rmtree(path)


@contextlib.contextmanager
def as_nobody(path: Path) -> Iterator[None]:
    """Root may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_is_in_order_passes(tmp_path: Path) -> None:
    (tmp_path / "slots").mkdir()
    (tmp_path / "pins").write_text(json.dumps({"prompt": "x", "api_key": "k"}))
    checked("--cache-disk", tmp_path / "new" / "cache", "--slot-save-path", tmp_path / "slots", "--api-key", "k")
    checked("--responses-store", tmp_path / "store", "--pin-file", tmp_path / "pins", "--api-key", "k")
    checked("--chat-template", "{{ messages }}", "-j", '{"type": "object"}')
    checked("--chat-template", "llama3")
    assert not list((tmp_path / "new" / "cache").iterdir()), "the trial leaves nothing behind"


@pytest.mark.parametrize("flag", ["--model", "--lora"])
def test_models_and_adapters(tmp_path: Path, flag: str) -> None:
    other = tmp_path / "other.gguf"
    for name, text, why in (
        ("nothing.gguf", None, "no such file"),
        ("other.gguf", "root:x:0:0", "not a GGUF file"),
        ("", None, "it is a directory"),
    ):
        if text is not None:
            other.write_text(text)
        told = refusal(flag, tmp_path / name)
        assert told.startswith(f"{flag}: cannot load {tmp_path / name}: {why}")
        assert "b'" not in told


def test_a_scaled_adapter_is_named_by_its_flag(tmp_path: Path) -> None:
    assert refusal("--lora-scaled", f"{tmp_path}/a.gguf:0.5").startswith("--lora-scaled: cannot load ")


def test_the_folder_of_the_disk_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        told = refusal("--cache-disk", path)
        assert told.startswith(f"--cache-disk: {path}: ") and "name " in told
        assert "File exists" not in told


def test_a_folder_that_cannot_be_written(closed: Path) -> None:
    told = refusal("--cache-disk", closed)
    assert told == (
        f"--cache-disk: {closed}: nothing can be written there: Permission denied; make it writable for this user or "
        "name another folder"
    )
    assert "--cache-disk" in refusal("--cache-disk", closed / "new")


def test_slots_of_a_closed_folder_can_be_restored(closed: Path, caplog: pytest.LogCaptureFixture) -> None:
    checked("--slot-save-path", closed)
    assert f"--slot-save-path: {closed} cannot be written: slots can be restored, not saved" in caplog.text


def test_the_folder_of_slot_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal("--slot-save-path", tmp_path / "none").startswith(f"--slot-save-path: no such folder: {tmp_path}/n")
    assert "is a file" in refusal("--slot-save-path", tmp_path / "file")


def test_the_file_of_responses(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    for path in (tmp_path / "none" / "store", tmp_path / "text", tmp_path):
        told = refusal("--responses-store", path)
        assert told.startswith(f"--responses-store: cannot keep responses in {path}: ")


def test_a_file_of_responses_that_is_read_only(closed: Path) -> None:
    assert "--responses-store" in refusal("--responses-store", closed / "store")


def test_a_store_that_is_there_and_cannot_be_written() -> None:
    folder = Path(tempfile.mkdtemp(prefix="corral-test-"))
    try:
        with sqlite3.connect(folder / "store") as db:
            db.execute("PRAGMA journal_mode = WAL")
        checked("--responses-store", folder / "store")
        (folder / "store").chmod(0o400)
        with as_nobody(folder):
            assert "cannot keep responses in" in refusal("--responses-store", folder / "store")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("text", "why"),
    [("{% if %}", "the chat template does not compile"), ("my.jinja", "no Jinja")],
)
@pytest.mark.parametrize("flag", ["--chat-template", "--chat-template-file"])
def test_chat_templates(tmp_path: Path, flag: str, text: str, why: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    told = refusal(flag, file if flag.endswith("file") else text, kind=UsageError if why == "no Jinja" else LoadError)
    assert told.startswith(f"{flag}: ") and why in told
    assert ("--chat-template-file" in told) or why != "no Jinja"


def test_an_empty_template_is_the_models_own_and_an_empty_file_is_none(tmp_path: Path) -> None:
    checked("--chat-template", "")
    (tmp_path / "file").write_text("")
    assert "no Jinja" in refusal("--chat-template-file", tmp_path / "file", kind=UsageError)


def test_pins(tmp_path: Path) -> None:
    file = tmp_path / "pins"
    for line, why in (
        (
            '{"prompt": "x", "api_key": "mine"}\n{"tokens": [1], "prompt": "x"}',
            "pin 2: one of 'tokens', 'prompt' and 'messages' is needed",
        ),
        ("{}", "pin 1: one of"),
        ('{"prompt": "x", "api_key": "other"}', "pin 1: each API key has prefixes of its own"),
        ("no json", "line 1: not JSON"),
        ('{"messages": 5, "api_key": "mine"}', "pin 1: Expected 'messages' to be an array"),
        ('{"messages": [{"role": "user"}], "api_key": "mine"}', "pin 1: All non-assistant messages must contain"),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": 5, "api_key": "mine"}', "pin 1: Failed to parse"),
        ('{"prompt": 5, "api_key": "mine"}', 'pin 1: "prompt" elements must be'),
        ('{"prompt": [], "api_key": "mine"}', 'pin 1: "prompt" must not be empty'),
        ('{"prompt": {"prompt_string": 5}, "api_key": "mine"}', 'pin 1: "prompt" elements must be'),
        ('{"tokens": [1, -1], "api_key": "mine"}', "pin 1: Prompt contains invalid tokens: -1 is less than 0"),
        ('{"tokens": [1, 1.5], "api_key": "mine"}', 'pin 1: "prompt" elements must be'),
        ('{"prompt": "x", "cache_salt": 5, "api_key": "mine"}', "pin 1: Field 'cache_salt': type must be string"),
        ('{"prompt": "x", "lora": [5], "api_key": "mine"}', "pin 1: Field 'lora.0': type must be object"),
        ('{"prompt": "x", "api_key": 5}', "pin 1: Field 'api_key': type must be string, but is number"),
    ):
        file.write_text(line)
        told = refusal("--pin-file", file, "--api-key", "mine")
        assert told.startswith(f"--pin-file: {file}, {why}" if "line" in why else f"--pin-file: {why}"), told
        assert "other" not in told


@pytest.mark.parametrize(
    "flag", ["--api-key-file", "--pin-file", "--chat-template-file", "--grammar-file", "-jf", "--ssl-key-file"]
)
def test_files_that_are_not_there(flag: str) -> None:
    assert refusal(flag, "/nowhere/file").startswith(f"{flag}: cannot read /nowhere/file: No such file")


@pytest.mark.parametrize("schema", ["{", "[1]", '{"type": "nonsense"}', '{"oneOf": [{}, {}]}'])
@pytest.mark.parametrize("flag", ["-j", "-jf"])
def test_schemas(tmp_path: Path, flag: str, schema: str) -> None:
    file = tmp_path / "file"
    file.write_text(schema)
    told = refusal(flag, file if flag == "-jf" else schema, kind=UsageError)
    assert told.startswith(f"{flag}: " if schema in "{[1]" else ("--json-schema: ", "--json-schema-file: "))


@pytest.mark.parametrize("words", [("-c", "2147483647"), ("-c", "2147483392", "-np", "200"), ("-c", "99999999999")])
def test_contexts_that_cannot_be_counted(words: tuple[str, ...]) -> None:
    told = refusal(*words, kind=UsageError)
    assert words[1] in told and "2147483" in told
    assert told.startswith(("-c: ", "--ctx-size: "))


def test_the_log_file() -> None:
    from corral.cli.logs import start_logging

    with pytest.raises(LoadError, match=r"--log-file: cannot write /nowhere/log: No such file or directory"):
        start_logging(parse(["--log-file", "/nowhere/log"], {}))
