"""Owns one LoRA adapter's weights: loads a GGUF file over a model and tells what it says of itself."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as lib

from corral.config import AdapterConfig
from corral.errors import LoadError
from corral.ids import AdapterId, AdapterSet
from corral.llama import library
from corral.ports import AdapterInfo

_PREFIX = "failed to apply lora adapter: "
_TEXT_BYTES = 4096


class LlamaAdapter:
    """Weights that belong to a model and are freed with it. Load before a context is made, which sizes its graph so."""

    def __init__(self, model: Any, adapter_id: AdapterId, config: AdapterConfig) -> None:
        """``model`` is libllama's handle. Raises LoadError with one line; ``config.path`` must be a GGUF file."""
        path = config.path
        with library.start().collect() as lines:
            self.handle = lib.llama_adapter_lora_init(model, str(path).encode())
        if not self.handle:
            reason = library.reason(lines, "libllama gave no reason").removeprefix(_PREFIX)
            raise LoadError(f"cannot load adapter {path}: {reason}")
        self.info = AdapterInfo(
            id=adapter_id,
            path=str(path),
            scale=config.scale,
            task_name=self._text("adapter.lora.task_name"),
            prompt_prefix=self._text("adapter.lora.prompt_prefix"),
            invocation=self._invocation(),
        )
        n_vocab = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        bad = [token for token in self.info.invocation if not 0 <= token < n_vocab]
        if bad:
            raise LoadError(f"cannot load adapter {path}: its activation has token {bad[0]}, not in [0, {n_vocab})")

    def _text(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        lib.llama_adapter_meta_val_str(self.handle, key.encode(), buffer, _TEXT_BYTES)
        return buffer.value.decode("utf-8", "replace")

    def _invocation(self) -> tuple[int, ...]:
        n = int(lib.llama_adapter_get_alora_n_invocation_tokens(self.handle))
        tokens = lib.llama_adapter_get_alora_invocation_tokens(self.handle)
        return tuple(int(tokens[i]) for i in range(n))


def set_adapters(context: Any, loaded: tuple[LlamaAdapter, ...], chosen: AdapterSet) -> None:
    """Make libllama's context compute with these. Raises ValueError for one that is not loaded."""
    unknown = [i for i, _ in chosen if not 0 <= i < len(loaded)]
    if unknown:
        raise ValueError(f"adapter {unknown[0]} is not loaded: there are {len(loaded)}")
    handles = (lib.llama_adapter_lora_p_ctypes * len(chosen))(*(loaded[i].handle for i, _ in chosen))
    scales = (ctypes.c_float * len(chosen))(*(scale for _, scale in chosen))
    lib.llama_set_adapters_lora(context, handles, len(chosen), scales)
