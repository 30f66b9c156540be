"""corral: an LLM inference server on libllama, and its engine as a library."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.llm import LLM, Completion, SamplingParams

__all__ = ["LLM", "Completion", "SamplingParams"]


def __getattr__(name: str) -> object:
    # `import corral` alone must not load libllama.
    if name in __all__:
        from corral import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'corral' has no attribute {name!r}")
