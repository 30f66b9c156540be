"""Frozen settings. Only ``cli`` and ``runtime`` make them; rooms receive them and never read the environment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

MIB = 1024 * 1024
GIB = 1024 * MIB

MAX_ROWS = 256
"""The most rows a libllama context can have."""
MAX_SLOTS_UNIFIED = 8
"""With windows and states KV is unified for so many slots unless asked otherwise: docs/decisions/0007."""


def n_rows_for(n_slots: int, kv_unified: bool) -> int:
    """Rows of a context. On unified KV spare ones hold the prefixes of idle conversations by sharing cells."""
    return min(2 * n_slots + 8, MAX_ROWS) if kv_unified else n_slots


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A LoRA adapter to load over a model: a GGUF file and its scale for requests that name no adapters."""

    path: Path
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What to load and how.

    ``path`` is a GGUF file. ``n_gpu_layers`` < 0 means all. An adapter's place in ``adapters`` is its id.
    """

    path: Path
    n_gpu_layers: int = -1
    use_mmap: bool = True
    use_mlock: bool = False
    adapters: tuple[AdapterConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """The shape of one libllama context.

    ``n_ctx`` counts the KV cells that users may fill, over all slots; 0 means the model's training context.
    On split KV each row has ``n_ctx / n_slots`` of them, padded up to a multiple of 256.
    ``n_rows`` is how many rows the context holds; at least ``n_slots``.
    ``split_if_plain``: KV is split for a model of plain attention, whatever ``kv_unified`` says of others. Cache types
    are ggml names: f32, f16, bf16, q8_0, q4_0, ...
    """

    n_ctx: int = 0
    n_slots: int = 4
    n_rows: int = 4
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    n_threads_batch: int = 0
    kv_unified: bool = True
    split_if_plain: bool = False
    flash_attn: bool | None = None
    type_k: str = "f16"
    type_v: str = "f16"
    offload_kqv: bool = True
    swa_full: bool = False
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0


def on_split_kv(config: ContextConfig) -> ContextConfig:
    """The same with a pool for each row, and no more rows than that needs."""
    return replace(config, kv_unified=False, n_rows=n_rows_for(config.n_slots, False)) if config.kv_unified else config


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How requests are scheduled.

    ``itl_target_ms``: while a slot generates, a step (and so a gap between two tokens) should not exceed it.
    ``max_queue``: tasks that may wait for a slot; more are refused with 503. ``cache_ram_bytes``: budget of the RAM
    tier, 0 switches it off, < 0 means no limit. ``cache_disk``: the folder of the disk tier, None for none, and its
    budget over all files, other processes' and models' too. ``min_shared_prefill`` tokens must be missing before a task
    waits for another slot that computes them. Prefixes shorter than ``min_reuse`` are computed again: to bring them
    costs as much, and rows of unequal length make more ubatches. Where memory cannot be cut back anywhere, up to
    ``n_ctx_checkpoints`` of a conversation are kept, but for its last messages ``checkpoint_min_step`` tokens apart,
    none before ``min_checkpoint``. ``context_shift``: a generation that fills its context goes on with a part of it.
    ``park_min_tokens``: what a task may generate, once it has a slot, before it is parked for the fair share of another
    tenant; 0: it is never parked for that. Waiting for ``priority_age_ms`` > 0 counts as much as one priority more.
    ``show_text`` puts what is generated into snapshots.
    """

    n_slots: int = 4
    itl_target_ms: float = 400.0
    max_queue: int = 1024
    cache_ram_bytes: int = 8192 * MIB
    cache_disk: Path | None = None
    cache_disk_bytes: int = 16 * GIB
    cont_batching: bool = True
    slot_prompt_similarity: float = 0.1
    min_shared_prefill: int = 32
    min_reuse: int = 8
    n_ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    min_checkpoint: int = 64
    context_shift: bool = False
    park_min_tokens: int = 64
    priority_age_ms: float = 10_000.0
    show_text: bool = False
    audit: bool = False


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Who may ask. ``weight`` > 0 is the share among keys, ``priority`` that of requests that name none."""

    key: str = field(repr=False)
    weight: float = 1.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How the HTTP side behaves. Names follow llama-server's flags.

    ``max_body_bytes``: of a request's body, 0 for what suits the context. ``shared_cache``: requests of different API
    keys meet each other's prefixes. ``responses_store``: the file in which the newest ``responses_store_max`` responses
    of each key are kept, None for none.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_prefix: str = ""
    api_keys: tuple[ApiKey, ...] = ()
    max_body_bytes: int = 0
    shared_cache: bool = False
    alias: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    endpoint_metrics: bool = False
    endpoint_slots: bool = True
    endpoint_props: bool = False
    slots_debug: bool = False
    slot_save_path: Path | None = None
    cache_show_text: bool = False
    pins: tuple[dict[str, object], ...] = ()
    responses_store: Path | None = None
    responses_store_max: int = 1000
    cors_origins: str = "*"
    cors_methods: str = "GET, POST, DELETE, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = True
    sse_ping_interval_s: int = 30
    always_usage: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, object] = field(default_factory=dict)
    parse_special_user_text: bool = False
    reasoning: str = "auto"
    reasoning_format: str = "auto"
    reasoning_effort: str = ""
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""
    reasoning_preserve: bool = True
    skip_chat_parsing: bool = False
    ssl_key_file: Path | None = None
    ssl_cert_file: Path | None = None
