"""The wire formats the bench speaks: native ``/completion``, OpenAI's ``/v1/completions`` and chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, str]
Prompt = str | Sequence[Message]
"""Text, or the messages of a chat, which wires without chat send as text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of a stream.

    ``index`` is the choice it belongs to, None for counts of the whole request. Counts are None where the event does
    not say them.
    """

    index: int | None
    text: str = ""
    end: bool = False
    n_tokens: int | None = None
    n_prompt: int | None = None
    n_cached: int | None = None


class Wire(Protocol):
    """How to ask for a stream and how to read its events."""

    path: str

    def body(self, prompt: Prompt, n_predict: int, n: int, options: Mapping[str, object]) -> dict[str, object]: ...

    def read(self, event: Mapping[str, Any]) -> list[Piece]: ...


class Native:
    """llama-server's own route."""

    path = "/completion"

    def body(self, prompt: Prompt, n_predict: int, n: int, options: Mapping[str, object]) -> dict[str, object]:
        fixed = {"prompt": _text(prompt), "n_predict": n_predict, "stream": True}
        usual: dict[str, object] = {"ignore_eos": True, "temperature": 0, "cache_prompt": True}
        return {**fixed, **usual, **({"n_cmpl": n} if n > 1 else {}), **options}

    def read(self, event: Mapping[str, Any]) -> list[Piece]:
        index, text = event.get("index", 0), event.get("content") or ""
        if not event.get("stop"):
            return [Piece(index, text)]
        n_cached = (event.get("timings") or {}).get("cache_n")
        return [Piece(index, text, True, event.get("tokens_predicted"), event.get("tokens_evaluated"), n_cached)]


class OpenAi:
    """The route that nearly every server has. ``ignore_eos`` is an extension; servers without it may stop early."""

    path = "/v1/completions"

    def body(self, prompt: Prompt, n_predict: int, n: int, options: Mapping[str, object]) -> dict[str, object]:
        fixed = {"model": "m", **self._prompt(prompt), "max_tokens": n_predict, "stream": True}
        usual: dict[str, object] = {"ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True}}
        return {**fixed, **usual, **({"n": n} if n > 1 else {}), **options}

    def _prompt(self, prompt: Prompt) -> dict[str, object]:
        return {"prompt": _text(prompt)}

    def _piece_text(self, choice: Mapping[str, Any]) -> str:
        return choice.get("text") or ""

    def read(self, event: Mapping[str, Any]) -> list[Piece]:
        pieces = [
            Piece(choice.get("index", 0), self._piece_text(choice), choice.get("finish_reason") is not None)
            for choice in event.get("choices") or ()
        ]
        usage = event.get("usage")
        return [*pieces, self._usage(usage)] if usage else pieces

    def _usage(self, usage: Mapping[str, Any]) -> Piece:
        n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Piece(None, "", False, usage.get("completion_tokens"), usage.get("prompt_tokens"), n_cached)


class Chat(OpenAi):
    """OpenAI's chat route; a text is one question."""

    path = "/v1/chat/completions"

    def _prompt(self, prompt: Prompt) -> dict[str, object]:
        return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)}

    def _piece_text(self, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta") or {}
        return (delta.get("reasoning_content") or "") + (delta.get("content") or "")


def _text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt) + "\nassistant:"


WIRES: Mapping[str, Wire] = {"native": Native(), "oai": OpenAi(), "chat": Chat()}
