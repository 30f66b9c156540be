"""What a request gets for the fields it does not name: the command line's values."""

from __future__ import annotations

from dataclasses import dataclass, field

from corral.tasks import Limits, Sampling


@dataclass(frozen=True, slots=True)
class Defaults:
    """Request fields as the command line set them.

    ``n_keep`` and ``n_cache_reuse`` count tokens. ``special`` prints control tokens as text. ``prefill_assistant``: a
    last message of the assistant is continued instead of answered.
    """

    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    cache_prompt: bool = True
    n_keep: int = 0
    n_cache_reuse: int = 0
    special: bool = False
    prefill_assistant: bool = True
