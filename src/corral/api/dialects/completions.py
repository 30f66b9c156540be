"""OpenAI's text completion format: POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from corral.api.dialects.native import NativeDialect
from corral.api.dialects.parts import (
    FINISH_REASONS,
    Json,
    progress_json,
    shown_probs,
    timings_json,
    usage_json,
)
from corral.api.dialects.sse import ServerSentEvents
from corral.api.dialects.text_logprobs import TextLogprobs
from corral.api.job import Job
from corral.api.service import BUILD
from corral.events import Chunk, Event, Finished, Progress, PromptProbs, Started, TokenProbs
from corral.ids import TaskId
from corral.tasks import Task

DONE = b"data: [DONE]\n\n"


class CompletionsDialect(ServerSentEvents):
    """``text_completion`` objects; a stream's last chunk is the whole final object without its text.

    Where the prompt is repeated a stream begins with it, once its log-probabilities are there if they are asked for.
    """

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
        params = job.params
        self._echoes = {task.id: params.echoes[task.index // params.n] for task in job.tasks} if params.echoes else {}
        self._shows_prompt = params.n_prompt_probs >= 0
        self._logprobs: dict[TaskId, TextLogprobs] = {}
        self._n_told: dict[TaskId, int] = {}
        if params.sampling.n_probs:
            self._logprobs = {task.id: self._new_logprobs(task) for task in job.tasks}
            self._n_told = dict.fromkeys(self._indices, 0)

    def _new_logprobs(self, task: Task) -> TextLogprobs:
        params, tokenizer = self._job.params, self._job.tokenizer
        n_top = params.sampling.n_probs if params.n_top is None else params.n_top
        if not self._shows_prompt:
            return TextLogprobs(tokenizer, n_top, echo=self._echoes.get(task.id, ""))
        return TextLogprobs(tokenizer, n_top, task.prompt, self._echoes[task.id])

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
        return {**reply, **self._verbose(results[0]), **self._timings()}

    def _event(self, event: Event) -> bytes:
        if type(event) is Chunk:
            return self._chunk(event)
        if type(event) is Finished:
            return self._finish(event)
        if type(event) is Started and self._echoes and not self._shows_prompt:
            return self._text(self._indices[event.task_id], self._echoes[event.task_id])
        if type(event) is PromptProbs:
            return self._echo(self._task(event.task_id), event)
        if type(event) is Progress:
            choice = self._choice(self._indices[event.task_id], "", None, None)
            return _event({"choices": [choice], **self._tail, **self._id, "prompt_progress": progress_json(event)})
        return b""

    def _chunk(self, chunk: Chunk) -> bytes:
        index = self._indices[chunk.task_id]
        if not self._logprobs and chunk.timings is None:
            return self._text(index, chunk.text)
        logprobs = self._told(chunk.task_id, chunk.probs)
        body: Json = {"choices": [self._choice(index, chunk.text, logprobs, None)], **self._tail, **self._id}
        if chunk.timings:
            body["timings"] = timings_json(chunk.timings)
        return _event(body)

    def _text(self, index: int, text: str) -> bytes:
        return b'data: {"choices":[{"text":%b%b' % (orjson.dumps(text), self._after[index])

    def _told(self, task_id: TaskId, probs: Sequence[TokenProbs]) -> Json | None:
        if not probs:
            return None
        self._n_told[task_id] += len(probs)
        return self._logprobs[task_id].of(probs)

    def _task(self, task_id: TaskId) -> Task:
        return next(task for task in self._job.tasks if task.id == task_id)

    def _echo(self, task: Task, event: PromptProbs) -> bytes:
        """The chunk with the prompt."""
        logprobs = self._prompt_logprobs(task, event.probs)
        choice = self._choice(self._indices[task.id], self._echoes[task.id], logprobs, None)
        return _event({"choices": [choice], **self._tail, **self._id})

    def _prompt_logprobs(self, task: Task, probs: Sequence[TokenProbs], rest: Sequence[TokenProbs] = ()) -> Json:
        return self._logprobs[task.id].of((*probs, *rest), task.prompt[:1])

    def _finish(self, result: Finished) -> bytes:
        self._results.append(result)
        rest = shown_probs(result, self._job.tokenizer)[self._n_told.get(result.task_id, 0) :]
        logprobs = self._told(result.task_id, rest)
        choice = self._choice(self._indices[result.task_id], "", logprobs, FINISH_REASONS[result.reason])
        body: Json = {"choices": [choice], **self._tail, **self._id, **self._verbose(result)}
        is_last = len(self._results) == len(self._indices)
        if is_last and not self._job.params.include_usage:
            body["usage"] = usage_json(self._job, self._results)
            body["timings"] = timings_json(result.timings)
        return _event(body)

    def _final_choice(self, result: Finished) -> Json:
        text = self._echoes.get(result.task_id, "") + result.text
        probs = shown_probs(result, self._job.tokenizer)
        if self._shows_prompt:
            logprobs: Json | None = self._prompt_logprobs(self._task(result.task_id), result.prompt_probs, probs)
        else:
            logprobs = self._told(result.task_id, probs)
        return self._choice(self._indices[result.task_id], text, logprobs, FINISH_REASONS[result.reason])

    def _choice(self, index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

    def _verbose(self, result: Finished) -> Json:
        return {"__verbose": NativeDialect(self._job).final(result)} if self._job.params.verbose else {}

    def _timings(self) -> Json:
        return {"timings": timings_json(self._results[0].timings)}


def _event(body: Json) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)
