"""The providers' rules for streams of named events, checked: what comes after what, ids, indexes, counts."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def named_events(text: str) -> list[Json]:
    """The data of each event. Fails unless every event has a name, and its data the same as ``type``."""
    assert text.endswith("\n\n"), "the last event is not ended"
    told = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        told.append(json.loads(data.removeprefix("data: ")))
        assert told[-1]["type"] == name.removeprefix("event: ")
    return told


class MessageStream:
    """Anthropic's rules. ``message`` is put together from the events, ``error`` is that of a stream that failed."""

    def __init__(self, text: str) -> None:
        self.message: Json = {}
        self.error: Json | None = None
        self.n_pings = 0
        self._open: int | None = None
        self._pieces: list[str] = []
        self._is_signed = False
        self._has_delta = False
        self._is_stopped = False
        for event in named_events(text):
            assert not self._is_stopped and self.error is None, f"{event['type']} after the end"
            getattr(self, f"_{event['type']}")(event)
        assert self._is_stopped or self.error is not None, "no message_stop"

    def _message_start(self, event: Json) -> None:
        assert not self.message, "two message_start"
        message = event["message"]
        assert message["id"].startswith("msg_") and message["type"] == "message" and message["role"] == "assistant"
        assert message["content"] == [] and message["stop_reason"] is None and message["stop_sequence"] is None
        assert {"input_tokens", "output_tokens", "cache_read_input_tokens"} <= message["usage"].keys()
        self.message = message

    def _ping(self, _event: Json) -> None:
        assert self.message, "ping before message_start"
        self.n_pings += 1

    def _content_block_start(self, event: Json) -> None:
        assert self.message and self._open is None, "a block begins inside another"
        assert event["index"] == len(self.message["content"])
        block = event["content_block"]
        empty: Json = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}, "id": block.get("id"), "name": block.get("name")},
        }[block["type"]]
        assert block == {"type": block["type"], **empty}
        self.message["content"].append(block)
        self._open, self._pieces, self._is_signed = event["index"], [], False

    def _content_block_delta(self, event: Json) -> None:
        assert event["index"] == self._open, "a delta for a block that is not open"
        block, delta = self.message["content"][-1], event["delta"]
        assert not self._is_signed, "a delta after the signature"
        if delta["type"] == "signature_delta":
            assert block["type"] == "thinking"
            self._is_signed = True
            return
        key, wanted = {
            "text_delta": ("text", "text"),
            "thinking_delta": ("thinking", "thinking"),
            "input_json_delta": ("partial_json", "tool_use"),
        }[delta["type"]]
        assert block["type"] == wanted and delta[key], "empty, or of another kind"
        self._pieces.append(delta[key])

    def _content_block_stop(self, event: Json) -> None:
        assert event["index"] == self._open
        block, text = self.message["content"][-1], "".join(self._pieces)
        if block["type"] == "tool_use":
            block["raw"] = text
        else:
            assert text, "an empty block"
            block[block["type"]] = text
        assert self._is_signed == (block["type"] == "thinking"), "thoughts are signed before they stop"
        self._open = None

    def _message_delta(self, event: Json) -> None:
        assert self._open is None and not self._has_delta
        assert event["delta"].keys() == {"stop_reason", "stop_sequence"}
        usage, before = event["usage"], self.message["usage"]
        assert usage["output_tokens"] >= before["output_tokens"]
        for key in ("input_tokens", "cache_read_input_tokens"):
            assert usage[key] == before[key]
        self.message |= {**event["delta"], "usage": usage}
        self._has_delta = True

    def _message_stop(self, _event: Json) -> None:
        assert self._has_delta
        reason = self.message["stop_reason"]
        assert reason in ("end_turn", "max_tokens", "stop_sequence", "tool_use")
        assert (reason == "stop_sequence") == (self.message["stop_sequence"] is not None)
        if reason == "tool_use":
            assert any(block["type"] == "tool_use" for block in self.message["content"])
        self._is_stopped = True

    def _error(self, event: Json) -> None:
        assert event["error"]["type"].endswith("_error") and event["error"]["message"]
        self.error = event["error"]
