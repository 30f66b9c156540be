"""One prompt with all that is asked of it, read and checked, before it becomes tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corral.chat.deltas import Reply, whole_reply
from corral.chat.jobs import Rendered
from corral.ids import Token
from corral.llm.params import SamplingParams
from corral.tasks import Sampling

Prompt = str | Sequence[Token]


@dataclass(frozen=True, slots=True)
class Asked:
    """``rendered``: the conversation that the prompt was, if it was one. The other fields are a task's."""

    prompt: tuple[Token, ...]
    params: SamplingParams
    sampling: Sampling
    preserved_tokens: frozenset[Token] = frozenset()
    borders: tuple[int, ...] = ()
    rendered: Rendered | None = None

    def read(self, text: str) -> Reply | None:
        """The reply that ``text`` is; None without a conversation."""
        if self.rendered is None:
            return None
        reader = self.rendered.reader()
        return whole_reply([*reader.feed(text), *reader.finish()])


def prompts_of(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, as text or token ids, is not a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    one = bool(prompts) and all(isinstance(item, int) for item in prompts)
    return [prompts] if one else list(prompts)  # type: ignore[list-item, arg-type]
