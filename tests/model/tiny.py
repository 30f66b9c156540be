"""Makes tiny GGUF models with random weights that libllama loads in milliseconds."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_CTX = 2, 64, 4, 2, 96, 1024
N_INNER, N_STATE, N_RANK, N_CONV = 2 * N_EMBD, 8, 4, 4
SPECIAL = ("<unk>", "<s>", "</s>")
PRINTABLE = tuple("▁" if code == 32 else chr(code) for code in range(32, 127))

N_VOCAB = len(SPECIAL) + 256 + len(PRINTABLE)

N_KV = N_EMBD // N_HEAD * N_HEAD_KV
ATTENTION = {"attn_q": (N_EMBD, N_EMBD), "attn_k": (N_KV, N_EMBD), "attn_v": (N_KV, N_EMBD)}
ATTENTION |= {"attn_output": (N_EMBD, N_EMBD)}
FEED = {"ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF)}
CONVOLUTION = {"shortconv.conv": (N_EMBD, N_CONV), "shortconv.in_proj": (3 * N_EMBD, N_EMBD)}
CONVOLUTION |= {"shortconv.out_proj": (N_EMBD, N_EMBD)}


def write_tiny_llama(
    path: Path, *, seed: int = 0, arch: str = "llama", name: str = "Tiny", window: int = 0, n_ctx: int = N_CTX
) -> Path:
    """A llama-like model of about 60 thousand F32 weights over bytes and printable characters (354 tokens)."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(name)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if window:
        writer.add_key_length(N_EMBD // N_HEAD)
        writer.add_value_length(N_EMBD // N_HEAD)
        writer.add_sliding_window(window)
    _add_vocabulary(writer)
    _add_weights(writer, seed, gemma=arch.startswith("gemma"))
    _write(writer)
    return path


def write_tiny_mamba(path: Path, *, seed: int = 0) -> Path:
    """A recurrent model of the same vocabulary: one state for each row instead of cells."""
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_state_sizes(writer)
    _add_vocabulary(writer)
    draw = np.random.default_rng(seed)
    _add_ends(writer, draw)
    for layer in range(N_LAYER):
        _add_state_layer(writer, draw, layer)
    _write(writer)
    return path


def write_tiny_jamba(path: Path, *, seed: int = 0) -> Path:
    """A hybrid of the same vocabulary: a layer with a state, one with attention, one with a state."""
    writer = gguf.GGUFWriter(path, "jamba")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(3)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv([0, N_HEAD_KV, 0])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_state_sizes(writer)
    _add_vocabulary(writer)
    draw = np.random.default_rng(seed)
    _add_ends(writer, draw)
    for layer in range(3):
        if layer != 1:
            _add_state_layer(writer, draw, layer)
            for name, n in (("dt", N_RANK), ("b", N_STATE), ("c", N_STATE)):
                writer.add_tensor(f"blk.{layer}.ssm_{name}_norm.weight", np.ones(n, np.float32))
        else:
            writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(N_EMBD, np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", np.ones(N_EMBD, np.float32))
        for name, shape in (FEED | (ATTENTION if layer == 1 else {})).items():
            weights = draw.normal(0, shape[1] ** -0.5, shape).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights)
    _write(writer)
    return path


def write_tiny_lfm2(path: Path, *, seed: int = 0, window: int = 16) -> Path:
    """A hybrid whose attention sees the last ``window`` positions only: a convolution, three layers of it, another one.

    All the cells of such a model are window cells; the main pool counts positions and stores nothing. Over its layers a
    token reaches further than the window: over 50 positions.
    """
    writer = gguf.GGUFWriter(path, "lfm2")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    n_head_kv = [0, N_HEAD_KV, N_HEAD_KV, N_HEAD_KV, 0]
    writer.add_block_count(len(n_head_kv))
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_shortconv_l_cache(N_CONV)
    writer.add_sliding_window(window)
    _add_vocabulary(writer)
    draw = np.random.default_rng(seed)
    _add_ends(writer, draw, norm="token_embd_norm")
    for layer, n in enumerate(n_head_kv):
        shapes = FEED | (ATTENTION if n else CONVOLUTION)
        for name, shape in shapes.items():
            weights = draw.normal(0, shape[1] ** -0.5, shape).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights)
        norms = {"attn_norm": N_EMBD, "ffn_norm": N_EMBD}
        norms |= {"attn_q_norm": N_EMBD // N_HEAD, "attn_k_norm": N_EMBD // N_HEAD} if n else {}
        for name, size in norms.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(size, np.float32))
    _write(writer)
    return path


def _add_state_sizes(writer: gguf.GGUFWriter) -> None:
    writer.add_ssm_inner_size(N_INNER)
    writer.add_ssm_state_size(N_STATE)
    writer.add_ssm_time_step_rank(N_RANK)
    writer.add_ssm_conv_kernel(N_CONV)


def _add_ends(writer: gguf.GGUFWriter, draw: np.random.Generator, norm: str = "output_norm") -> None:
    writer.add_tensor("token_embd.weight", draw.normal(0, 0.3, (N_VOCAB, N_EMBD)).astype(np.float32))
    writer.add_tensor("output.weight", draw.normal(0, 0.3, (N_VOCAB, N_EMBD)).astype(np.float32))
    writer.add_tensor(f"{norm}.weight", np.ones(N_EMBD, np.float32))


def _add_state_layer(writer: gguf.GGUFWriter, draw: np.random.Generator, layer: int) -> None:
    """Half of its channels forget within a few tokens, the others hardly at all."""
    shapes = {"ssm_in.weight": (2 * N_INNER, N_EMBD), "ssm_conv1d.weight": (N_INNER, N_CONV)}
    shapes |= {"ssm_conv1d.bias": (N_INNER,), "ssm_x.weight": (N_RANK + 2 * N_STATE, N_INNER)}
    shapes |= {"ssm_dt.weight": (N_INNER, N_RANK), "ssm_out.weight": (N_EMBD, N_INNER)}
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.{layer}.{name}", draw.normal(0, 0.2, shape).astype(np.float32))
    writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(N_EMBD, np.float32))
    decay = np.where(np.arange(N_INNER) % 2, 1.0, 0.001)[:, None]
    writer.add_tensor(f"blk.{layer}.ssm_dt.bias", np.full(N_INNER, 0.5, np.float32))
    writer.add_tensor(f"blk.{layer}.ssm_a", np.repeat(-decay, N_STATE, axis=1).astype(np.float32))
    writer.add_tensor(f"blk.{layer}.ssm_d", np.ones(N_INNER, np.float32))


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *PRINTABLE]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(PRINTABLE)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def _add_weights(writer: gguf.GGUFWriter, seed: int, *, gemma: bool) -> None:
    draw = np.random.default_rng(seed)
    shapes = ATTENTION | FEED
    norms = ["attn_norm", "ffn_norm"] + (["post_attention_norm", "post_ffw_norm"] if gemma else [])
    names = {"token_embd": (N_VOCAB, N_EMBD)} | ({} if gemma else {"output": (N_VOCAB, N_EMBD)})
    names |= {f"blk.{layer}.{name}": shape for layer in range(N_LAYER) for name, shape in shapes.items()}
    for name, shape in names.items():
        writer.add_tensor(f"{name}.weight", draw.normal(0, shape[1] ** -0.5, shape).astype(np.float32))
    for name in ["output_norm", *(f"blk.{layer}.{norm}" for layer in range(N_LAYER) for norm in norms)]:
        # Gemma's head is its embedding: what the layers add must outweigh the token, or it would only repeat it.
        weight = 4 if "post" in name else 1
        writer.add_tensor(f"{name}.weight", np.full(N_EMBD, weight, np.float32))


def write_tiny_lora(
    path: Path, *, seed: int = 1, arch: str = "llama", rank: int = 4, invocation: tuple[int, ...] = (), task: str = ""
) -> Path:
    """An adapter over ``write_tiny_llama`` that changes most of its next tokens; an aLoRA if it has an invocation."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    if task:
        writer.add_string("adapter.lora.task_name", task)
    if invocation:
        key = "adapter.alora.invocation_tokens"
        writer.add_key_value(key, list(invocation), gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    draw = np.random.default_rng(seed)
    for layer in range(N_LAYER):
        for name, n_in, n_out in (("attn_q", N_EMBD, N_EMBD), ("ffn_down", N_FF, N_EMBD)):
            a = draw.normal(0, n_in**-0.5, (rank, n_in)).astype(np.float32)
            b = draw.normal(0, 1.0, (n_out, rank)).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_a", a)
            writer.add_tensor(f"blk.{layer}.{name}.weight.lora_b", b)
    _write(writer)
    return path
