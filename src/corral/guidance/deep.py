"""Owns running what recurses deeply, as llguidance does to compile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_STACK_SIZE = threading.Lock()
"""Python has one size for the stacks of all new threads."""

STACK_BYTES = 512 << 20
"""llguidance compiles by recursion, a few KiB for each rule that leads to a rule. Only what is used takes memory."""


def on_deep_stack(work: Callable[[], T]) -> T:
    """``work`` on a thread of its own, whose stack is large. Raises what it raises."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="corral-compile", daemon=True)
    with _STACK_SIZE:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
