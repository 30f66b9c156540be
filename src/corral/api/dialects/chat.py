"""OpenAI's chat format: POST /v1/chat/completions."""

from __future__ import annotations

import orjson

from corral.api.dialects.completions import DONE
from corral.api.dialects.native import NativeDialect
from corral.api.dialects.parts import (
    FINISH_REASONS,
    Json,
    probs_json,
    progress_json,
    shown_probs,
    timings_json,
    usage_json,
)
from corral.api.job import Job
from corral.api.service import BUILD
from corral.events import Chunk, Event, Finished, Progress
from corral.ids import TaskId


class ChatDialect:
    """``chat.completion`` objects and chunks. Each choice's first chunk gives the role, its last the finish reason.

    ``prefix`` is repeated at the head of every choice: the text that the reply continues, when it is asked for.
    """

    def __init__(self, job: Job, prefix: str = "") -> None:
        self._job = job
        self._prefix = prefix
        self._results: list[Finished] = []
        self._indices = {task.id: task.index for task in job.tasks}
        self._unopened = set(self._indices)
        self._tail = {
            "created": job.created,
            "id": job.id,
            "model": job.model,
            "system_fingerprint": BUILD,
            "object": "chat.completion.chunk",
        }
        tail = orjson.dumps(self._tail)[1:-1]
        self._after = b"}}],%b}\n\n" % tail
        self._before = {
            task_id: b'data: {"choices":[{"finish_reason":null,"index":%d,"delta":{"content":' % index
            for task_id, index in self._indices.items()
        }
        self._is_plain = not job.params.sampling.n_probs

    def feed(self, events: list[Event]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def tail(self) -> bytes:
        if not self._job.params.include_usage:
            return DONE
        usage = usage_json(self._job, self._results)
        return _event({"choices": [], **self._tail, "usage": usage, **self._timings()}) + DONE

    def whole(self, results: list[Finished]) -> object:
        self._results = results
        reply: Json = {
            "choices": [self._final_choice(result) for result in results],
            "created": self._job.created,
            "model": self._job.model,
            "system_fingerprint": BUILD,
            "object": "chat.completion",
            "usage": usage_json(self._job, results),
            "id": self._job.id,
        }
        if self._job.params.verbose:
            reply["__verbose"] = NativeDialect(self._job).final(results[0])
        return {**reply, **self._timings()}

    def _event(self, event: Event) -> bytes:
        if type(event) is Chunk:
            return self._chunk(event)
        if type(event) is Finished:
            return self._finish(event)
        if type(event) is Progress:
            return self._delta(event.task_id, _ROLE, {"prompt_progress": progress_json(event)})
        return b""

    def _chunk(self, chunk: Chunk) -> bytes:
        task_id = chunk.task_id
        if self._is_plain and chunk.timings is None:
            text = b"%b%b%b" % (self._before[task_id], orjson.dumps(chunk.text), self._after)
        else:
            text = self._delta(task_id, {"content": chunk.text}, self._extra(chunk), self._logprobs(chunk))
        return self._opening(task_id) + text if task_id in self._unopened else text

    def _finish(self, result: Finished) -> bytes:
        self._results.append(result)
        is_last = len(self._results) == len(self._indices) and not self._job.params.include_usage
        extra: Json = {"timings": timings_json(result.timings)} if is_last else {}
        end = self._delta(result.task_id, {}, extra, reason=FINISH_REASONS[result.reason])
        return self._opening(result.task_id) + end

    def _opening(self, task_id: TaskId) -> bytes:
        """The role, before the first text of a choice; b"" after that."""
        if task_id not in self._unopened:
            return b""
        self._unopened.discard(task_id)
        echo = self._delta(task_id, {"content": self._prefix}) if self._prefix else b""
        return self._delta(task_id, _ROLE) + echo

    def _delta(
        self,
        task_id: TaskId,
        delta: Json,
        extra: Json | None = None,
        logprobs: Json | None = None,
        reason: str | None = None,
    ) -> bytes:
        choice: Json = {"finish_reason": reason, "index": self._indices[task_id], "delta": delta, **(logprobs or {})}
        return _event({"choices": [choice], **self._tail, **(extra or {})})

    def _extra(self, chunk: Chunk) -> Json:
        return {"timings": timings_json(chunk.timings)} if chunk.timings else {}

    def _logprobs(self, chunk: Chunk) -> Json:
        return {"logprobs": {"content": probs_json(chunk.probs, self._job.tokenizer)}} if chunk.probs else {}

    def _final_choice(self, result: Finished) -> Json:
        tokenizer = self._job.tokenizer
        choice: Json = {
            "finish_reason": FINISH_REASONS[result.reason],
            "index": self._indices[result.task_id],
            "message": {"role": "assistant", "content": self._prefix + result.text},
        }
        if result.probs:
            choice["logprobs"] = {"content": probs_json(shown_probs(result, tokenizer), tokenizer)}
        return choice

    def _timings(self) -> Json:
        return {"timings": timings_json(self._results[0].timings)}


_ROLE: Json = {"role": "assistant", "content": None}


def _event(body: Json) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)
