"""A model in this process, without HTTP: batches of prompts in order, or one prompt as a stream."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from corral.chat.conversation import Conversation
from corral.chat.jobs import ChatModel, ChatRequest
from corral.chat.messages import read_messages
from corral.chat.template import CHATML, ChatTemplate, Message
from corral.config import AdapterConfig, ContextConfig, EngineConfig, ModelConfig, n_rows_for
from corral.errors import ExceedContext, InvalidRequest
from corral.events import Chunk, Event, Failed, Finished, StopReason, Timings, TokenProbs
from corral.ids import AdapterId, AdapterSet, TaskId, Token, adapter_set
from corral.runtime import Runtime
from corral.tasks import Constraint, ConstraintKind, Limits, Sampling, Task, TaskGroup

Prompt = str | Sequence[Token]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to generate, in vLLM's names.

    ``max_tokens`` None: up to the end of the context. ``temperature`` 0 is greedy. ``seed`` None is random; choice i of
    n gets seed + i. ``logprobs``: how many likely tokens to tell at each position. ``grammar`` is GBNF,
    ``json_schema`` a schema or its text, ``regex`` what the whole text must match: one of the three.
    ``lora``: scales of adapters by their place in the list that LLM was given, those not named 0; None takes all as
    they were given.
    """

    n: int = 1
    max_tokens: int | None = 256
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    stop: str | Sequence[str] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None
    logit_bias: dict[Token, float] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    grammar: str = ""
    json_schema: Mapping[str, Any] | str | None = None
    regex: str = ""
    lora: Mapping[int, float] | None = None

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            repeat_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            n_probs=self.logprobs or 0,
            logit_bias=tuple((self.logit_bias or {}).items()),
            ignore_eos=self.ignore_eos,
            grammar=self.grammar,
            constraint=self._constraint(),
        )

    def _constraint(self) -> Constraint | None:
        if bool(self.grammar) + bool(self.regex) + (self.json_schema is not None) > 1:
            raise InvalidRequest("use one of grammar, json_schema and regex")
        if self.regex:
            return Constraint(ConstraintKind.REGEX, self.regex)
        if self.json_schema is None:
            return None
        schema = self.json_schema
        return Constraint(ConstraintKind.JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))

    def limits(self) -> Limits:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        n_predict = -1 if self.max_tokens is None else self.max_tokens
        return Limits(n_predict=n_predict, stop=tuple(word for word in stop if word))


@dataclass(frozen=True, slots=True)
class Completion:
    """One choice for one prompt: ``prompt_index`` counts prompts, ``index`` the choices of a prompt, both from 0.

    ``finish_reason``: "stop" (end of generation or a stop string) or "length".
    """

    prompt_index: int
    index: int
    text: str
    tokens: tuple[Token, ...]
    finish_reason: str
    logprobs: tuple[TokenProbs, ...]
    timings: Timings


class LLM:
    """A loaded model with its engine. Close it, or use it as a context manager.

    >>> with LLM("model.gguf") as llm:
    ...     for completion in llm.generate(["One", "Two"], SamplingParams(max_tokens=8)):
    ...         print(completion.text)
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        n_slots: int = 16,
        n_ctx: int = 0,
        lora: Sequence[str | Path | tuple[str | Path, float]] = (),
        **options: Any,
    ) -> None:
        """``model`` is a GGUF file, None the bundled demo. ``n_ctx``: cells for all slots, 0 the training context.
        ``lora``: adapters to load, alone or with a scale (else 1).

        ``options`` are further fields of ModelConfig, ContextConfig and EngineConfig. Raises LoadError, or TypeError
        for an option that none of them has.
        """
        unified = options.setdefault("kv_unified", True)
        options["adapters"] = tuple(_adapter(item) for item in lora)
        options = {"n_rows": n_rows_for(n_slots, unified), "n_slots": n_slots, "n_ctx": n_ctx, **options}
        known = {field.name for config in (ModelConfig, ContextConfig, EngineConfig) for field in fields(config)}
        if unknown := sorted(options.keys() - known):
            raise TypeError(f"LLM has no option {unknown[0]!r}")
        self._runtime = Runtime.open(
            ModelConfig(path=_path_of(model), **_options_of(ModelConfig, options)),
            ContextConfig(**_options_of(ContextConfig, options)),
            EngineConfig(**_options_of(EngineConfig, options)),
        )

    @classmethod
    def over(cls, runtime: Runtime) -> Self:
        """The same over a runtime that is open already; closing this closes it."""
        self = cls.__new__(cls)
        self._runtime = runtime
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's thread and free everything. May be called twice."""
        self._runtime.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """Complete all prompts (text or token ids); choices of a prompt stand together, prompts in their order.

        ``params``: one for all prompts or one for each. Raises ExceedContext, before anything is computed, if a prompt
        cannot fit; the error of the first task that fails otherwise.
        """
        many = _as_list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params] * len(many)
        if len(each) != len(many):
            raise InvalidRequest(f"{len(many)} prompts, but {len(each)} sampling parameters")
        groups = [self._group(self._tokens(prompt), one) for prompt, one in zip(many, each, strict=True)]
        with _progress(len(groups), progress) as advance:
            finished = _Batch(self._runtime, groups).run(advance)
        return [
            _completion(i, choice, finished[task.id])
            for i, group in enumerate(groups)
            for choice, task in enumerate(group)
        ]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] = SamplingParams(),
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """``generate`` for one conversation or several, written out by the model's chat template."""
        many = [messages] if not messages or isinstance(messages[0], dict) else messages
        model = self._chat_model()
        conversations = [Conversation(tuple(read_messages(list(messages)))) for messages in many]
        rendered = [model.render(ChatRequest(conversation)) for conversation in conversations]
        return self.generate([model.tokens(prompt) for prompt in rendered], params, progress=progress)

    async def stream(self, prompt: Prompt, params: SamplingParams = SamplingParams()) -> AsyncGenerator[Chunk]:
        """Chunks of text as they become final. Leaving the loop early cancels the task."""
        (task, *others) = self._group(self._tokens(prompt), params)
        if others:
            raise InvalidRequest("a stream has one choice: n must be 1")
        async with self._runtime.engine.stream([(task,)]) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Chunk):
                    yield event

    def _tokens(self, prompt: Prompt) -> tuple[Token, ...]:
        if isinstance(prompt, str):
            prompt = self._runtime.model.tokenizer.tokenize(prompt, add_special=True, parse_special=True)
        n_ctx = self._runtime.n_ctx_slot
        if len(prompt) >= n_ctx:
            raise ExceedContext(len(prompt), n_ctx)
        n_vocab = self._runtime.model.info.n_vocab
        if any(not 0 <= token < n_vocab for token in prompt):
            raise InvalidRequest("Prompt contains invalid tokens")
        return tuple(prompt)

    def _group(self, prompt: tuple[Token, ...], params: SamplingParams) -> TaskGroup:
        n_slots = self._runtime.n_slots
        if not 1 <= params.n <= n_slots:
            raise InvalidRequest(f"n must be between 1 and the number of slots ({n_slots}), but is {params.n}")
        new_id, sampling = self._runtime.engine.new_task_id, params.sampling()
        if sampling.constraint is not None:
            self._runtime.model.new_matcher(sampling.constraint)  # its faults are found here, and the engine goes on
        special = not params.skip_special_tokens
        parent = Task(
            new_id(),
            prompt,
            sampling=sampling,
            limits=params.limits(),
            special=special,
            adapters=self._adapters(params),
        )
        siblings = (
            replace(parent, id=new_id(), parent=parent.id, index=i, sampling=_reseeded(sampling, i))
            for i in range(1, params.n)
        )
        return (parent, *siblings)

    def _adapters(self, params: SamplingParams) -> AdapterSet:
        if params.lora is None:
            return adapter_set({adapter.id: adapter.scale for adapter in self._runtime.model.adapters})
        return adapter_set({AdapterId(i): scale for i, scale in params.lora.items()})

    def _chat_model(self) -> ChatModel:
        model = self._runtime.model
        bos, eos = self._text(model.info.bos_token), self._text(model.info.eos_token)
        return ChatModel(ChatTemplate(model.info.chat_template or CHATML, bos, eos), model.info, model.tokenizer)

    def _text(self, token: Token | None) -> str:
        if token is None:
            return ""
        return self._runtime.model.tokenizer.piece(token, special=True).decode("utf-8", "replace")


class _Batch:
    """Runs groups of tasks, so many at a time that the slots stay busy and the queue stays short."""

    def __init__(self, runtime: Runtime, groups: Sequence[TaskGroup]) -> None:
        self._engine = runtime.engine
        self._waiting = deque(groups)
        self._group_of = {task.id: group for group in groups for task in group}
        self._open: set[TaskId] = set()
        self._max_open = 2 * runtime.n_slots
        self._inbox: SimpleQueue[list[Event]] = SimpleQueue()
        self._finished: dict[TaskId, Finished] = {}

    def run(self, advance: Callable[[], None]) -> dict[TaskId, Finished]:
        """All ends by task; ``advance`` is called for each group that is complete. Raises a task's error."""
        try:
            self._submit()
            while self._open:
                for event in self._inbox.get():
                    self._take(event, advance)
                self._submit()
            return self._finished
        finally:
            self._engine.cancel(list(self._open))

    def _submit(self) -> None:
        while self._waiting and (not self._open or len(self._open) + len(self._waiting[0]) <= self._max_open):
            group = self._waiting.popleft()
            self._engine.submit([group], self._inbox.put)
            self._open.update(task.id for task in group)

    def _take(self, event: Event, advance: Callable[[], None]) -> None:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            self._open.discard(event.task_id)
            self._finished[event.task_id] = event
            if all(task.id in self._finished for task in self._group_of[event.task_id]):
                advance()


def _path_of(model: str | Path | None) -> Path:
    if model is not None:
        return Path(model)
    from corral.llama.demo import demo_model

    return demo_model()


def _adapter(item: str | Path | tuple[str | Path, float]) -> AdapterConfig:
    path, scale = item if isinstance(item, tuple) else (item, 1.0)
    return AdapterConfig(Path(path), scale)


def _options_of(config: type, options: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(config)}
    return {name: value for name, value in options.items() if name in names}


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    one = bool(prompts) and all(isinstance(item, int) for item in prompts)
    return [prompts] if one else list(prompts)  # type: ignore[list-item, arg-type]


def _reseeded(sampling: Sampling, i: int) -> Sampling:
    return sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + i) % 2**32)


def _completion(prompt_index: int, index: int, end: Finished) -> Completion:
    reason = "stop" if end.reason in (StopReason.EOS, StopReason.WORD) else "length"
    return Completion(prompt_index, index, end.text, end.tokens, reason, end.probs, end.timings)


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[], None]]:
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("generating", total=total)
        yield lambda: bar.advance(task)
