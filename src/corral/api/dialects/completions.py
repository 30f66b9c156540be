"""OpenAI's text completion format: POST /v1/completions."""

from __future__ import annotations

import orjson

from corral.api.dialects.native import NativeDialect
from corral.api.dialects.parts import (
    FINISH_REASONS,
    Json,
    echoed_logprobs,
    probs_json,
    progress_json,
    shown_probs,
    timings_json,
    usage_json,
)
from corral.api.dialects.sse import ServerSentEvents
from corral.api.job import Job
from corral.api.service import BUILD
from corral.errors import ServerError
from corral.events import Chunk, Event, Finished, Progress, Started

DONE = b"data: [DONE]\n\n"


class CompletionsDialect(ServerSentEvents):
    """``text_completion`` objects; a stream's last chunk is the whole final object without its text."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._results: list[Finished] = []
        self._indices = {task.id: task.index for task in job.tasks}
        self._tail = {
            "created": job.created,
            "model": job.model,
            "system_fingerprint": BUILD,
            "object": "text_completion",
        }
        self._id: Json = {"id": job.id}
        tail = orjson.dumps({**self._tail, **self._id})[1:-1]
        self._after = {
            i: b',"index":%d,"logprobs":null,"finish_reason":null}],%b}\n\n' % (i, tail) for i in self._indices.values()
        }
        self._is_plain = not job.params.sampling.n_probs
        echoes = job.params.echoes
        self._echoes = {task.id: echoes[task.index // job.params.n] for task in job.tasks} if echoes else {}

    def feed(self, events: list[Event]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def tail(self) -> bytes:
        if not self._job.params.include_usage:
            return DONE
        usage = usage_json(self._job, self._results)
        return _event({"choices": [], **self._tail, "usage": usage, **self._id, **self._timings()}) + DONE

    def whole(self, results: list[Finished]) -> object:
        self._results = results
        choices = [self._final_choice(result) for result in results]
        reply: Json = {"choices": choices, **self._tail, "usage": usage_json(self._job, results), **self._id}
        if self._job.params.verbose:
            reply["__verbose"] = NativeDialect(self._job).final(results[0])
        return {**reply, **self._timings()}

    def _event(self, event: Event) -> bytes:
        if type(event) is Chunk:
            return self._chunk(event)
        if type(event) is Finished:
            return self._finish(event)
        if type(event) is Started and self._echoes:
            return self._text(self._indices[event.task_id], self._echoes[event.task_id])
        if type(event) is Progress:
            choice = self._choice(self._indices[event.task_id], "", None, None)
            return _event({"choices": [choice], **self._tail, **self._id, "prompt_progress": progress_json(event)})
        return b""

    def _chunk(self, chunk: Chunk) -> bytes:
        index = self._indices[chunk.task_id]
        if self._is_plain and chunk.timings is None:
            return self._text(index, chunk.text)
        logprobs: Json | None = {"content": probs_json(chunk.probs, self._job.tokenizer)} if chunk.probs else None
        body: Json = {"choices": [self._choice(index, chunk.text, logprobs, None)], **self._tail, **self._id}
        if chunk.timings:
            body["timings"] = timings_json(chunk.timings)
        return _event(body)

    def _text(self, index: int, text: str) -> bytes:
        return b'data: {"choices":[{"text":%b%b' % (orjson.dumps(text), self._after[index])

    def _finish(self, result: Finished) -> bytes:
        self._results.append(result)
        choice = self._choice(self._indices[result.task_id], "", None, FINISH_REASONS[result.reason])
        body: Json = {"choices": [choice], **self._tail, **self._id}
        is_last = len(self._results) == len(self._indices)
        if is_last and not self._job.params.include_usage:
            body["usage"] = usage_json(self._job, self._results)
            body["timings"] = timings_json(result.timings)
        return _event(body)

    def _final_choice(self, result: Finished) -> Json:
        tokenizer = self._job.tokenizer
        text = self._echoes.get(result.task_id, "") + result.text
        index = self._indices[result.task_id]
        if self._job.params.n_prompt_probs >= 0:
            return self._choice(index, text, self._echoed_probs(result), FINISH_REASONS[result.reason])
        probs: Json | None = (
            {"content": probs_json(shown_probs(result, tokenizer), tokenizer)} if result.probs else None
        )
        return self._choice(index, text, probs, FINISH_REASONS[result.reason])

    def _echoed_probs(self, result: Finished) -> Json:
        """Of the prompt, which siblings share, and the reply."""
        n = self._job.params.n
        parent = self._results[self._indices[result.task_id] // n * n]
        (prompt,) = [task.prompt for task in self._job.tasks if task.id == parent.task_id]
        if len(parent.prompt_probs) != max(len(prompt) - 1, 0):
            raise ServerError("the log-probabilities of the prompt are not complete; please ask again")
        shown = shown_probs(result, self._job.tokenizer)
        return echoed_logprobs(prompt[:1], (*parent.prompt_probs, *shown), self._job.tokenizer)

    def _choice(self, index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

    def _timings(self) -> Json:
        return {"timings": timings_json(self._results[0].timings)}


def _event(body: Json) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)
