"""The providers' rules for streams of named events, checked: shapes, what comes after what, ids, indexes, counts.

Shapes are those of the providers' own clients, which do not check them when they read.
"""

from __future__ import annotations

import json
import re
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

Json = dict[str, Any]

MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def check_message(reply: Json) -> Json:
    """A whole reply of Anthropic's Messages."""
    Message.model_validate(reply)
    return reply


def check_response(reply: Json) -> Json:
    """A whole reply of OpenAI's Responses."""
    Response.model_validate(reply)
    return reply


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


USAGE = {"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}


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
            if event["type"] not in ("ping", "error"):
                MESSAGE_EVENT.validate_python(event)
            getattr(self, f"_{event['type']}")(event)
        assert self._is_stopped or self.error is not None, "no message_stop"

    def _message_start(self, event: Json) -> None:
        assert not self.message, "two message_start"
        message = event["message"]
        assert message["id"].startswith("msg_") and message["type"] == "message" and message["role"] == "assistant"
        assert message["content"] == [] and message["stop_reason"] is None and message["stop_sequence"] is None
        assert message["usage"].keys() >= USAGE and message["usage"]["output_tokens"] == 0
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
        if block["type"] == "tool_use":
            assert re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]) and block["name"]
            assert block["id"] not in [other.get("id") for other in self.message["content"]]
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
        assert usage.keys() == before.keys() and usage["output_tokens"] >= bool(self.message["content"])
        assert all(usage[key] == before[key] for key in usage.keys() - {"output_tokens"})
        self.message |= {**event["delta"], "usage": usage}
        self._has_delta = True

    def _message_stop(self, _event: Json) -> None:
        assert self._has_delta
        reason = self.message["stop_reason"]
        assert reason in ("end_turn", "max_tokens", "stop_sequence", "tool_use")
        assert (reason == "stop_sequence") == (self.message["stop_sequence"] is not None)
        calls = [block for block in self.message["content"] if block["type"] == "tool_use"]
        assert (reason == "tool_use") == (bool(calls) and reason not in ("max_tokens", "stop_sequence"))
        if reason == "tool_use":
            assert all(isinstance(json.loads(call["raw"]), dict) for call in calls)
        self._is_stopped = True

    def _error(self, event: Json) -> None:
        assert event.keys() == {"type", "error"}
        assert event["error"]["type"].endswith("_error") and event["error"]["message"]
        self.error = event["error"]


class ResponseStream:
    """OpenAI's rules for Responses. ``response`` is the final object, ``items`` those that the events added up to."""

    ENDS = ("response.completed", "response.incomplete", "response.failed")

    def __init__(self, text: str) -> None:
        self.response: Json = {}
        self.items: list[Json] = []
        self._item: Json | None = None
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []
        self._has_part = self._is_text_done = self._is_part_done = False
        events = named_events(text)
        for event in events:
            RESPONSE_EVENT.validate_python(event)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        names = [event["type"] for event in events]
        assert names[:2] == ["response.created", "response.in_progress"] and names[-1] in self.ENDS
        self._first = [event["response"] for event in events[:2]]
        for response in self._first:
            assert response["status"] == "in_progress" and response["output"] == [] and response["usage"] is None
            assert response["id"].startswith("resp_") and response["created_at"] and response["model"]
        for event in events[2:-1]:
            getattr(self, "_" + event["type"].removeprefix("response.").replace(".", "_"))(event)
        self._end(events[-1])

    def _output_item_added(self, event: Json) -> None:
        assert self._item is None, "an item is added before the last one is done"
        assert event["output_index"] == len(self.items)
        item = event["item"]
        assert item["status"] == "in_progress"
        assert item["id"] not in [other["id"] for other in self.items]
        if item["type"] == "function_call":
            assert item["arguments"] == "" and item["name"] and item["call_id"]
            assert item["call_id"] not in [other.get("call_id") for other in self.items]
        else:
            assert item["content"] == []
        self._item, self._pieces, self._logprobs = item, [], []
        self._has_part = self._is_text_done = self._is_part_done = False

    def _placed(self, event: Json, *, has_content: bool = True) -> Json:
        assert self._item is not None
        assert (event["item_id"], event["output_index"]) == (self._item["id"], len(self.items))
        assert event.get("content_index") == (0 if has_content else None)
        return self._item

    def _content_part_added(self, event: Json) -> None:
        item = self._placed(event)
        assert not self._has_part and item["type"] in ("message", "reasoning") and event["part"]["text"] == ""
        self._has_part = True

    def _text_delta(self, event: Json, kind: str) -> None:
        has_content = kind != "function_call"
        item = self._placed(event, has_content=has_content)
        assert item["type"] == kind and not self._is_text_done and event["delta"]
        assert self._has_part == has_content
        self._pieces.append(event["delta"])

    def _output_text_delta(self, event: Json) -> None:
        self._text_delta(event, "message")
        self._logprobs += event["logprobs"]

    def _reasoning_text_delta(self, event: Json) -> None:
        self._text_delta(event, "reasoning")

    def _function_call_arguments_delta(self, event: Json) -> None:
        self._text_delta(event, "function_call")

    def _text_is_done(self, event: Json, key: str) -> None:
        self._placed(event, has_content=key == "text")
        assert event[key] == "".join(self._pieces)
        self._is_text_done = True

    def _output_text_done(self, event: Json) -> None:
        self._text_is_done(event, "text")
        assert event["logprobs"] == self._logprobs

    def _reasoning_text_done(self, event: Json) -> None:
        self._text_is_done(event, "text")

    def _function_call_arguments_done(self, event: Json) -> None:
        self._text_is_done(event, "arguments")
        assert self._item is not None and event["name"] == self._item["name"]

    def _content_part_done(self, event: Json) -> None:
        self._placed(event)
        part = event["part"]
        assert self._is_text_done and part["text"] == "".join(self._pieces)
        assert [entry["token"] for entry in part.get("logprobs", [])] == [entry["token"] for entry in self._logprobs]
        self._is_part_done = True

    def _output_item_done(self, event: Json) -> None:
        item, started = event["item"], self._item
        assert started is not None and self._is_text_done and event["output_index"] == len(self.items)
        assert self._is_part_done == self._has_part
        text = "".join(self._pieces)
        same = ("id", "type", "call_id", "name", "role")
        assert [item.get(key) for key in same] == [started.get(key) for key in same]
        assert item["status"] in ("completed", "incomplete")
        assert (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]) == text
        self.items.append(item)
        self._item = None

    def _end(self, event: Json) -> None:
        response = self.response = event["response"]
        assert response["status"] == event["type"].removeprefix("response.")
        assert all(response[key] == first[key] for first in self._first for key in ("id", "created_at", "model"))
        if response["status"] == "failed":
            assert response["error"]["code"] and response["error"]["message"]
            self._end_of_failed(response)
            return
        assert self._item is None and response["output"] == self.items
        assert response["error"] is None
        is_cut = response["status"] == "incomplete"
        assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if is_cut else None)
        assert all(item["status"] == "completed" for item in self.items[: -1 if is_cut else None])
        if is_cut and self.items:
            assert self.items[-1]["status"] == "incomplete"
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
        assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]

    def _end_of_failed(self, response: Json) -> None:
        """The items that were done, and the one that was not, as far as it came."""
        n_done = len(self.items)
        assert response["output"][:n_done] == self.items and response["usage"] is None
        open_items = response["output"][n_done:]
        assert [item["id"] for item in open_items] == ([self._item["id"]] if self._item else [])
        for item in open_items:
            assert item["status"] == "incomplete"
            assert (item["arguments"] if "arguments" in item else item["content"][0]["text"]) == "".join(self._pieces)
