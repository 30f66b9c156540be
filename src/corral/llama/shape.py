"""Owns the sizes of a context: from settings to libllama's parameters, and from a made context to its traits."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib

from corral.config import MIB, ContextConfig, on_split_kv
from corral.errors import LoadError
from corral.llama import library
from corral.ports import MemoryTraits, Rollback

log = logging.getLogger("corral.llama")

N_EXTRA_OUTPUTS = 32
"""Positions of a pass that give logits besides the last of each row: four bytes for each token of the vocabulary."""

_PAD = 256
_CELLS_MAX = 2**31 - _PAD
_FLASH = {
    None: lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    True: lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    False: lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
CACHE_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": 30,  # the bindings do not name it
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q4_0": lib.GGML_TYPE_Q4_0,
    "q4_1": lib.GGML_TYPE_Q4_1,
    "iq4_nl": lib.GGML_TYPE_IQ4_NL,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
}
_POOL = re.compile(r"llama_(kv_cache|memory_recurrent): size = +([\d.]+) MiB \( *(\d+) cells,.*?(?:/ *(\d+))? seqs")
_BITS_PER_VALUE = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0}


def pad(n: int) -> int:
    """The next multiple of 256, which is how libllama sizes pools and rows."""
    return -(-n // _PAD) * _PAD


def n_cells_total(config: ContextConfig, n_ctx_train: int) -> int:
    """Cells to ask libllama for. On split KV each of ``n_rows`` rows gets the padded share of one slot."""
    n_ctx = config.n_ctx or n_ctx_train
    if config.kv_unified:
        return pad(n_ctx)
    return pad(-(-n_ctx // config.n_slots)) * config.n_rows


def context_params(model: Any, config: ContextConfig, abort_callback: Any, abort_data: int) -> Any:
    """libllama's parameters. Raises LoadError on settings that it would refuse or abort on."""
    n_ctx_train = int(lib.llama_model_n_ctx_train(model))
    check_shape(config, n_ctx_train)
    n_threads = config.n_threads if config.n_threads > 0 else library.n_physical_cores()
    params = lib.llama_context_default_params()
    params.n_ctx = n_cells_total(config, n_ctx_train)
    params.n_batch, params.n_ubatch = _batch_sizes(config, has_window=lib.llama_model_n_swa(model) > 0)
    params.n_seq_max = config.n_rows + has_carrier(model, config)
    # 0 would reserve a row of logits for every token of a batch: hundreds of megabytes.
    params.n_outputs_max = params.n_seq_max + N_EXTRA_OUTPUTS
    params.n_threads = n_threads
    params.n_threads_batch = config.n_threads_batch if config.n_threads_batch > 0 else n_threads
    params.flash_attn_type = _FLASH[config.flash_attn]
    params.type_k, params.type_v = CACHE_TYPES[config.type_k], CACHE_TYPES[config.type_v]
    params.rope_freq_base, params.rope_freq_scale = config.rope_freq_base, config.rope_freq_scale
    params.offload_kqv = config.offload_kqv
    params.swa_full = config.swa_full
    params.kv_unified = config.kv_unified
    params.no_perf = True
    params.abort_callback, params.abort_callback_data = abort_callback, abort_data
    return params


def settled(model: Any, config: ContextConfig) -> ContextConfig:
    """The settings that this model can be served with.

    With states and a window at once KV is split. On unified KV libllama cuts batches of unequal rows into several
    ubatches where there are states, and with a window there must be one only (``_batch_sizes``).
    """
    has_window = lib.llama_model_n_swa(model) > 0
    if config.split_if_plain and not _keeps_states(model) and (config.swa_full or not has_window):
        return on_split_kv(config)
    if not (config.kv_unified and lib.llama_model_is_hybrid(model) and has_window):
        return config
    log.warning("KV is split: a model with recurrent layers and a sliding window cannot be served on unified KV")
    return on_split_kv(config)


def _batch_sizes(config: ContextConfig, *, has_window: bool) -> tuple[int, int]:
    """(n_batch, n_ubatch). Every row must be able to take a token.

    With a window a batch is one ubatch: libllama finds cells for all ubatches before it computes the first, and what
    falls out of a window for a later one (llama_kv_cache::apply_ubatch) is missing by then. Wrong tokens, silently.
    """
    n_batch = max(config.n_batch, config.n_rows)
    if not has_window:
        return n_batch, min(config.n_ubatch, n_batch)
    n_ubatch = min(max(config.n_ubatch, config.n_rows), n_batch)
    return n_ubatch, n_ubatch


def check_shape(config: ContextConfig, n_ctx_train: int) -> None:
    """Raises LoadError on sizes and types that libllama would refuse or abort on, whatever the model."""
    n_rows_max = lib.llama_max_parallel_sequences()
    if not 1 <= config.n_slots <= config.n_rows <= n_rows_max:
        raise LoadError(f"{config.n_slots} slots on {config.n_rows} rows: 1 <= slots <= rows <= {n_rows_max} is needed")
    if config.n_ctx < 0 or config.n_batch < 1 or config.n_ubatch < 1:
        raise LoadError("context size must not be negative, batch sizes must be positive")
    if n_cells_total(config, n_ctx_train) > _CELLS_MAX:
        raise LoadError(
            f"a context of {config.n_ctx} tokens on {config.n_slots} slots is more than libllama can count: at most "
            f"{_CELLS_MAX} cells on all rows"
        )
    for name in (config.type_k, config.type_v):
        if name not in CACHE_TYPES:
            raise LoadError(f"unknown cache type {name!r}; known are {', '.join(CACHE_TYPES)}")


def read_traits(model: Any, context: Any, config: ContextConfig, log: Sequence[str]) -> MemoryTraits:
    """What libllama really made of the settings, and what that memory can do. ``log``: what it said of its pools."""
    has_one_more = has_carrier(model, config)
    n_rows = int(lib.llama_n_seq_max(context)) - has_one_more
    n_ctx_row = int(lib.llama_n_ctx_seq(context))
    window = int(lib.llama_model_n_swa(model))
    unified = config.kv_unified
    has_cells = not lib.llama_model_is_recurrent(model)
    bytes_per_token, bytes_per_row = row_bytes(log, window) or (reckoned_bytes(model, config), 0)
    return MemoryTraits(
        # Without cells a row may be as long as a conversation may.
        n_cells=int(lib.llama_n_ctx(context)) if has_cells else n_ctx_row * n_rows,
        # Beyond the training context a model writes nonsense: no conversation gets more, whatever the pool holds.
        n_cells_row=min(n_ctx_row, int(lib.llama_model_n_ctx_train(model)) or n_ctx_row),
        n_rows=n_rows,
        n_streams=1 if unified or not has_cells else n_rows,
        n_batch=int(lib.llama_n_batch(context)),
        n_ubatch=int(lib.llama_n_ubatch(context)),
        shared_cells=unified and has_cells,
        can_shift=bool(lib.llama_memory_can_shift(lib.llama_get_memory(context))),
        rollback=_rollback(model, context, window),
        window=window,
        window_cells=_window_cells(context, config, window),
        whole_copy_only=_keeps_states(model),
        bytes_per_token=bytes_per_token,
        bytes_per_row=bytes_per_row,
        ranges=has_one_more,
        n_extra_outputs=N_EXTRA_OUTPUTS,
        state_version=int(lib.LLAMA_STATE_SEQ_VERSION),
    )


def has_carrier(model: Any, config: ContextConfig) -> bool:
    """Whether there is a row more than asked for, through which parts of rows travel: where these can be had at all."""
    is_plain = not (_keeps_states(model) or lib.llama_model_n_swa(model))
    return bool(config.kv_unified and is_plain and config.n_rows < lib.llama_max_parallel_sequences())


def _window_cells(context: Any, config: ContextConfig, window: int) -> int:
    """Cells of a pool for the layers with a window, as in libllama's llama-kv-cache-iswa.cpp."""
    n_ctx_row = int(lib.llama_n_ctx_seq(context))
    if config.swa_full or not window:
        return n_ctx_row if window else 0
    n_rows = int(lib.llama_n_seq_max(context)) if config.kv_unified else 1
    return pad(min(n_ctx_row, window * n_rows + int(lib.llama_n_ubatch(context))))


def row_bytes(log: Sequence[str], window: int) -> tuple[int, int] | None:
    """Bytes that a saved row has for each token and besides, read from what libllama logs of its pools.

    It has no call that tells which layers have a window or a state. None where the lines are not there.
    """
    per_cell: list[float] = []
    per_state = 0.0
    for line in log:
        if found := _POOL.search(line):
            n_bytes, n_cells, n_streams = float(found[2]) * MIB, int(found[3]), int(found[4] or 1)
            if found[1] == "memory_recurrent":
                per_state += n_bytes / n_cells
            else:
                per_cell.append(n_bytes / (n_cells * n_streams))
    if not per_cell and not per_state:
        return None
    per_window_cell = per_cell.pop() if window and len(per_cell) > 1 else 0.0
    return int(sum(per_cell)), int(window * per_window_cell + per_state)


def _keeps_states(model: Any) -> bool:
    return bool(lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))


def _rollback(model: Any, context: Any, window: int) -> Rollback:
    if _keeps_states(model):
        return Rollback.BOUNDED if lib.llama_n_rs_seq(context) else Rollback.WHOLE_ROW
    return Rollback.BOUNDED if window else Rollback.ANY


def reckoned_bytes(model: Any, config: ContextConfig) -> int:
    """Of a cell, from head counts and cache types; models with unequal heads or layers differ from it."""
    n_head = max(int(lib.llama_model_n_head(model)), 1)
    n_values = (
        lib.llama_model_n_layer(model) * lib.llama_model_n_embd(model) * lib.llama_model_n_head_kv(model) / n_head
    )
    bits = sum(_BITS_PER_VALUE.get(name, 4.5) for name in (config.type_k, config.type_v))
    return int(n_values * bits / 8)
