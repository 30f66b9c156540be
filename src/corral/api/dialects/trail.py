"""Which tokens a block's text is made of, so that their log-probabilities stand with it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from corral.api.dialects.blocks import BlockReader, Grew, Step
from corral.api.dialects.parts import Json, text_logprob
from corral.events import Chunk, Finished, StopReason, TokenProbs
from corral.ports import Tokenizer
from corral.tasks import Task


@dataclass(frozen=True, slots=True)
class _Placed:
    """A token that lies in characters ``start`` to ``end`` of what the model wrote."""

    probs: TokenProbs
    start: int
    end: int


class Trail:
    """The tokens of a reply in their order, until it is known which block their text belongs to."""

    def __init__(self, task: Task, tokenizer: Tokenizer) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._untold: deque[_Placed] = deque()
        self._n_chars = 0

    def add(self, event: Chunk | Finished) -> list[str]:
        """More text and its tokens. Gives the text token by token: a character counts to the token that completes it.

        Tokens without text, as most control tokens, are left out; so are those of a stop string, which was cut off.
        """
        data = event.text.encode()
        n_begun = [0, *itertools.accumulate(int((byte & 0xC0) != 0x80) for byte in data)]
        texts, begin, at = [], 0, 0
        for entry in event.probs:
            end = min(begin + len(self._piece(entry)), len(data))
            is_cut = end < len(data) and n_begun[end + 1] == n_begun[end]
            n_whole = n_begun[end] - is_cut
            if end > begin:
                self._untold.append(_Placed(entry, self._n_chars + at, self._n_chars + n_begun[end]))
            texts.append(event.text[at:n_whole])
            begin, at = end, n_whole
        self._n_chars += len(event.text)
        return [text for text in (*texts, event.text[at:]) if text]

    def take(self, start: int, end: int) -> list[TokenProbs]:
        """The tokens from ``start`` to ``end``. Earlier ones, which are of marks and the like, are dropped."""
        taken = []
        while self._untold and self._untold[0].start < end:
            placed = self._untold.popleft()
            if placed.end > start:
                taken.append(placed.probs)
        return taken

    def _piece(self, entry: TokenProbs) -> bytes:
        is_shown = self._task.special or entry.token in self._task.preserved_tokens
        return self._tokenizer.piece(entry.token, special=is_shown)


class LogprobReader:
    """Feeds a reader of blocks so that every piece of a block of text comes with the log-probabilities of its tokens.

    ``n_top``: how many of the likeliest tokens are shown in each place.
    """

    def __init__(self, reader: BlockReader, task: Task, tokenizer: Tokenizer, n_top: int) -> None:
        self._reader = reader
        self._trail = Trail(task, tokenizer)
        self._tokenizer = tokenizer
        self._n_top = n_top

    def feed(self, event: Chunk | Finished) -> list[Step]:
        return self._with_logprobs([step for text in self._trail.add(event) for step in self._reader.feed(text)])

    def finish(self, reason: StopReason) -> list[Step]:
        return self._with_logprobs(self._reader.finish(reason))

    def _with_logprobs(self, steps: Sequence[Step]) -> list[Step]:
        return [self._told(step) if isinstance(step, Grew) and step.block.kind == "text" else step for step in steps]

    def _told(self, step: Grew) -> Grew:
        probs = self._trail.take(step.start, step.end)
        told: list[Json] = [text_logprob(entry, self._tokenizer, self._n_top) for entry in probs]
        step.block.logprobs.extend(told)
        return replace(step, logprobs=tuple(told))
