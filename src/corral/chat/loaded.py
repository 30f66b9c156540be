"""The chat model of loaded weights: by the templates that they bring, or by another in their place."""

from __future__ import annotations

from corral.chat.jobs import ChatModel
from corral.chat.template import CHATML, ChatTemplate
from corral.ids import Token
from corral.ports import Model

TOOL_TEMPLATE = "tokenizer.chat_template.tool_use"


def chat_model_of(model: Model, template: str | None = None) -> ChatModel:
    """``template``: in place of the model's. Raises LoadError if it does not compile."""
    info = model.info
    bos, eos = token_text(model, info.bos_token), token_text(model, info.eos_token)
    own_tools = None if template else info.meta.get(TOOL_TEMPLATE)
    chosen = ChatTemplate(template or info.chat_template or own_tools or CHATML, bos, eos)
    for_tools = ChatTemplate(own_tools, bos, eos) if own_tools else None
    return ChatModel(chosen, info, model.tokenizer, for_tools, model.new_matcher)


def token_text(model: Model, token: Token | None) -> str:
    """The text of a control token; "" for None."""
    if token is None:
        return ""
    return model.tokenizer.piece(token, special=True).decode("utf-8", "replace")
