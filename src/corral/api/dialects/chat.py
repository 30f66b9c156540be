"""OpenAI's chat format: POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import replace

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
from corral.api.dialects.sse import ServerSentEvents
from corral.api.job import Job
from corral.api.service import BUILD
from corral.chat.deltas import CallArguments, CallStart, Content, Delta, Reasoning, Reply, whole_reply
from corral.chat.formats.base import Reader
from corral.chat.jobs import Rendered
from corral.events import Chunk, Event, Finished, Progress, StopReason, TokenProbs
from corral.ids import TaskId


class ChatDialect(ServerSentEvents):
    """``chat.completion`` objects and chunks. Each choice's first chunk gives the role, its last the finish reason.

    ``prefix`` is repeated at the head of every choice: the text that the reply continues, when it is asked for. Where
    the reply to ``rendered`` is nothing but text, chunks are bytes around it; else a reader of each choice finds
    thoughts and calls.
    """

    def __init__(self, job: Job, rendered: Rendered, prefix: str = "") -> None:
        self._job = job
        self._rendered = rendered
        self._prefix = prefix
        self._results: list[Finished] = []
        self._indices = {task.id: task.index for task in job.tasks}
        self._unopened = set(self._indices)
        self._readers: dict[TaskId, Reader] = {}
        self._untold: dict[TaskId, list[TokenProbs]] = {}
        if not rendered.is_plain:
            self._readers = {task_id: rendered.reader() for task_id in self._indices}
            self._untold = {task_id: [] for task_id in self._indices}
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
        self._has_probs = bool(job.params.sampling.n_probs)
        self._is_plain = not self._has_probs and rendered.is_plain

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
        return {**reply, **self._verbose(results[0]), **self._timings()}

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
        elif self._readers:
            text = self._read(chunk)
        else:
            text = self._delta(task_id, {"content": chunk.text}, self._extra(chunk), self._logprobs(chunk.probs))
        return self._opening(task_id) + text if task_id in self._unopened else text

    def _read(self, chunk: Chunk) -> bytes:
        """The deltas that a chunk brings about: none while it is not clear what its text is."""
        deltas = self._readers[chunk.task_id].feed(chunk.text)
        if not self._has_probs and chunk.timings is None:
            return b"".join([self._read_delta(chunk.task_id, delta) for delta in deltas])
        untold = self._untold[chunk.task_id]
        untold += chunk.probs
        if not deltas:
            return b""
        told, self._untold[chunk.task_id] = untold, []
        return self._read_deltas(chunk.task_id, deltas, self._extra(chunk), self._logprobs(told))

    def _read_deltas(self, task_id: TaskId, deltas: list[Delta], extra: Json, logprobs: Json) -> bytes:
        """Each delta as an event; ``extra`` and ``logprobs`` ride on the last."""
        first = [self._delta(task_id, delta_json(delta)) for delta in deltas[:-1]]
        return b"".join([*first, self._delta(task_id, delta_json(deltas[-1]), extra, logprobs)])

    def _read_delta(self, task_id: TaskId, delta: Delta) -> bytes:
        if type(delta) is Content:
            return b"%b%b%b" % (self._before[task_id], orjson.dumps(delta.text), self._after)
        return self._delta(task_id, delta_json(delta))

    def _finish(self, result: Finished) -> bytes:
        self._results.append(result)
        task_id = result.task_id
        is_last = len(self._results) == len(self._indices) and not self._job.params.include_usage
        extra = {**self._verbose(result), **({"timings": timings_json(result.timings)} if is_last else {})}
        rest = b"".join([self._read_delta(task_id, delta) for delta in self._last_deltas(result)])
        logprobs = self._logprobs(self._untold.get(task_id, []))
        end = self._delta(task_id, {}, extra, logprobs, reason=_finish_reason(result, self._readers.get(task_id)))
        return self._opening(task_id) + rest + end

    def _last_deltas(self, result: Finished) -> list[Delta]:
        return self._readers[result.task_id].finish(result.reason) if self._readers else []

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

    def _logprobs(self, probs: tuple[TokenProbs, ...] | list[TokenProbs]) -> Json:
        return {"logprobs": {"content": probs_json(probs, self._job.tokenizer)}} if probs else {}

    def _final_choice(self, result: Finished) -> Json:
        tokenizer = self._job.tokenizer
        reply, reader = self._reply(result)
        choice: Json = {
            "finish_reason": _finish_reason(result, reader),
            "index": self._indices[result.task_id],
            "message": message_json(reply, self._prefix),
        }
        if result.probs:
            choice["logprobs"] = {"content": probs_json(shown_probs(result, tokenizer), tokenizer)}
        return choice

    def _reply(self, result: Finished) -> tuple[Reply, Reader | None]:
        """And what read it."""
        if self._rendered.is_plain:
            return Reply(result.text, "", ()), None
        reader = self._rendered.reader()
        reply = _read_whole(reader, result)
        if self._rendered.legacy:
            reply = replace(reply, reasoning=_read_whole(self._rendered.reader(streams=False), result).reasoning)
        return reply, reader

    def _verbose(self, result: Finished) -> Json:
        return {"__verbose": NativeDialect(self._job).final(result)} if self._job.params.verbose else {}

    def _timings(self) -> Json:
        return {"timings": timings_json(self._results[0].timings)}


_ROLE: Json = {"role": "assistant", "content": None}


def message_json(reply: Reply, prefix: str = "") -> Json:
    """``message`` of a choice. With calls and no text ``content`` is null."""
    content = prefix + reply.content
    message: Json = {"role": "assistant", "content": content if content or not reply.calls else None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}, "id": call.id}
            for call in reply.calls
        ]
    return message


def delta_json(delta: Delta) -> Json:
    """``delta`` of a chunk."""
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(index, call_id, name):
            function: Json = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _read_whole(reader: Reader, result: Finished) -> Reply:
    return whole_reply([*reader.feed(result.text), *reader.finish(result.reason)])


def _finish_reason(result: Finished, reader: Reader | None) -> str:
    """ "tool_calls" says that all of them are there: a stop string may have cut the last."""
    reason = FINISH_REASONS[result.reason]
    if reason != "stop" or reader is None or not reader.n_calls:
        return reason
    is_cut = result.reason is StopReason.WORD and reader.has_cut_call
    return reason if is_cut else "tool_calls"


def _event(body: Json) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)
