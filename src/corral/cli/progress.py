"""What is said while the server starts, how much of the model is loaded: a bar on a terminal, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

STEPS = 4


def say(line: str, out: TextIO) -> None:
    """A line at once; a server does not end because whoever read its output has gone, or its disk is full."""
    with suppress(OSError):
        print(line, file=out, flush=True)


@contextmanager
def loading(name: str, out: TextIO = sys.stderr) -> Iterator[Callable[[float], None]]:
    """Gives a function that takes the loaded fraction, 0..1; it may be called on another thread."""
    if out.isatty():
        with _bar(name) as report:
            yield report
    else:
        yield _quarters(name, out)


@contextmanager
def _bar(name: str) -> Iterator[Callable[[float], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("loading {task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)


def _quarters(name: str, out: TextIO) -> Callable[[float], None]:
    shown = 0

    def report(fraction: float) -> None:
        nonlocal shown
        reached = int(fraction * STEPS)
        if reached > shown:
            shown = reached
            say(f"loading {name}: {100 * reached // STEPS} %", out)

    return report
