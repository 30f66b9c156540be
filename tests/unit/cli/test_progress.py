"""Loading is shown without a terminal, too, and briefly."""

from __future__ import annotations

import io
import os

from corral.cli.progress import loading


def test_off_a_terminal_each_quarter_is_one_line() -> None:
    out = io.StringIO()
    with loading("m", out) as report:
        for percent in range(101):
            report(percent / 100)
    assert out.getvalue().splitlines() == [f"loading m: {n} %" for n in (25, 50, 75, 100)]


def test_nobody_need_read_it() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with io.FileIO(writing, "w") as raw:
        out = io.TextIOWrapper(raw, write_through=True)
        with loading("m", out) as report:
            report(1.0)
        out.detach()
