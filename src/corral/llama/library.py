"""Owns libllama as a process-wide library: its one start, its log lines, the processor it may use."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, get_ident
from typing import Any

import llama_cpp.llama_cpp as lib

from corral.llama.amx import keep_amx_off
from corral.llama.last_words import tell_when_it_ends

logger = logging.getLogger("corral.llama")

_STARTING = Lock()
_ERROR, _CONTINUATION = 4, 5
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, _ERROR: logging.ERROR}
_GENERIC = ("failed to load model", "failed to initialize", "failed to quantize", "failed to decode")


class LogRouter:
    """Turns libllama's text fragments into lines of Python ``logging``; lets a caller collect the error lines."""

    def __init__(self) -> None:
        self._level = logging.DEBUG
        self._partial = ""
        self._collecting: dict[int, deque[str]] = {}
        self._watching: dict[int, list[str]] = {}

    def write(self, level: int, text: bytes | None, _user_data: Any = None) -> None:
        """libllama's callback. ``level`` is ggml's; continuation fragments keep the last one."""
        if level != _CONTINUATION:
            self._level = _LEVELS.get(level, logging.DEBUG)
        *lines, self._partial = (self._partial + (text or b"").decode("utf-8", "replace")).split("\n")
        for line in lines:
            self._line(line.rstrip())

    def _line(self, line: str) -> None:
        if (watched := self._watching.get(get_ident())) is not None:
            watched.append(line)
        collected = self._collecting.get(get_ident())
        level = self._level
        if collected is not None and level >= logging.INFO:
            collected.append(line)
            level = logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(level, "%s", line)

    @contextmanager
    def collect(self) -> Iterator[deque[str]]:
        """Within it this thread's warnings and errors go to the returned queue (the last 20) and only to DEBUG."""
        thread, lines = get_ident(), deque[str](maxlen=20)
        before = self._collecting.get(thread)
        self._collecting[thread] = lines
        try:
            yield lines
        finally:
            if before is None:
                del self._collecting[thread]
            else:
                self._collecting[thread] = before

    @contextmanager
    def watch(self) -> Iterator[list[str]]:
        """Within it all of this thread's lines go to the returned list too. Not to be nested."""
        lines = self._watching[get_ident()] = []
        try:
            yield lines
        finally:
            del self._watching[get_ident()]


def start() -> LogRouter:
    """Initialise libllama once for the process and take over its log. Returns the router. From any thread."""
    with _STARTING:
        return _start()


@functools.cache
def _start() -> LogRouter:
    router = LogRouter()
    callback = lib.llama_log_callback(router.write)
    router.callback = callback  # type: ignore[attr-defined]  # libllama keeps only the pointer
    lib.llama_log_set(callback, None)
    router.at_end = tell_when_it_ends()  # type: ignore[attr-defined]  # the same
    lib.llama_backend_init()
    keep_amx_off()
    return router


def reason(lines: deque[str], default: str) -> str:
    """The most telling of libllama's error lines, without the names of its functions."""
    texts = [line.rpartition("error loading model: ")[2] for line in lines]
    texts = [text.partition(": ")[2] if text.split(":")[0].isidentifier() else text for text in texts]
    telling = [text.strip() for text in texts if not text.lstrip().startswith(_GENERIC)]
    return (telling or [default])[0]


def progress_callback(on_progress: Callable[[float], None] | None, failures: list[BaseException]) -> Any:
    """A C callback for ``on_progress`` (0..1). What it raises stops the load and is put into ``failures``."""

    def report(fraction: float, _user_data: Any) -> bool:
        try:
            if on_progress:
                on_progress(fraction)
        except BaseException as error:  # must not cross the C frame; the loader raises it again
            failures.append(error)
        return not failures

    return lib.llama_progress_callback(report)


def n_physical_cores() -> int:
    """Physical cores this process may run on, at least 1. Hyperthreads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)}) or 1


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text()
    except OSError:
        return str(cpu)


def address(pointer: Any) -> int:
    """The address held by a ctypes pointer that is not null."""
    return ctypes.addressof(pointer.contents)
