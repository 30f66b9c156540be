"""Owns loaded weights: opens a GGUF file, tells what it says of itself, makes contexts and samplers over it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import llama_cpp.llama_cpp as lib

from corral.config import ContextConfig, ModelConfig
from corral.errors import LoadError
from corral.guidance.guide import Guide
from corral.guidance.matcher import GuidedMatcher
from corral.ids import AdapterId, Token
from corral.llama import fit, library
from corral.llama.adapter import LlamaAdapter
from corral.llama.context import LlamaContext
from corral.llama.file import check_file, with_remedy
from corral.llama.fingerprint import weights_sum, with_library
from corral.llama.sampler import SamplerChain, dry_settings, uses_dry
from corral.llama.shape import check_shape, n_cells_total, reckoned_bytes, settled
from corral.llama.stock import Stock
from corral.llama.tokenizer import LlamaTokenizer
from corral.llama.vocab import Vocab
from corral.ports import AdapterInfo, ModelInfo
from corral.tasks import Constraint, Sampling


class LlamaModel:
    """Weights in memory. Closing it closes its contexts; its samplers must be closed before.

    Closed, it raises Closed for what needs the weights, and so does its tokenizer.
    """

    def __init__(self, handle: Any, path: Path) -> None:
        self._handle = handle
        vocab = lib.llama_model_get_vocab(handle)
        self._vocab = Vocab(vocab)
        self._contexts: weakref.WeakSet[LlamaContext] = weakref.WeakSet()
        self._stock = Stock(vocab)
        self._tokenizer = LlamaTokenizer(self._vocab)
        self._info = _read_info(handle, vocab, path)
        self._guide = Guide(self._tokenizer, self._info)
        self._adapters: tuple[LlamaAdapter, ...] = ()

    @classmethod
    def load(cls, config: ModelConfig, on_progress: Callable[[float], None] | None = None) -> LlamaModel:
        """Load ``config.path``; ``on_progress`` hears fractions 0..1. Raises LoadError with one line."""
        path = config.path
        for file in (path, *(adapter.path for adapter in config.adapters)):
            check_file(file)
        router = library.start()
        failures: list[BaseException] = []
        params = lib.llama_model_default_params()
        params.n_gpu_layers = config.n_gpu_layers
        params.load_mode = _load_mode(config)
        params.progress_callback = library.progress_callback(on_progress, failures)
        with router.collect() as lines:
            handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if failures:
            lib.llama_model_free(handle)
            raise failures[0]
        if not handle:
            raise LoadError(f"cannot load {path}: {with_remedy(library.reason(lines, 'libllama gave no reason'))}")
        return cls(handle, path)._with(config)

    def _with(self, config: ModelConfig) -> Self:
        try:
            for i, adapter in enumerate(config.adapters):
                self._adapters += (LlamaAdapter(self._handle, AdapterId(i), adapter),)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def tokenizer(self) -> LlamaTokenizer:
        return self._tokenizer

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        return tuple(adapter.info for adapter in self._adapters)

    def new_context(self, config: ContextConfig) -> LlamaContext:
        """A KV cache over these weights. Raises LoadError if libllama cannot make it, or RAM cannot hold it."""
        with self._vocab.use():
            config = settled(self._handle, config)
            self._check_room(config)
            context = LlamaContext(self._handle, config, self._adapters)
            self._contexts.add(context)
            return context

    def _check_room(self, config: ContextConfig) -> None:
        if config.offload_kqv and lib.llama_supports_gpu_offload():
            return
        n_cells, reckoned = n_cells_total(config, self._info.n_ctx_train), reckoned_bytes(self._handle, config)
        n_free = fit.free_bytes()
        if n_free is None or not fit.is_doubtful(n_cells, reckoned, n_free):
            return
        check_shape(config, self._info.n_ctx_train)
        n_probe = fit.PROBE_CELLS if config.kv_unified else fit.PROBE_CELLS // config.n_rows * config.n_slots
        probe = LlamaContext(self._handle, replace(config, n_ctx=n_probe), self._adapters)
        probe.close()
        fit.check_room(config.n_ctx or self._info.n_ctx_train, n_cells, probe.traits.bytes_per_token, n_free)

    def prepare(self, sampling: Sampling, n: int) -> None:
        with self._vocab.use():
            if sampling.grammar:
                self._stock.prepare_grammar(sampling.grammar, n)
            if uses_dry(sampling):
                self._stock.prepare_dry(dry_settings(sampling, self._info.n_ctx_train))

    def new_sampler(self, sampling: Sampling, seed: int, n_ctx_train: int) -> SamplerChain:
        with self._vocab.use() as vocab:
            return SamplerChain(vocab, self._info, self._stock, sampling, seed, n_ctx_train)

    def new_matcher(self, constraint: Constraint) -> GuidedMatcher:
        return self._guide.matcher(constraint)

    def close(self) -> None:
        """Free contexts and weights, once those that read the vocabulary are done. May be called twice."""
        self._vocab.close()
        for context in list(self._contexts):
            context.close()
        self._stock.close()
        if self._handle:
            lib.llama_model_free(self._handle)
            self._handle = None


def _load_mode(config: ModelConfig) -> int:
    modes = {
        (False, False): lib.LLAMA_LOAD_MODE_NONE,
        (True, False): lib.LLAMA_LOAD_MODE_MMAP,
        (False, True): lib.LLAMA_LOAD_MODE_MLOCK,
        (True, True): lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
    }
    return int(modes[config.use_mmap, config.use_mlock])


def _read_info(handle: Any, vocab: Any, path: Path) -> ModelInfo:
    meta, weights = _read_meta(handle), weights_sum(path)
    n_vocab = int(lib.llama_vocab_n_tokens(vocab))
    template = lib.llama_model_chat_template(handle, None)
    return ModelInfo(
        name=meta.get("general.name") or path.stem,
        path=str(path),
        description=_text(lib.llama_model_desc, handle),
        ftype=(lib.llama_ftype_name(lib.llama_model_ftype(handle)) or b"").decode().removeprefix("(guessed) "),
        n_vocab=n_vocab,
        vocab_type=int(lib.llama_vocab_type(vocab)),
        n_ctx_train=int(lib.llama_model_n_ctx_train(handle)),
        n_embd=int(lib.llama_model_n_embd(handle)),
        n_params=int(lib.llama_model_n_params(handle)),
        n_bytes=int(lib.llama_model_size(handle)),
        bos_token=_token(lib.llama_vocab_bos(vocab)),
        eos_token=_token(lib.llama_vocab_eos(vocab)),
        add_bos=bool(lib.llama_vocab_get_add_bos(vocab)),
        eog_tokens=frozenset(token for token in range(n_vocab) if lib.llama_vocab_is_eog(vocab, token)),
        chat_template=template.decode("utf-8", "replace") if template else None,
        meta=meta,
        suppressed_tokens=_suppressed(vocab),
        weights=weights,
        fingerprint=with_library(weights),
    )


def _suppressed(vocab: Any) -> frozenset[Token]:
    n = ctypes.c_int32(0)
    tokens = lib.llama_vocab_get_suppress_tokens(vocab, ctypes.byref(n))
    return frozenset(int(tokens[i]) for i in range(n.value))


def _read_meta(handle: Any) -> dict[str, str]:
    keys = (_text(lib.llama_model_meta_key_by_index, handle, i) for i in range(lib.llama_model_meta_count(handle)))
    return {key: _text(lib.llama_model_meta_val_str_by_index, handle, i) for i, key in enumerate(keys)}


def _text(read: Callable[..., int], *args: Any) -> str:
    """The text of one of libllama's snprintf-like functions, whatever its length."""
    buffer = ctypes.create_string_buffer(256)
    n = read(*args, buffer, len(buffer))
    if n >= len(buffer):
        buffer = ctypes.create_string_buffer(n + 1)
        read(*args, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def _token(token: int) -> Token | None:
    return token if token >= 0 else None
