"""Where in a rendered conversation the last question and the answer begin: there other turns will part from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.chat.adapt import Message
from corral.errors import InvalidRequest
from corral.ids import Token
from corral.ports import Tokenizer


def text_borders(text: str, messages: Sequence[Message], render: Callable[[Sequence[Message]], str]) -> list[int]:
    """Positions in ``text``, in characters, ascending.

    Found by rendering less of the conversation (without a generation prompt) and comparing; a template that refuses to
    render less gives none.
    """
    n_answered = max((i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    if n_answered == 0:
        n_answered = sum(message["role"] == "system" for message in messages)
    shorter = [messages[:n_answered]] if 0 < n_answered < len(messages) else []
    found: set[int] = set()
    for part in (*shorter, messages):
        try:
            rendered = render(part)
        except InvalidRequest:
            continue
        found.add(common_prefix(text, rendered))
    return sorted(n for n in found if 0 < n < len(text))


def common_prefix(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    lo, hi = 0, min(len(a), len(b))
    while lo < hi:
        mid = (lo + hi + 1) // 2
        if a[lo:mid] == b[lo:mid]:
            lo = mid
        else:
            hi = mid - 1
    return lo


def token_borders(
    prompt: Sequence[Token], text: str, positions: Sequence[int], tokenizer: Tokenizer
) -> tuple[int, ...]:
    """The tokens of ``prompt``, made from ``text``, that lie wholly before each position, as counts."""
    if not positions:
        return ()
    ends = [len(text[:n].encode("utf-8", "replace")) for n in positions]
    n_bytes = [len(tokenizer.piece(token, special=True)) for token in prompt]
    n_extra = max(0, sum(n_bytes) - len(text.encode("utf-8", "replace")))  # what tokenizing put in front
    found: list[int] = []
    at = 0
    for i, n in enumerate(n_bytes):
        while len(found) < len(ends) and at + n > ends[len(found)] + n_extra:
            found.append(i)
        at += n
    return tuple(found)
