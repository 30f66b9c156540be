"""Owns the first look at a model's file, before libllama reads it."""

from __future__ import annotations

from pathlib import Path

from corral.errors import LoadError

_MAGIC = b"GGUF"
_DAMAGED = ("failed to read", "bad GGUF version", "tensor '")
"""How libllama begins to tell of a file that ends too early or is not as it was written."""


def check_file(path: Path) -> None:
    """Raises LoadError if there is no GGUF file; libllama's own words for that are obscure."""
    if path.is_dir():
        raise LoadError(f"cannot load {path}: it is a directory; name a GGUF file in it")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise LoadError(f"cannot load {path}: no such file; name a GGUF file that is there") from None
    except OSError as error:
        raise LoadError(f"cannot load {path}: {error.strerror}") from None
    if magic != _MAGIC:
        raise LoadError(f"cannot load {path}: not a GGUF file, which would begin with GGUF")


def with_remedy(reason: str) -> str:
    """libllama's reason not to load a file, with what may be done."""
    is_damaged = reason.startswith(_DAMAGED)
    return f"{reason}; the file is cut short or damaged: get it again" if is_damaged else reason
