"""The program's log: one line a record, ``I 12:00:01.123 [request id] message``, on stderr and maybe in a file."""

from __future__ import annotations

import logging
import sys
import time

from corral.cli.parse import Parsed
from corral.errors import LoadError

_LEVELS = (logging.ERROR, logging.ERROR, logging.WARNING, logging.INFO)
"""llama-server's verbosity 0 to 3; above it is everything."""

_CHATTY = ("asyncio", "uvicorn")
"""Libraries whose information is said here in our own words."""


_NOISE = ("Unsupported upgrade request", "No supported WebSocket library")
"""What uvicorn warns of when a client asks for a websocket, which is answered like any request."""


def is_telling(record: logging.LogRecord) -> bool:
    """False for a record of uvicorn's that is nothing to an operator of this server."""
    return not record.getMessage().startswith(_NOISE)


class LineFormatter(logging.Formatter):
    """A record's ``request_id`` (from ``extra``) is shown if it has one."""

    def __init__(self, prefix: bool = True, timestamps: bool = True) -> None:
        super().__init__()
        self._prefix = prefix
        self._timestamps = timestamps

    def format(self, record: logging.LogRecord) -> str:
        request_id = getattr(record, "request_id", "")
        parts = [
            record.levelname[0] if self._prefix else "",
            self._clock(record) if self._timestamps else "",
            f"[{request_id}]" if request_id else "",
            record.getMessage(),
        ]
        line = " ".join(part for part in parts if part)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    @staticmethod
    def _clock(record: logging.LogRecord) -> str:
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))}.{int(record.msecs):03d}"


class LogFile(logging.FileHandler):
    """A file that a full disk may refuse lines of: stderr is told once, and again when that was over meanwhile."""

    _is_failing = False
    _error: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self._error = None
        super().emit(record)
        if self._error and not self._is_failing:
            reason = self._error.strerror
            print(f"--log-file: {self.baseFilename} lacks lines from here on: {reason}", file=sys.stderr)
        self._is_failing = self._error is not None

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._error = error
        else:
            super().handleError(record)


def start_logging(args: Parsed) -> None:
    """Set up the root logger as the flags say. Raises LoadError if the file cannot be written."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if args["log_file"]:
        try:
            handlers.append(LogFile(args["log_file"], encoding="utf-8"))
        except OSError as error:
            raise LoadError(
                f"--log-file: cannot write {args['log_file']}: {error.strerror}; name a file in a folder that this "
                "user can write"
            ) from None
    for handler in handlers:
        handler.setFormatter(LineFormatter(args["log_prefix"], args["log_timestamps"]))
    logging.basicConfig(level=level_of(args), handlers=handlers, force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(is_telling)


def level_of(args: Parsed) -> int:
    """The level of Python's logging for llama-server's verbosity."""
    if args["log_disable"]:
        return logging.CRITICAL + 1
    verbosity = args["verbosity"]
    return logging.DEBUG if args["verbose"] or verbosity >= len(_LEVELS) else _LEVELS[verbosity]
