"""One request after reading: its tasks, and what a dialect needs to answer it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from corral.api.schemas.params import Params
from corral.api.schemas.prompt import Prompt
from corral.api.service import NO_TENANT, Tenant
from corral.engine.thread import EngineThread
from corral.ids import AdapterSet, CacheKey, TaskId
from corral.ports import Tokenizer
from corral.tasks import Task, TaskGroup


@dataclass(frozen=True, slots=True)
class Job:
    """``id`` is the reply's; ``created`` in whole seconds; ``model`` the served name."""

    id: str
    created: int
    model: str
    params: Params
    groups: tuple[TaskGroup, ...]
    tokenizer: Tokenizer

    @property
    def tasks(self) -> list[Task]:
        """All tasks by their index in the reply."""
        return [task for group in self.groups for task in group]

    @property
    def n_prompt(self) -> int:
        """Prompt tokens, those that siblings share counted once."""
        return sum(len(group[0].prompt) for group in self.groups)


def make_job(
    prompts: Sequence[Prompt],
    params: Params,
    *,
    engine: EngineThread,
    tokenizer: Tokenizer,
    model: str,
    key: CacheKey,
    tenant: Tenant = NO_TENANT,
    special: bool = False,
    borders: tuple[int, ...] = (),
    adapters: AdapterSet = (),
) -> Job:
    """Tasks for every prompt: with n > 1 a parent and its siblings each. The last three: as in ``tasks.Task``."""
    reply_id = f"chatcmpl-{secrets.token_hex(16)}"
    common = Task(
        id=TaskId(0),
        prompt=(),
        sampling=params.sampling,
        limits=params.limits,
        cache_key=key,
        cache_prompt=params.cache_prompt,
        tenant=tenant.id,
        weight=tenant.weight,
        priority=tenant.priority if params.priority is None else params.priority,
        id_slot=params.id_slot,
        n_keep=params.n_keep,
        n_discard=params.n_discard,
        n_cache_reuse=params.n_cache_reuse,
        return_progress=params.return_progress and params.stream,
        timings_per_token=params.timings_per_token and params.stream,
        n_prompt_probs=params.n_prompt_probs,
        stream=params.stream,
        special=special,
        borders=borders,
        preserved_tokens=params.preserved_tokens,
        adapters=adapters,
        lora=params.lora,
        request_id=reply_id,
    )
    groups = tuple(
        _group(replace(common, id=engine.new_task_id(), prompt=prompt, index=i * params.n), params.n, engine)
        for i, prompt in enumerate(prompts)
    )
    return Job(reply_id, int(time.time()), model, params, groups, tokenizer)


def _group(parent: Task, n: int, engine: EngineThread) -> TaskGroup:
    return (parent, *(_sibling(parent, engine.new_task_id(), i) for i in range(1, n)))


def _sibling(parent: Task, task_id: TaskId, i: int) -> Task:
    sampling = parent.sampling.of_choice(i)
    return replace(parent, id=task_id, parent=parent.id, index=parent.index + i, sampling=sampling, id_slot=None)
