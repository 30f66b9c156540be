"""What a line of the log looks like, and which levels are shown."""

from __future__ import annotations

import logging
import re

import pytest

from corral.cli.logs import LineFormatter, LogFile, level_of
from corral.cli.parse import parse


def record(**extra: str) -> logging.LogRecord:
    made = logging.LogRecord("corral", logging.INFO, "", 0, "%d tokens", (3,), None)
    made.__dict__.update(extra)
    return made


def test_a_line_has_level_time_request_and_message() -> None:
    assert re.fullmatch(r"I \d\d:\d\d:\d\d\.\d\d\d \[r1\] 3 tokens", LineFormatter().format(record(request_id="r1")))
    assert re.fullmatch(r"I \d\d:\d\d:\d\d\.\d\d\d 3 tokens", LineFormatter().format(record()))


def test_prefix_and_time_can_go() -> None:
    assert LineFormatter(prefix=False, timestamps=False).format(record()) == "3 tokens"


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ((), logging.INFO),
        (("-lv", "1"), logging.ERROR),
        (("-lv", "2"), logging.WARNING),
        (("-lv", "4"), logging.DEBUG),
        (("-v",), logging.DEBUG),
        (("--log-disable",), logging.CRITICAL + 1),
    ],
)
def test_verbosity(words: tuple[str, ...], level: int) -> None:
    assert level_of(parse(words, {})) == level


def test_a_full_disk_is_told_once_and_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    file = LogFile("/dev/full")
    for _ in range(3):
        file.emit(record())
    assert capfd.readouterr().err == "--log-file: /dev/full lacks lines from here on: No space left on device\n"
    with pytest.raises(OSError, match="No space left"):
        file.close()
