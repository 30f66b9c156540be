"""llama-server's own format: POST /completion."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from corral.api.dialects.parts import Json, probs_json, progress_json, shown_probs, timings_json
from corral.api.dialects.settings import settings_json
from corral.api.dialects.sse import ServerSentEvents
from corral.api.job import Job
from corral.events import Chunk, Event, Finished, Progress, Started
from corral.ids import TaskId
from corral.tasks import Task


@dataclass(slots=True)
class _Frame:
    """The parts of a task's chunks that stay the same."""

    head: bytes
    middle: bytes
    tail: bytes

    @staticmethod
    def of(task: Task) -> _Frame:
        return _Frame(
            b'data: {"index":%d,"content":' % task.index,
            b',"stop":false,"id_slot":-1,"tokens_predicted":',
            b',"tokens_evaluated":%d' % len(task.prompt),
        )


class NativeDialect(ServerSentEvents):
    """Chunks and final objects. A stream ends with its final object, without ``[DONE]``."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tasks = {task.id: task for task in job.tasks}
        self._frames = {task.id: _Frame.of(task) for task in job.tasks}
        self._n_told = dict.fromkeys(self._tasks, 0)

    def feed(self, events: list[Event]) -> bytes:
        return b"".join([self._event(event) for event in events])

    def tail(self) -> bytes:
        return b""

    def whole(self, results: list[Finished]) -> object:
        replies = [self.final(result) for result in results]
        return replies[0] if len(replies) == 1 else replies

    def final(self, result: Finished) -> Json:
        """The final object with the whole text."""
        params = self._job.params
        reply = self._final(result, result.text, result.tokens if params.return_tokens else ())
        if result.probs:
            reply["completion_probabilities"] = self._shown(result, 0)
        return self._picked(reply)

    def _shown(self, result: Finished, n_told: int) -> list[Json]:
        return probs_json(shown_probs(result, self._job.tokenizer)[n_told:], self._job.tokenizer)

    def _last(self, result: Finished) -> Json:
        """What ends a stream, with the tokens that no text was made of: an end-of-generation token is one."""
        n_told = self._n_told[result.task_id]
        reply = self._final(result, "", result.tokens[n_told:])
        if rest := self._shown(result, n_told):
            reply["completion_probabilities"] = rest
        return self._picked(reply)

    def _event(self, event: Event) -> bytes:
        if type(event) is Chunk:
            return self._chunk(event)
        if type(event) is Finished:
            return b"data: %b\n\n" % orjson.dumps(self._last(event))
        if type(event) is Progress:
            return self._frame(event.task_id, b'""', b"[]", 0, {"prompt_progress": progress_json(event)})
        if type(event) is Started:
            self._frames[event.task_id].middle = b',"stop":false,"id_slot":%d,"tokens_predicted":' % event.slot_id
        return b""

    def _chunk(self, chunk: Chunk) -> bytes:
        self._n_told[chunk.task_id] += len(chunk.tokens)
        extra: Json = {}
        if chunk.timings:
            extra["timings"] = timings_json(chunk.timings)
        if chunk.probs:
            extra["completion_probabilities"] = probs_json(chunk.probs, self._job.tokenizer)
        return self._frame(chunk.task_id, orjson.dumps(chunk.text), orjson.dumps(chunk.tokens), chunk.n_decoded, extra)

    def _frame(self, task_id: TaskId, content: bytes, tokens: bytes, n_decoded: int, extra: Json) -> bytes:
        f = self._frames[task_id]
        end = b",%b}\n\n" % orjson.dumps(extra)[1:-1] if extra else b"}\n\n"
        return b'%b%b,"tokens":%b%b%d%b%b' % (f.head, content, tokens, f.middle, n_decoded, f.tail, end)

    def _final(self, result: Finished, content: str, tokens: tuple[int, ...]) -> Json:
        params = self._job.params
        task = self._tasks[result.task_id]
        return {
            "index": task.index,
            "content": content,
            "tokens": tokens,
            "id_slot": result.slot_id,
            "stop": True,
            "model": self._job.model,
            "tokens_predicted": result.timings.n_predicted,
            "tokens_evaluated": len(task.prompt),
            "generation_settings": settings_json(
                task.sampling,
                task.limits,
                seed=result.seed,
                n_keep=params.n_keep,
                n_discard=params.n_discard,
                stream=params.stream,
                timings_per_token=params.timings_per_token,
                lora=params.lora,
            ),
            "prompt": self._job.tokenizer.detokenize(task.prompt, special=True),
            "has_new_line": result.has_new_line,
            "truncated": result.truncated,
            "stop_type": result.reason.value,
            "stopping_word": result.stopping_word,
            "tokens_cached": result.n_tokens_cached,
            "timings": timings_json(result.timings),
        }

    def _picked(self, reply: Json) -> Json:
        paths = self._job.params.response_fields
        if not paths:
            return reply
        found = {path: _dig(reply, path.split("/")) for path in paths}
        return {path: value for path, value in found.items() if value is not _MISSING}


_MISSING = object()


def _dig(value: object, path: list[str]) -> object:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value
