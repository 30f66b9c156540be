"""Slot files: llama-server's layout, names, and every kind of damage."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from corral.engine import slot_file
from corral.engine.slot_file import BadSlotFile, Origin, SlotFile, is_valid_name
from corral.errors import InvalidRequest, ServerError
from corral.ops import SavedCheckpoint
from corral.ports import MemoryTraits

TRAITS = MemoryTraits(1024, 100, 4, 1, 64, 64, True, state_version=3)
ME = Origin("a1b2", "Llama")
FILE = SlotFile((5, 6, 7), b"state of the row", (SavedCheckpoint(1, b"early"), SavedCheckpoint(2, b"")), ME)


def packed(file: SlotFile = FILE, version: int = 3) -> bytes:
    return b"".join(slot_file.pack(file, version))


def refusal(raw: bytes, origin: Origin = ME) -> str:
    with pytest.raises(BadSlotFile) as caught:
        slot_file.unpack(raw, TRAITS, origin)
    return str(caught.value).removeprefix("Unable to restore slot: ")


def test_the_beginning_is_llama_servers_layout() -> None:
    words = (-1, 1, 3, 5, 6, 7, 0)
    head = struct.pack("<III", 0x67677371, 3, len(words)) + struct.pack("<7i", *words)
    assert packed().startswith(head + b"state of the row")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    n_bytes = slot_file.save(tmp_path / "a", FILE, 3)
    assert slot_file.load(tmp_path / "a", TRAITS) == (FILE, n_bytes)
    assert (tmp_path / "a").stat().st_size == n_bytes
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("words", [(5, 6, 7), (-1, 1, 3, 5, 6, 7, 0)], ids=["plain list", "record"])
def test_a_file_without_our_trailer_is_read(words: tuple[int, ...]) -> None:
    raw = struct.pack("<III", 0x67677371, 3, len(words)) + struct.pack(f"<{len(words)}i", *words) + b"any state"
    assert slot_file.unpack(raw, TRAITS) == SlotFile((5, 6, 7), b"any state")


@pytest.mark.parametrize("lengths", [(0,), (2, 2), (2, 1), (3,), (9,)])
def test_checkpoints_of_other_tokens_are_refused(lengths: tuple[int, ...]) -> None:
    file = SlotFile((5, 6, 7), b"state", tuple(SavedCheckpoint(n, b"bytes") for n in lengths))
    with pytest.raises(BadSlotFile, match="not of its 3 tokens"):
        slot_file.unpack(packed(file), TRAITS)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it is empty"),
        (b"ab", "it is no slot file"),
        (packed()[:7], "it is cut short: 7 bytes"),
        (b"GGUF" + packed()[4:], "it is no slot file"),
        (packed(version=4), "version 4, this server reads and writes version 3"),
        (packed(SlotFile(tuple(range(101)), b"")), "does not fit in the slot context"),
        (struct.pack("<IIIii", 0x67677371, 3, 2, -1, 2), "Unsupported server tokens state version"),
        (struct.pack("<III4i", 0x67677371, 3, 4, -1, 1, 0, 1), "without an mmproj"),
        (struct.pack("<III5i", 0x67677371, 3, 5, -1, 1, 0, 0, 0), "Trailing data"),
        (struct.pack("<III4i", 0x67677371, 3, 4, -1, 1, 9, 0), "tokens is cut short"),
        (struct.pack("<IIIi", 0x67677371, 3, 9, 1), "cut short"),
    ],
)
def test_files_that_are_refused(raw: bytes, why: str) -> None:
    with pytest.raises(BadSlotFile, match=why) as caught:
        slot_file.unpack(raw, TRAITS)
    assert str(caught.value).startswith("Unable to restore slot: ")


def test_what_is_wrong_with_a_file_is_told_apart() -> None:
    whole = packed()
    state_end = whole.index(b"state of the row") + len(b"state of the row")
    assert refusal(whole + b"x") == "1 bytes were added behind its end"
    assert refusal(whole + whole[-300:-40]) == f"{len(whole[-300:-40])} bytes were added behind its end"
    assert "checksum" in refusal(whole[:-1] + b"x")
    assert "checksum" in refusal(whole[:40] + b"?" + whole[41:] + b"more")
    for end in range(state_end + 40, len(whole)):
        assert refusal(whole[:end]).startswith("it is cut short, or its end is damaged"), end
    assert refusal(b"root:x:0:0:root:/root:/bin/bash\n") == "it is no slot file"


def test_a_file_of_another_model_is_named() -> None:
    for origin, why in (
        (Origin("ffff", "Alpaca"), "the model 'Llama' wrote it, and this server runs 'Alpaca'"),
        (Origin("ffff", "Llama"), "another file of the model 'Llama' wrote it: other weights or another quantization"),
        (Origin("a1b2", "Llama", 5e5), "it was written with --rope-freq-base 0, and this server has 500000"),
        (Origin("a1b2", "Llama", 0, 0.5), "it was written with --rope-freq-scale 0, and this server has 0.5"),
    ):
        assert refusal(packed(), origin) == why
    assert slot_file.unpack(packed(), TRAITS, ME) == FILE
    assert slot_file.unpack(packed(), TRAITS, Origin("a1b2", "Llama under another name")) == FILE
    unknown = SlotFile((5, 6, 7), b"state")
    assert slot_file.unpack(packed(unknown), TRAITS, ME) == unknown, "who wrote it may not be known"
    named = SlotFile((5,), b"state", origin=Origin("cc", "evil\n" * 500))
    assert len(refusal(packed(named))) < 250 and "\n" not in refusal(packed(named))


def test_no_damage_goes_unnoticed_but_a_lost_trailer() -> None:
    """A flipped bit anywhere, a file cut anywhere: never other tokens; without its trailer the state is another one."""
    whole, draw = packed(), random.Random(1)
    for _ in range(400):
        raw = bytearray(whole)
        if draw.random() < 0.5:
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        else:
            del raw[draw.randrange(len(raw)) :]
        try:
            slot_file.unpack(bytes(raw), TRAITS)
        except BadSlotFile:
            continue
        assert len(raw) < whole.index(b'"a1b2"'), "cut in the state or just behind it: libllama finds it"


@pytest.mark.parametrize(
    "name",
    [
        *'./\\:*?<>|"\n\x7f\x85',
        "",
        "..",
        "a/b",
        "a..b",
        " a",
        "a ",
        "a.\ud800",
        "\uff0e",
        "\u2215",
        "\ufeff",
        "x" * 256,
        "é" * 128,
    ],
)
def test_bad_names(name: str, tmp_path: Path) -> None:
    assert not is_valid_name(name)
    with pytest.raises(InvalidRequest, match="Invalid filename"):
        slot_file.inside(tmp_path, name)


@pytest.mark.parametrize("name", ["a", "chat 1.bin", "größe", "x" * 255, ".hidden"])
def test_good_names(name: str, tmp_path: Path) -> None:
    assert slot_file.inside(tmp_path, name).name == name


def test_a_name_of_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(InvalidRequest, match=f"Invalid filename: {name} is a (folder|device, pipe or socket)"):
            slot_file.inside(tmp_path, name)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(packed())
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "in").symlink_to(folder / "real")
    with pytest.raises(InvalidRequest, match="out of the folder"):
        slot_file.inside(folder, "out")
    assert slot_file.inside(folder, "in") == folder / "real"


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "folder", "pipe"):
        with pytest.raises(BadSlotFile):
            slot_file.load(tmp_path / name, TRAITS)


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot_file.save(tmp_path / "a", FILE, 3)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ServerError, match="Unable to save slot: No space left on device"):
        slot_file.save(tmp_path / "a", SlotFile((1,), b"new"), 3)
    assert slot_file.load(tmp_path / "a", TRAITS)[0] == FILE
    assert os.listdir(tmp_path) == ["a"]
