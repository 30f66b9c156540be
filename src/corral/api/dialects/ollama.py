"""Ollama's formats: POST /api/chat and /api/generate. A stream is a JSON object on each line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import orjson

from corral.api.dialects.blocks import Block, BlockReader, Closed, Grew, Step, call_input, read_blocks
from corral.api.dialects.parts import FINISH_REASONS, Json, probs_json, shown_probs
from corral.api.errors import ollama_error_body
from corral.api.job import Job
from corral.chat.jobs import Rendered
from corral.errors import CorralError
from corral.events import Chunk, Event, Finished, Timings, TokenProbs

Form = Literal["chat", "generate"]
_NS_PER_MS = 1_000_000


class OllamaDialect:
    """Lines with a piece of text, of thoughts or a whole call each; the last one has the counts.

    ``rendered`` None: the reply is nothing but text.
    """

    media_type = "application/x-ndjson"

    def __init__(self, job: Job, rendered: Rendered | None, form: Form) -> None:
        self._job = job
        self._rendered = rendered
        self._form = form
        self._reader = BlockReader(rendered)
        self._untold: list[TokenProbs] = []

    def ping(self) -> bytes:
        """Nothing: every line is read as an object."""
        return b""

    def fail(self, error: CorralError) -> bytes:
        return ollama_error_body(error) + b"\n"

    def feed(self, events: list[Event]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def tail(self) -> bytes:
        return b""

    def whole(self, results: list[Finished]) -> object:
        (result,) = results
        reply = _whole_reply(read_blocks(self._rendered, result))
        self._untold = list(shown_probs(result, self._job.tokenizer))
        return self._object({**self._shaped(reply), **self._logprobs(), **_end(result, self._job.n_prompt)})

    def _event(self, event: Event) -> bytes:
        if type(event) is Chunk:
            self._untold += event.probs
            return self._told(self._reader.feed(event.text))
        if type(event) is Finished:
            rest = self._told(self._reader.finish(event.reason))
            end = _end(event, self._job.n_prompt)
            return rest + self._line({**self._shaped({"content": ""}), **self._logprobs(), **end})
        return b""

    def _told(self, steps: list[Step]) -> bytes:
        replies = [reply for reply in map(_step_reply, steps) if reply]
        return b"".join([self._line({**self._shaped(reply), **self._logprobs(), "done": False}) for reply in replies])

    def _shaped(self, reply: Json) -> Json:
        if self._form == "chat":
            return {"message": {"role": "assistant", **reply}}
        rest = {key: value for key, value in reply.items() if key != "content"}
        return {"response": reply["content"], **rest}

    def _logprobs(self) -> Json:
        """Those of tokens whose text came since the last line."""
        if not self._untold:
            return {}
        told, self._untold = self._untold, []
        return {"logprobs": probs_json(told, self._job.tokenizer)}

    def _line(self, body: Json) -> bytes:
        return orjson.dumps(self._object(body)) + b"\n"

    def _object(self, body: Json) -> Json:
        return {"model": self._job.model, "created_at": now(), **body}


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def durations(t: Timings, n_prompt: int) -> Json:
    """Nanoseconds; the whole time includes that in the queue."""
    total_ms = t.queue_ms + t.prompt_ms + t.predicted_ms
    return {
        "total_duration": int(total_ms * _NS_PER_MS),
        "load_duration": 0,
        "prompt_eval_count": n_prompt,
        "prompt_eval_duration": int(t.prompt_ms * _NS_PER_MS),
        "eval_count": t.n_predicted,
        "eval_duration": int(t.predicted_ms * _NS_PER_MS),
    }


def _end(result: Finished, n_prompt: int) -> Json:
    return {"done": True, "done_reason": FINISH_REASONS[result.reason], **durations(result.timings, n_prompt)}


def _step_reply(step: Step) -> Json | None:
    match step:
        case Grew(block, text) if block.kind == "text":
            return {"content": text}
        case Grew(block, text) if block.kind == "thoughts":
            return {"content": "", "thinking": text}
        case Closed(block) if block.kind == "call" and (call := _call_json(block)):
            return {"content": "", "tool_calls": [call]}
    return None


def _whole_reply(blocks: list[Block]) -> Json:
    reply: Json = {"content": "".join(block.text for block in blocks if block.kind == "text")}
    if thoughts := "".join(block.text for block in blocks if block.kind == "thoughts"):
        reply["thinking"] = thoughts
    if calls := [call for block in blocks if block.kind == "call" and (call := _call_json(block))]:
        reply["tool_calls"] = calls
    return reply


def _call_json(block: Block) -> Json | None:
    """None for a call whose arguments are no object, as when they were cut: clients would call it as it is."""
    arguments = call_input(block)
    if arguments is None:
        return None
    return {"id": block.id, "function": {"name": block.name, "arguments": arguments}}
