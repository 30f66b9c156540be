"""An engine without a model: answers each task with the events a script gives. Tests of the wire formats use it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corral.config import ServerConfig
from corral.engine.state import EngineSnapshot, SlotSnapshot, SlotState
from corral.errors import InvalidRequest
from corral.events import Chunk, Event, Failed, Finished, Started, StopReason, Timings
from corral.guidance.guide import Guide
from corral.ids import SlotId, TaskId
from corral.ports import AdapterInfo, Matcher, MemoryTraits, ModelInfo
from corral.runtime import Runtime
from corral.tasks import Constraint, Sampling, Task

BOS = 256
EOS = 257
N_VOCAB = 258

Script = Callable[[Task], list[Event]]


class ByteTokenizer:
    """Each byte is a token; two control tokens."""

    n_vocab = N_VOCAB

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [BOS] if add_special else []
        parts = text.split("<eos>") if parse_special else [text]
        for i, part in enumerate(parts):
            tokens += [EOS] * (i > 0) + list(part.encode())
        return tokens

    def n_tokens_at_least(self, text: str) -> int:
        return -(-len(text.encode()) // 5)

    def piece(self, token: int, *, special: bool) -> bytes:
        if token < 256:
            return bytes([token])
        return (b"<bos>" if token == BOS else b"<eos>") if special else b""

    def detokenize(self, tokens: Sequence[int], *, special: bool) -> str:
        return b"".join(self.piece(token, special=special) for token in tokens).decode("utf-8", "replace")


INFO = ModelInfo(
    name="bytes",
    path="/models/bytes.gguf",
    description="",
    ftype="F32",
    n_vocab=N_VOCAB,
    vocab_type=1,
    n_ctx_train=1024,
    n_embd=8,
    n_params=1000,
    n_bytes=4000,
    bos_token=BOS,
    eos_token=EOS,
    add_bos=True,
    eog_tokens=frozenset([EOS]),
    chat_template=None,
    meta={},
)


@dataclass(frozen=True)
class ByteModel:
    info: ModelInfo = INFO
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    adapters: tuple[AdapterInfo, ...] = ()

    def new_matcher(self, constraint: Constraint) -> Matcher:
        return Guide(self.tokenizer, self.info).matcher(constraint)

    def prepare(self, sampling: Sampling, n: int) -> None:
        if sampling.grammar == "bad":
            with contextlib.suppress(RuntimeError):  # there is no loop on a worker
                asyncio.get_running_loop()
                raise AssertionError("a grammar is checked on the event loop")
            raise InvalidRequest("bad grammar")


def says(text: str, reason: StopReason = StopReason.EOS, word: str = "") -> Script:
    """A script of one chunk for each character of ``text``."""

    def script(task: Task) -> list[Event]:
        timings = Timings(0, len(task.prompt), 5.0, 0, 0.0)
        events: list[Event] = [Started(task.id, SlotId(0), len(task.prompt), 0)]
        n = 0
        for char in text:
            tokens = tuple(char.encode())
            n += len(tokens)
            events.append(Chunk(task.id, char, tokens, n, timings if task.timings_per_token else None))
        done = Timings(0, len(task.prompt), 5.0, n, 2.0 * n)
        tokens = tuple(text.encode())
        seed = 7 if task.sampling.seed is None else task.sampling.seed
        end = Finished(
            task.id, SlotId(0), reason, word, text, tokens, (), done, len(task.prompt) + n, False, False, seed
        )
        return [*events, end]

    return script


class CannedStream:
    def __init__(self, engine: CannedEngine, tasks: list[Task]) -> None:
        self._engine = engine
        self._tasks = tasks
        self._open = {task.id for task in tasks}
        self._ready: list[Event] = []
        self._news = asyncio.Event()

    async def __aenter__(self) -> CannedStream:
        for task in self._tasks:
            self._engine.tasks.append(task)
            self.push(self._engine.script(task))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def push(self, events: list[Event]) -> None:
        self._ready += events
        self._news.set()

    async def batch(self) -> list[Event]:
        while not self._ready:
            if not self._open:
                return []
            self._news.clear()
            await self._news.wait()
        events = self._ready[: self._engine.n_batch]
        del self._ready[: self._engine.n_batch]
        self._open -= {event.task_id for event in events if isinstance(event, Finished | Failed)}
        return events

    def cancel(self) -> None:
        if self._open:
            self._engine.cancelled += sorted(self._open)
        self._open.clear()


class CannedEngine:
    """``tasks`` are those submitted, ``cancelled`` those that were left before their end."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.n_batch = 1
        self.tasks: list[Task] = []
        self.cancelled: list[TaskId] = []
        self.refusal: Exception | None = None
        self._ids = itertools.count(1)
        slot = SlotSnapshot(SlotId(0), SlotState.IDLE, 1024, None, 0, 0, 0, 0, 0, -1, False)
        self.snapshot = EngineSnapshot((slot,), (), 1024, 0, 0, 0, 0, 0)

    def start_again(self, text: str = "hi") -> None:
        """Says ``text``, as if nobody had asked for anything yet."""
        self.script, self.n_batch, self.refusal = says(text), 1, None
        self.tasks.clear()
        self.cancelled.clear()

    @property
    def last_prompt(self) -> str:
        """The text of what was asked last, without control tokens."""
        return bytes(token for token in self.tasks[-1].prompt if token < 256).decode()

    def new_task_id(self) -> TaskId:
        return TaskId(next(self._ids))

    def stream(self, groups: Sequence[tuple[Task, ...]]) -> CannedStream:
        if self.refusal is not None:
            raise self.refusal
        return CannedStream(self, [task for group in groups for task in group])


def canned_runtime(engine: CannedEngine, n_slots: int = 4, n_ctx: int = 1024) -> Runtime:
    traits = MemoryTraits(n_ctx, n_ctx, n_slots, 1, 64, 64, True)
    return Runtime(ByteModel(), engine, traits, n_slots, n_ctx)  # type: ignore[arg-type]


SERVER = ServerConfig(port=0, alias=("canned",))

TEMPLATE = (
    "{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{%- for m in messages %}<|{{ m.role }}|>"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{%- endfor %}\n{% endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
