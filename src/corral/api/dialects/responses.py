"""OpenAI's Responses format: POST /v1/responses."""

from __future__ import annotations

import time
from collections.abc import Iterable

from corral.api.dialects.blocks import Block, BlockReader, Closed, Grew, Opened, Step
from corral.api.dialects.items import empty_part, item_id, item_json, part_json
from corral.api.dialects.parts import Json, timings_json
from corral.api.dialects.sse import ServerSentEvents, named_event
from corral.api.dialects.trail import LogprobReader
from corral.api.job import Job
from corral.chat.jobs import Rendered
from corral.errors import CorralError, InvalidRequest
from corral.events import Chunk, Event, Finished, Started, StopReason


class ResponsesDialect(ServerSentEvents):
    """``response`` objects and their events, numbered. An item is done before the next one is added.

    ``repeated`` is what of the request the reply shows, ``n_top`` how many of the likeliest tokens it shows in each
    place of its texts, None for no log-probabilities at all. ``reply`` is the final object, once it is known.
    """

    def __init__(self, job: Job, rendered: Rendered, repeated: Json, n_top: int | None = None) -> None:
        self._job = job
        self._reader = BlockReader(rendered)
        self._logprobs: LogprobReader | None = None
        if n_top is not None:
            self._logprobs = LogprobReader(self._reader, job.tasks[0], job.tokenizer, n_top)
        self._key = job.id.rpartition("-")[2]
        sampling = job.params.sampling
        self._repeated = {**repeated, "temperature": sampling.temperature, "top_p": sampling.top_p}
        self._n_events = 0
        self._timings: Json = {}
        self.reply: Json = {}

    @property
    def id(self) -> str:
        return f"resp_{self._key}"

    def feed(self, events: list[Event]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def tail(self) -> bytes:
        return self._tell(f"response.{self.reply['status']}", {"response": self.reply, "timings": self._timings})

    def fail(self, error: CorralError) -> bytes:
        code = "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
        failed = self._response("failed", self._output("incomplete")) | {"error": {"code": code, "message": error.told}}
        return self._begin() + self._tell("response.failed", {"response": failed})

    def whole(self, results: list[Finished]) -> object:
        (result,) = results
        self._feed(result)
        self._finish(result.reason)
        self._end(result)
        return {**self.reply, "timings": self._timings}

    def _event(self, event: Event) -> bytes:
        if type(event) is Chunk:
            return self._told(self._feed(event), "completed")
        if type(event) is Started:
            return self._begin()
        if type(event) is Finished:
            status = _status(event)
            rest = self._begin() + self._told(self._finish(event.reason), status)
            self._end(event)
            return rest
        return b""

    def _feed(self, event: Chunk | Finished) -> list[Step]:
        return self._logprobs.feed(event) if self._logprobs else self._reader.feed(event.text)

    def _finish(self, reason: StopReason) -> list[Step]:
        return self._logprobs.finish(reason) if self._logprobs else self._reader.finish(reason)

    def _begin(self) -> bytes:
        if self._n_events:
            return b""
        response = self._response("in_progress", [])
        return b"".join(self._tell(f"response.{name}", {"response": response}) for name in ("created", "in_progress"))

    def _end(self, result: Finished) -> None:
        status = _status(result)
        self.reply = self._response(status, self._output(status)) | {"usage": self._usage(result, self._reader.blocks)}
        self._timings = timings_json(result.timings)
        if status == "completed":
            self.reply["completed_at"] = int(time.time())
        else:
            self.reply["incomplete_details"] = {"reason": "max_output_tokens"}

    def _output(self, status: str) -> list[Json]:
        """All items; ``status`` is that of the last, which alone can have been cut."""
        blocks = self._reader.blocks
        return [self._item(block, status if block is blocks[-1] else "completed") for block in blocks]

    def _told(self, steps: list[Step], status: str) -> bytes:
        """``status``: of the item that is done last."""
        n_closed = sum(type(step) is Closed for step in steps)
        told = []
        for step in steps:
            n_closed -= type(step) is Closed
            told.append(self._step(step, status if n_closed == 0 else "completed"))
        return b"".join(told)

    def _step(self, step: Step, status: str) -> bytes:
        match step:
            case Opened(block):
                item = item_json(block, item_id(block, self._key), "in_progress")
                added = self._tell("response.output_item.added", {"output_index": block.index, "item": item})
                return added + self._part("added", block, empty_part(block))
            case Grew(block, text, logprobs=logprobs):
                return self._of_text(block, "delta", {"delta": text}, logprobs)
            case Closed(block):
                before = self._text_done(block) + self._part("done", block, part_json(block))
                item = self._item(block, status)
                return before + self._tell("response.output_item.done", {"output_index": block.index, "item": item})

    def _text_done(self, block: Block) -> bytes:
        if block.kind == "call":
            return self._of_text(block, "done", {"name": block.name, "arguments": block.text})
        return self._of_text(block, "done", {"text": block.text}, block.logprobs)

    def _of_text(self, block: Block, what: str, body: Json, logprobs: Iterable[Json] = ()) -> bytes:
        name = {"thoughts": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}[block.kind]
        if block.kind == "text":
            body = {**body, "logprobs": [_without_bytes(entry) for entry in logprobs]}
        return self._tell(f"response.{name}.{what}", {**self._place(block), **body})

    def _part(self, what: str, block: Block, part: Json | None) -> bytes:
        return self._tell(f"response.content_part.{what}", {**self._place(block), "part": part}) if part else b""

    def _place(self, block: Block) -> Json:
        place: Json = {"item_id": item_id(block, self._key), "output_index": block.index}
        return place if block.kind == "call" else {**place, "content_index": 0}

    def _item(self, block: Block, status: str) -> Json:
        return item_json(block, item_id(block, self._key), status, is_whole=True)

    def _tell(self, name: str, body: Json) -> bytes:
        self._n_events += 1
        return named_event(name, {"sequence_number": self._n_events - 1, **body})

    def _response(self, status: str, output: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._job.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._job.model,
            "output": output,
            **self._repeated,
            "usage": None,
        }

    def _usage(self, result: Finished, blocks: list[Block]) -> Json:
        n_input, n_output = self._job.n_prompt, result.timings.n_predicted
        thoughts = "".join(block.text for block in blocks if block.kind == "thoughts")
        n_thoughts = len(self._job.tokenizer.tokenize(thoughts, add_special=False, parse_special=False))
        return {
            "input_tokens": n_input,
            "input_tokens_details": {"cached_tokens": result.timings.n_cached, "cache_write_tokens": 0},
            "output_tokens": n_output,
            "output_tokens_details": {"reasoning_tokens": min(n_thoughts, n_output)},
            "total_tokens": n_input + n_output,
        }


def _without_bytes(entry: Json) -> Json:
    """As events show it: bytes are only in the parts of items."""
    top = entry["top_logprobs"]
    assert isinstance(top, list)
    return {
        "token": entry["token"],
        "logprob": entry["logprob"],
        "top_logprobs": [{"token": one["token"], "logprob": one["logprob"]} for one in top],
    }


def _status(result: Finished) -> str:
    return "completed" if result.reason in (StopReason.EOS, StopReason.WORD) else "incomplete"
