"""``corral version``: what runs here."""

from __future__ import annotations

import platform
from importlib.metadata import version as installed


def version() -> int:
    """Print the versions of corral, of the binding to libllama and of Python."""
    print(f"corral {installed('corral')}")
    print(f"llama-cpp-python {installed('llama-cpp-python')}, Python {platform.python_version()}, {platform.machine()}")
    return 0
