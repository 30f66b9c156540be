"""Text to tokens and back, and what a chat template makes of messages."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from corral.api.routes.body import answer_json, json_response, read_body
from corral.api.schemas.chat import count_tokens, render_chat
from corral.api.schemas.fields import Fields, wrong_type
from corral.api.schemas.prompt import read_mixed, read_token
from corral.api.service import service_of
from corral.ids import Token
from corral.ports import Tokenizer


async def tokenize(request: Request) -> Response:
    """Token ids of a text; with ``with_pieces`` the text of each."""
    tokenizer = service_of(request).runtime.model.tokenizer
    return await answer_json(request, lambda fields: {"tokens": _tokenize(fields, tokenizer)})


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    tokenizer = service_of(request).runtime.model.tokenizer
    return await answer_json(request, lambda fields: {"content": _detokenize(fields, tokenizer)})


async def apply_template(request: Request) -> Response:
    """The prompt that a chat request would become."""
    service = service_of(request)
    return await answer_json(request, lambda fields: {"prompt": render_chat(fields, service)[1].text})


async def input_tokens(request: Request) -> Response:
    """How many tokens a chat request's prompt has."""
    service = service_of(request)
    n_tokens = await read_body(request, lambda fields: count_tokens(fields, service))
    return json_response({"input_tokens": n_tokens, "object": "response.input_tokens"})


def _tokenize(fields: Fields, tokenizer: Tokenizer) -> list[object]:
    content = fields.value("content")
    add_special = fields.boolean("add_special")
    parse_special = fields.boolean("parse_special", True)
    if content is None:
        return []
    if not isinstance(content, str | list):
        raise wrong_type("content", "string or array", content)
    parts = [content] if isinstance(content, str) else content
    tokens = read_mixed(parts, tokenizer, add_special=add_special, parse_special=parse_special, name="content")
    if not fields.boolean("with_pieces"):
        return [*tokens]
    return [{"id": token, "piece": _piece(token, tokenizer)} for token in tokens]


def _piece(token: Token, tokenizer: Tokenizer) -> str | list[int]:
    piece = tokenizer.piece(token, special=True)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _detokenize(fields: Fields, tokenizer: Tokenizer) -> str:
    tokens = fields.array("tokens") or []
    checked = [read_token("tokens", i, token, tokenizer) for i, token in enumerate(tokens)]
    return tokenizer.detokenize(checked, special=True)
