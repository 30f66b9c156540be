"""A model in this process, without HTTP: batches of prompts in order, or one prompt as a stream."""

from __future__ import annotations

from corral.llm.completion import Completion
from corral.llm.library import LLM
from corral.llm.params import SamplingParams

__all__ = ["LLM", "Completion", "SamplingParams"]
