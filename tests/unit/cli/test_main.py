"""Commands and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from corral.cli.main import main


def test_help_and_version_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--ctx-size" in capsys.readouterr().out
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("corral ")
    assert main(["-m", "any.gguf", "--version"]) == 0
    assert capsys.readouterr().out.startswith("corral ")


def test_whoever_reads_may_go() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "corral", "version"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("words", [["--nonsense"], ["srve"], ["serve", "--port", "x"], ["-hf", "a/b"]])
def test_a_wrong_command_line_is_two_lines_and_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.splitlines()[1:] == ["See corral --help."]


def test_a_model_without_its_flag_is_told_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["some.gguf"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown command 'some.gguf' (did you mean -m some.gguf?)")


def test_it_runs_as_a_module() -> None:
    shown = subprocess.run([sys.executable, "-m", "corral", "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0
    assert shown.stdout.startswith("usage: corral ")


@pytest.mark.parametrize("flag", ["--api-key-file", "--chat-template-file"])
def test_a_missing_file_is_one_line_and_code_1(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "0", flag, "/nowhere/file"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "/nowhere/file" in last
