"""The forms a prompt may have, as token lists."""

from __future__ import annotations

from collections.abc import Collection

from corral.api.schemas.fields import Fields, type_name
from corral.errors import ExceedContext, InvalidRequest
from corral.ids import Token
from corral.ports import Tokenizer

Prompt = tuple[Token, ...]

_FORMS = (
    '"prompt" elements must be a string, a list of tokens, a list of mixed strings & tokens, '
    "a JSON object containing a prompt string, or a list of mixed strings & JSON objects."
)


def count_prompts(fields: Fields) -> int:
    """How many prompts ``read_prompts`` will read."""
    value = fields.value("prompt")
    return len(value) if isinstance(value, list) and not _is_tokens(value) else 1


def read_prompts(fields: Fields, tokenizer: Tokenizer, n_ctx: int) -> list[Prompt]:
    """One or more prompts, of less than ``n_ctx`` tokens each. Raises InvalidRequest."""
    value = fields.value("prompt")
    if value is None:
        raise InvalidRequest("key 'prompt' not found")
    if isinstance(value, list) and not _is_tokens(value):
        if not value:
            raise InvalidRequest('"prompt" must not be empty')
        return [read_prompt(item, tokenizer, n_ctx) for item in value]
    return [read_prompt(value, tokenizer, n_ctx)]


def check_fits(parts: Collection[object], tokenizer: Tokenizer, n_ctx: int) -> None:
    """Raises ExceedContext where it is clear without tokenizing that texts and token ids are too many.

    Tokenizing takes a second and 100 MB for each MiB.
    """
    n_least = sum(tokenizer.n_tokens_at_least(part) if isinstance(part, str) else 1 for part in parts)
    if n_least >= n_ctx:
        raise ExceedContext(n_least, n_ctx, or_more=any(isinstance(part, str) for part in parts))


def within(prompt: Prompt, n_ctx: int) -> Prompt:
    """The prompt, or ExceedContext: the engine would say the same, but not before the end of its step."""
    if len(prompt) >= n_ctx:
        raise ExceedContext(len(prompt), n_ctx)
    return prompt


def read_prompt(value: object, tokenizer: Tokenizer, n_ctx: int) -> Prompt:
    """One prompt: text, token ids, or both mixed. Raises InvalidRequest."""
    if isinstance(value, str):
        check_fits([value], tokenizer, n_ctx)
        return within(tuple(tokenizer.tokenize(value, add_special=True, parse_special=True)), n_ctx)
    if isinstance(value, list) and value and _is_tokens(value):
        check_fits(value, tokenizer, n_ctx)
        is_text = isinstance(value[0], str)
        return within(tuple(read_mixed(value, tokenizer, add_special=is_text, parse_special=True)), n_ctx)
    if isinstance(value, dict):
        return read_prompt(_text_of(value), tokenizer, n_ctx)
    raise _no_prompt(value)


def check_form(value: object) -> None:
    """Raises InvalidRequest for what ``read_prompt`` refuses whatever the model is."""
    if isinstance(value, dict):
        _text_of(value)
    elif isinstance(value, list) and value and _is_tokens(value):
        for item in value:
            if not isinstance(item, str):
                _token(item)
    elif not isinstance(value, str):
        raise _no_prompt(value)


def _no_prompt(value: object) -> InvalidRequest:
    return InvalidRequest('"prompt" must not be empty' if value == [] else _FORMS)


def read_mixed(
    value: list[object], tokenizer: Tokenizer, *, add_special: bool, parse_special: bool, name: str = ""
) -> list[Token]:
    """Strings and token ids in a row; a beginning-of-text token only before the first.

    ``name`` is the field's, if it is not the prompt. Raises InvalidRequest.
    """
    tokens: list[Token] = []
    for i, item in enumerate(value):
        if isinstance(item, str):
            first = add_special and i == 0
            tokens += tokenizer.tokenize(item, add_special=first, parse_special=parse_special)
        else:
            tokens.append(read_token(name, i, item, tokenizer) if name else _prompt_token(item, tokenizer))
    return tokens


def _token(value: object) -> Token:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(_FORMS)
    if value < 0:
        raise InvalidRequest(f"Prompt contains invalid tokens: {value} is less than 0")
    return value


def _prompt_token(value: object, tokenizer: Tokenizer) -> Token:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(_FORMS)
    if not 0 <= value < tokenizer.n_vocab:
        raise InvalidRequest(f"Prompt contains invalid tokens: {value} is not in [0, {tokenizer.n_vocab})")
    return value


def read_token(name: str, index: int, value: object, tokenizer: Tokenizer) -> Token:
    """A token id of the vocabulary: element ``index`` of the array ``name``. Raises InvalidRequest."""
    if isinstance(value, bool) or not isinstance(value, int):
        shown = value if isinstance(value, float) else type_name(value)
        raise InvalidRequest(f"Field '{name}': element {index} must be a token id, but is {shown}")
    if not 0 <= value < tokenizer.n_vocab:
        raise InvalidRequest(f"Field '{name}': element {index} is {value}, which is not in [0, {tokenizer.n_vocab})")
    return value


def _is_tokens(value: list[object]) -> bool:
    """Whether an array is one prompt: strings and at least one number, nothing else."""
    numbers = [isinstance(item, int | float) and not isinstance(item, bool) for item in value]
    return any(numbers) and all(number or isinstance(item, str) for number, item in zip(numbers, value, strict=True))


def _text_of(value: dict[str, object]) -> str:
    if value.get("multimodal_data"):
        raise InvalidRequest("Multimodal data provided, but model does not support multimodal requests.")
    text = value.get("prompt_string")
    if not isinstance(text, str):
        raise InvalidRequest(_FORMS)
    return text
