"""One prompt with all that is asked of it, read and checked, before it becomes tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from corral.chat.deltas import Reply, whole_reply
from corral.chat.jobs import Rendered
from corral.events import Finished
from corral.ids import Token
from corral.llm.checks import is_whole, wrong
from corral.llm.params import SamplingParams
from corral.ports import Tokenizer
from corral.tasks import Sampling

Prompt = str | Sequence[Token]
FORMS = "text or a list of token ids, or a list of such"


@dataclass(frozen=True, slots=True)
class Asked:
    """``rendered``: the conversation that the prompt was, if it was one. The other fields are a task's."""

    prompt: tuple[Token, ...]
    params: SamplingParams
    sampling: Sampling
    preserved_tokens: frozenset[Token] = frozenset()
    borders: tuple[int, ...] = ()
    rendered: Rendered | None = None

    def read(self, result: Finished) -> Reply | None:
        """The reply that was generated; None without a conversation."""
        if self.rendered is None:
            return None
        reader = self.rendered.reader()
        return whole_reply([*reader.feed(result.text), *reader.finish(result.reason)])


def prompts_of(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, as text or token ids, is not a list of prompts. Raises InvalidRequest."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise wrong("prompts", prompts, FORMS)
    one = bool(prompts) and all(isinstance(item, int) for item in prompts)
    return [prompts] if one else list(prompts)  # type: ignore[list-item, arg-type]


def tokens_of(prompt: Prompt, tokenizer: Tokenizer) -> tuple[Token, ...]:
    """A prompt's tokens, at least one. Raises InvalidRequest."""
    if isinstance(prompt, str):
        tokens = tokenizer.tokenize(prompt, add_special=True, parse_special=True)
    elif isinstance(prompt, Iterable) and all(map(is_whole, prompt)):
        tokens = [int(token) for token in prompt]
    else:
        raise wrong("prompt", prompt, "text or a list of token ids")
    if not tokens:
        raise wrong("prompt", prompt, "text or a list of token ids with at least one token")
    return tuple(tokens)
