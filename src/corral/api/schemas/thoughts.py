"""The fields that say how long a model may think, and whether that can be cut short."""

from __future__ import annotations

from collections.abc import Sequence

from corral.api.schemas.fields import Fields
from corral.config import ServerConfig
from corral.errors import InvalidRequest
from corral.ports import Tokenizer
from corral.tasks import ThoughtBudget

_TOKENS, _START, _ENDS = "reasoning_budget_tokens", "reasoning_budget_start_tag", "reasoning_budget_end_tags"
_TAGS = f"'{_START}' and '{_ENDS}'"


def read_chat_budget(fields: Fields, server: ServerConfig) -> int:
    """The most tokens of thoughts; -1 for any number."""
    n_tokens = fields.integer(_TOKENS, "thinking_budget_tokens", default=-1, low=-1)
    return server.reasoning_budget if n_tokens == -1 else n_tokens


def read_budget_message(fields: Fields, server: ServerConfig) -> str:
    """What comes before the mark that ends thoughts beyond the budget."""
    return fields.text("reasoning_budget_message", server.reasoning_budget_message)


def read_tagged_budget(fields: Fields, server: ServerConfig, tokenizer: Tokenizer) -> ThoughtBudget | None:
    """The budget of thoughts whose marks the body names, as for a prompt; None if nothing limits or ends them.

    Raises InvalidRequest for a budget without marks.
    """
    n_tokens = fields.integer(_TOKENS, default=server.reasoning_budget, low=-1)
    can_end = fields.boolean("reasoning_control")
    starts, ends = _words(fields.text(_START)), _ends(fields)
    if not starts or not ends:
        if fields.value(_TOKENS) is not None and n_tokens >= 0:
            raise InvalidRequest(f"Field '{_TOKENS}': say with {_TAGS} what thoughts are")
        return None
    if n_tokens < 0 and not can_end:
        return None
    forced = read_budget_message(fields, server), ends[0]
    return ThoughtBudget(
        n_tokens,
        starts,
        ends,
        tuple(token for text in forced for token in _tokens(tokenizer, text)),
        n_open=_n_open(fields.text("generation_prompt"), starts[0], ends, tokenizer),
        anywhere=True,
        can_end=can_end,
    )


def has_tags(fields: Fields) -> bool:
    """Whether the body itself names the marks of thoughts."""
    return fields.value(_START) is not None


def _ends(fields: Fields) -> tuple[str, ...]:
    return _words(*(fields.strings(_ENDS) or ())) or _words(fields.text("reasoning_budget_end_tag"))


def _words(*texts: str) -> tuple[str, ...]:
    return tuple(text for text in texts if text)


def _n_open(text: str, start: str, ends: Sequence[str], tokenizer: Tokenizer) -> int:
    """Tokens of the thoughts that the end of the prompt, ``text``, leaves open; -1 if none are."""
    _, mark, thoughts = text.rpartition(start)
    if not mark or any(end in thoughts for end in ends):
        return -1
    return len(_tokens(tokenizer, thoughts.strip()))


def _tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.tokenize(text, add_special=False, parse_special=True)
