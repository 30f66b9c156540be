"""Fields of OpenAI's that ask for what is not there: refused, for the answer would be another than was asked for."""

from __future__ import annotations

from corral.api.schemas.fields import INT_MAX, Fields
from corral.errors import InvalidRequest


def refuse_in_completion(fields: Fields, n: int) -> None:
    """Of POST /v1/completions with ``n`` replies to each prompt. Raises InvalidRequest."""
    if fields.text("suffix"):
        raise InvalidRequest("Field 'suffix': a text can only be continued here, not filled in")
    best_of = fields.integer("best_of", default=n, low=1, high=INT_MAX)
    if best_of > n:
        raise InvalidRequest(
            f"Field 'best_of': {best_of} is more than n ({n}), and the best of several is not chosen here: "
            f"ask for n = {best_of} with logprobs"
        )


def refuse_in_chat(fields: Fields) -> None:
    """Of chats. Raises InvalidRequest."""
    if fields.array("functions"):
        raise InvalidRequest("Field 'functions': this older form is not supported; use 'tools'")
    if "audio" in (fields.strings("modalities") or ()):
        raise InvalidRequest("Field 'modalities': replies are text, not audio")
    if fields.value("web_search_options") is not None:
        raise InvalidRequest("Field 'web_search_options': nothing is searched here; offer a search among 'tools'")
