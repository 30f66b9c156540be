"""``LLM``: a loaded model with its engine, asked from Python."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from corral.chat.template import Message
from corral.config import AdapterConfig, ContextConfig, EngineConfig, ModelConfig, n_rows_for
from corral.errors import Closed, ExceedContext, InvalidRequest
from corral.events import Chunk, Failed
from corral.ids import AdapterId, AdapterSet, adapter_set
from corral.llm.batch import Batch
from corral.llm.chats import Chats, ChatSettings, conversations_of
from corral.llm.checks import check_options, wrong
from corral.llm.completion import Completion, completion
from corral.llm.params import DEFAULTS, SamplingParams
from corral.llm.prompt import Asked, Prompt, prompts_of, tokens_of
from corral.runtime import Runtime
from corral.tasks import Task, TaskGroup

T = TypeVar("T")
Params = SamplingParams | None | Sequence[SamplingParams | None]


class LLM:
    """A loaded model with its engine. Close it, or use it as a context manager; then all else raises Closed.

    >>> with LLM("model.gguf") as llm:
    ...     for completion in llm.generate(["One", "Two"], SamplingParams(max_tokens=8)):
    ...         print(completion.text)
    """

    _is_closed = False

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        n_slots: int = 16,
        n_ctx: int = 0,
        lora: str | Path | Sequence[str | Path | tuple[str | Path, float]] = (),
        **options: Any,
    ) -> None:
        """``model`` is a GGUF file, None the bundled demo. ``n_ctx``: cells for all slots, 0 the training context.
        ``lora``: adapters to load, alone or with a scale (else 1).

        ``options`` are further fields of ModelConfig, ContextConfig and EngineConfig. Raises LoadError, or TypeError
        for an option that none of them has or that is of another type.
        """
        unified = options.setdefault("kv_unified", True)
        options |= {"n_slots": n_slots, "n_ctx": n_ctx}
        check_options(options, (ModelConfig, ContextConfig, EngineConfig))
        adapters = (lora,) if isinstance(lora, str | Path) else lora
        options["adapters"] = tuple(_adapter(item) for item in adapters)
        options.setdefault("n_rows", n_rows_for(n_slots, unified))
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
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's thread and free everything. May be called twice."""
        self._is_closed = True
        self._runtime.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = DEFAULTS,
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """Complete all prompts (text or token ids); choices of a prompt stand together, prompts in their order.

        ``params``: one for all prompts or one for each, None the defaults. Raises ExceedContext, before anything is
        computed, if a prompt cannot fit; the error of the first task that fails otherwise.
        """
        self._check_open()
        many = prompts_of(prompts)
        return self._run([self._asked(prompt, one) for prompt, one in _paired(many, params)], progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = DEFAULTS,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        progress: bool = False,
    ) -> list[Completion]:
        """``generate`` for one conversation or several, written out by the model's chat template.

        ``tools`` and ``tool_choice`` are OpenAI's; calls and thoughts are in ``reply`` of a completion. What a
        conversation is held to acts behind its thoughts. With ``continue_final_message``, and without
        ``add_generation_prompt``, the last message is the assistant's and goes on.
        """
        self._check_open()
        many = conversations_of(messages)
        settings = ChatSettings(
            tools, tool_choice, parallel_tool_calls, chat_template_kwargs, add_generation_prompt, continue_final_message
        )
        chats = Chats(self._runtime, settings, chat_template)
        return self._run([self._checked(chats.asked(one, how)) for one, how in _paired(many, params)], progress)

    async def stream(self, prompt: Prompt, params: SamplingParams | None = DEFAULTS) -> AsyncGenerator[Chunk]:
        """Chunks of text as they become final. Leaving the loop early cancels the task."""
        self._check_open()
        ((_, one),) = _paired([prompt], params)
        (task, *others) = self._group(self._asked(prompt, one))
        if others:
            raise InvalidRequest("a stream has one choice: n must be 1")
        async with self._runtime.engine.stream([(task,)]) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Chunk):
                    yield event

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("this LLM is closed: open a new one, or ask before close() and before its `with` block ends")

    def _run(self, asked: Sequence[Asked], progress: bool) -> list[Completion]:
        groups = [self._group(one) for one in asked]
        with _progress(len(groups), progress) as advance:
            finished = Batch(self._runtime, groups).run(advance)
        return [
            completion(i, choice, finished[task.id], finished[group[0].id], one.read(finished[task.id]))
            for i, (one, group) in enumerate(zip(asked, groups, strict=True))
            for choice, task in enumerate(group)
        ]

    def _asked(self, prompt: Prompt, params: SamplingParams) -> Asked:
        if params.thinking_token_budget is not None:
            raise InvalidRequest("thinking_token_budget: only conversations have thoughts; use chat")
        tokens = tokens_of(prompt, self._runtime.model.tokenizer)
        return self._checked(Asked(tokens, params, params.sampling()))

    def _checked(self, asked: Asked) -> Asked:
        """Its faults are found here, before anything runs."""
        prompt, sampling, model = asked.prompt, asked.sampling, self._runtime.model
        n_ctx = self._runtime.n_ctx_slot
        if len(prompt) >= n_ctx:
            raise ExceedContext(len(prompt), n_ctx)
        if any(not 0 <= token < model.info.n_vocab for token in prompt):
            raise InvalidRequest("Prompt contains invalid tokens")
        if sampling.constraint is not None:
            model.new_matcher(sampling.constraint)
        return asked

    def _group(self, asked: Asked) -> TaskGroup:
        params, n_slots = asked.params, self._runtime.n_slots
        if not 1 <= params.n <= n_slots:
            raise InvalidRequest(f"n must be between 1 and the number of slots ({n_slots}), but is {params.n}")
        new_id = self._runtime.engine.new_task_id
        parent = Task(
            new_id(),
            asked.prompt,
            sampling=asked.sampling,
            limits=params.limits(),
            cache_key=params.cache_key(),
            cache_prompt=params.cache_prompt,
            priority=params.priority,
            n_prompt_probs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
            special=not params.skip_special_tokens,
            preserved_tokens=asked.preserved_tokens,
            borders=asked.borders,
            adapters=self._adapters(params),
        )
        siblings = (
            replace(parent, id=new_id(), parent=parent.id, index=i, sampling=asked.sampling.of_choice(i))
            for i in range(1, params.n)
        )
        return (parent, *siblings)

    def _adapters(self, params: SamplingParams) -> AdapterSet:
        if params.lora is None:
            return adapter_set({adapter.id: adapter.scale for adapter in self._runtime.model.adapters})
        return adapter_set({AdapterId(i): scale for i, scale in params.lora.items()})


def _paired(items: Sequence[T], params: Params) -> list[tuple[T, SamplingParams]]:
    """Each with its own parameters. Raises InvalidRequest."""
    given = list(params) if isinstance(params, Sequence) else [params] * len(items)
    each = [DEFAULTS if one is None else one for one in given]
    if bad := [one for one in each if not isinstance(one, SamplingParams)]:
        raise wrong("params", bad[0], "SamplingParams or a list of them")
    if len(each) != len(items):
        raise InvalidRequest(f"{len(items)} prompts, but {len(each)} sampling parameters")
    return list(zip(items, each, strict=True))


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
