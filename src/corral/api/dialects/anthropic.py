"""Anthropic's format: POST /v1/messages."""

from __future__ import annotations

from corral.api.dialects.blocks import Block, BlockReader, Closed, Grew, Opened, Step, call_input, read_blocks
from corral.api.dialects.parts import Json
from corral.api.dialects.sse import COMMENT, ServerSentEvents, named_event
from corral.api.errors import anthropic_error_body
from corral.api.job import Job
from corral.chat.jobs import Rendered
from corral.errors import CorralError
from corral.events import Chunk, Event, Finished, Started, StopReason

_STOP_REASONS = {
    StopReason.EOS: "end_turn",
    StopReason.WORD: "stop_sequence",
    StopReason.LIMIT: "max_tokens",
    StopReason.NONE: "end_turn",
}


class AnthropicDialect(ServerSentEvents):
    """``message`` objects and their events. A content block opens, grows and closes before the next one opens."""

    def __init__(self, job: Job, rendered: Rendered) -> None:
        self._job = job
        self._rendered = rendered
        self._reader = BlockReader(rendered)
        self._id = f"msg_{job.id.rpartition('-')[2]}"
        self._is_begun = False

    def ping(self) -> bytes:
        """A comment until the message has begun: that must be the first event."""
        return named_event("ping", {}) if self._is_begun else COMMENT

    def fail(self, error: CorralError) -> bytes:
        return b"event: error\ndata: %b\n\n" % anthropic_error_body(error)

    def feed(self, events: list[Event]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def tail(self) -> bytes:
        return named_event("message_stop", {})

    def whole(self, results: list[Finished]) -> object:
        (result,) = results
        blocks = read_blocks(self._rendered, result)
        usage = self._usage(result.timings.n_cached, result.timings.n_predicted)
        return {**self._message([_block_json(block) for block in blocks], usage), **_stop(result, blocks)}

    def _event(self, event: Event) -> bytes:
        if type(event) is Chunk:
            return self._told(self._reader.feed(event.text))
        if type(event) is Started:
            return self._begin(event.n_cached)
        if type(event) is Finished:
            return self._finish(event)
        return b""

    def _begin(self, n_cached: int) -> bytes:
        if self._is_begun:
            return b""
        self._is_begun = True
        message = self._message([], self._usage(n_cached, 0))
        return named_event("message_start", {"message": message}) + self.ping()

    def _finish(self, result: Finished) -> bytes:
        rest = self._begin(result.timings.n_cached) + self._told(self._reader.finish(result.reason))
        usage = self._usage(result.timings.n_cached, result.timings.n_predicted)
        return rest + named_event("message_delta", {"delta": _stop(result, self._reader.blocks), "usage": usage})

    def _told(self, steps: list[Step]) -> bytes:
        return b"".join([_step_event(step) for step in steps])

    def _message(self, content: list[Json], usage: Json) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._job.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _usage(self, n_cached: int, n_output: int) -> Json:
        """``input_tokens`` are those that had to be computed."""
        return {
            "input_tokens": self._job.n_prompt - n_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": n_cached,
            "output_tokens": n_output,
        }


def _stop(result: Finished, blocks: list[Block]) -> Json:
    reason = _STOP_REASONS[result.reason]
    if reason == "end_turn" and any(block.kind == "call" for block in blocks):
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": result.stopping_word or None}


def _step_event(step: Step) -> bytes:
    match step:
        case Opened(block):
            return named_event("content_block_start", {"index": block.index, "content_block": _empty_block(block)})
        case Grew(block, text):
            return _delta_event(block, _delta(block, text))
        case Closed(block):
            signature = _delta_event(block, {"type": "signature_delta", "signature": ""})
            before = signature if block.kind == "thoughts" else b""
            return before + named_event("content_block_stop", {"index": block.index})


def _delta_event(block: Block, delta: Json) -> bytes:
    return named_event("content_block_delta", {"index": block.index, "delta": delta})


def _delta(block: Block, text: str) -> Json:
    match block.kind:
        case "thoughts":
            return {"type": "thinking_delta", "thinking": text}
        case "text":
            return {"type": "text_delta", "text": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}


def _empty_block(block: Block) -> Json:
    match block.kind:
        case "thoughts":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            return {"type": "text", "text": ""}
        case "call":
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}


def _block_json(block: Block) -> Json:
    match block.kind:
        case "thoughts":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        case "text":
            return {"type": "text", "text": block.text}
        case "call":
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(block)}


def _input(block: Block) -> Json:
    """Arguments that are no object, as when they were cut, are kept as text."""
    arguments = call_input(block)
    return {"arguments": block.text} if arguments is None else arguments
