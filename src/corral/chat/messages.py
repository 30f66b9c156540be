"""The messages of a chat request: checked, and brought into the form templates understand."""

from __future__ import annotations

from dataclasses import dataclass

from corral.chat.template import ChatTemplate, Message
from corral.errors import InvalidRequest

_MEDIA = {"image_url": "image", "input_audio": "audio", "input_video": "video", "video_url": "video"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as a template takes them. ``prefix`` is the text of the assistant that the reply continues."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    prefix: str = ""

    def render(self, template: ChatTemplate, kwargs: dict[str, object]) -> str:
        """The prompt, up to where the model goes on. Raises InvalidRequest."""
        text = template.render(self.messages, add_generation_prompt=self.add_generation_prompt, kwargs=kwargs)
        return text + self.prefix


def read_messages(value: object) -> list[Message]:
    """The list of messages, each with its content as text. Raises InvalidRequest."""
    if value is None:
        raise InvalidRequest("'messages' is required")
    if not isinstance(value, list):
        raise InvalidRequest("Expected 'messages' to be an array")
    if not value:
        raise InvalidRequest("'messages' must not be empty")
    return [_read_message(message) for message in value]


def read_conversation(
    messages: list[Message], *, prefill: bool, continue_final: bool, add_generation_prompt: bool
) -> Conversation:
    """Decide whether the last message is continued. ``prefill`` does so whenever it is the assistant's.

    Raises InvalidRequest.
    """
    last = messages[-1]
    if continue_final and add_generation_prompt:
        raise InvalidRequest("Cannot set both add_generation_prompt and continue_final_message to true.")
    if continue_final and last["role"] != "assistant":
        raise InvalidRequest("continue_final_message needs a last message with role 'assistant'.")
    if last["role"] != "assistant" or not (prefill or continue_final):
        return Conversation(tuple(messages), add_generation_prompt)
    if len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise InvalidRequest("Cannot have 2 or more assistant messages at the end of the list.")
    if last.get("tool_calls"):
        raise InvalidRequest("A message with tool_calls cannot be continued.")
    return Conversation(tuple(messages[:-1]), True, str(last["content"]))


def _read_message(value: object) -> Message:
    if not isinstance(value, dict):
        raise InvalidRequest("Failed to parse messages: each message must be an object")
    role = value.get("role")
    if not isinstance(role, str):
        raise InvalidRequest("Failed to parse messages: each message needs a 'role'")
    content = value.get("content")
    if content is None and role != "assistant":
        raise InvalidRequest("All non-assistant messages must contain 'content'")
    if content is None and not (value.get("tool_calls") or value.get("reasoning_content")):
        raise InvalidRequest("Assistant message must contain either 'content' or 'tool_calls'!")
    joint = "\n\n" if role == "assistant" else "\n"
    return {**value, "role": "system" if role == "developer" else role, "content": _text(content, joint)}


def _text(content: object, joint: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise InvalidRequest("Expected 'content' to be a string or an array")
    return joint.join(_part(part) for part in content)


def _part(part: object) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest("Failed to parse messages: each part of 'content' must be an object")
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        raise InvalidRequest(
            f"{_MEDIA[kind]} input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
        )
    text = part.get("text")
    if kind not in ("text", "input_text", "output_text"):
        raise InvalidRequest("unsupported content[].type")
    if not isinstance(text, str):
        raise InvalidRequest("Failed to parse messages: a text part needs 'text'")
    return text
