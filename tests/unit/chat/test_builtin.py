"""Templates by name print what libllama's of the same name print."""

from __future__ import annotations

import ctypes

import llama_cpp.llama_cpp as lib
import pytest

from corral.chat.adapt import Message
from corral.chat.builtin import BUILTIN
from corral.chat.template import ChatTemplate

SYSTEM: Message = {"role": "system", "content": " Be 'kind'. "}
ASK: Message = {"role": "user", "content": "Why?\n"}
ANSWER: Message = {"role": "assistant", "content": " So.\n"}
TALKS: list[list[Message]] = [[ASK], [SYSTEM, ASK], [ASK, ANSWER, ASK], [SYSTEM, ASK, ANSWER, ASK, ANSWER]]


def native(name: str, messages: list[Message], add_generation_prompt: bool) -> str:
    chat = (lib.llama_chat_message * len(messages))()
    for entry, message in zip(chat, messages, strict=True):
        entry.role, entry.content = str(message["role"]).encode(), str(message["content"]).encode()
    buffer = ctypes.create_string_buffer(8192)
    n = lib.llama_chat_apply_template(name.encode(), chat, len(messages), add_generation_prompt, buffer, len(buffer))
    assert n >= 0
    return buffer.raw[:n].decode()


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_the_same_text(name: str, add_generation_prompt: bool) -> None:
    template = ChatTemplate(name, "<s>", "</s>")
    # libllama drops system texts for YandexGPT; here they go to the next message.
    talks = [talk for talk in TALKS if name != "yandex" or SYSTEM not in talk]
    for talk in talks:
        shown = template.render(talk, add_generation_prompt=add_generation_prompt)
        assert shown == native(name, talk, add_generation_prompt)


def test_all_names_of_libllama_are_known() -> None:
    names = (ctypes.c_char_p * 200)()
    n = lib.llama_chat_builtin_templates(names, len(names))
    assert {name.decode() for name in names[:n] if name} == set(BUILTIN)
