"""Makes tiny GGUF models with random weights that libllama loads in milliseconds."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, N_FF, N_CTX = 2, 64, 4, 2, 96, 1024
SPECIAL = ("<unk>", "<s>", "</s>")
PRINTABLE = tuple("▁" if code == 32 else chr(code) for code in range(32, 127))

N_VOCAB = len(SPECIAL) + 256 + len(PRINTABLE)


def write_tiny_llama(path: Path, *, seed: int = 0, arch: str = "llama", name: str = "Tiny", window: int = 0) -> Path:
    """A llama-like model of about 60 thousand F32 weights over bytes and printable characters (354 tokens)."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(name)
    writer.add_context_length(N_CTX)
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
    n_inner, n_state, n_rank, n_conv = 2 * N_EMBD, 8, 4, 4
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_rank)
    writer.add_ssm_conv_kernel(n_conv)
    _add_vocabulary(writer)
    shapes = {"ssm_in.weight": (2 * n_inner, N_EMBD), "ssm_conv1d.weight": (n_inner, n_conv)}
    shapes |= {"ssm_conv1d.bias": (n_inner,), "ssm_x.weight": (n_rank + 2 * n_state, n_inner)}
    shapes |= {"ssm_dt.weight": (n_inner, n_rank), "ssm_dt.bias": (n_inner,), "ssm_out.weight": (N_EMBD, n_inner)}
    draw = np.random.default_rng(seed)
    writer.add_tensor("token_embd.weight", draw.normal(0, 0.3, (N_VOCAB, N_EMBD)).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    for layer in range(N_LAYER):
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}", draw.normal(0, 0.2, shape).astype(np.float32))
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(N_EMBD, np.float32))
        writer.add_tensor(f"blk.{layer}.ssm_a", -np.ones((n_inner, n_state), np.float32))
        writer.add_tensor(f"blk.{layer}.ssm_d", np.ones(n_inner, np.float32))
    _write(writer)
    return path


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
    n_kv = N_EMBD // N_HEAD * N_HEAD_KV
    shapes = {"attn_q": (N_EMBD, N_EMBD), "attn_k": (n_kv, N_EMBD), "attn_v": (n_kv, N_EMBD)}
    shapes |= {"attn_output": (N_EMBD, N_EMBD), "ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD)}
    shapes |= {"ffn_down": (N_EMBD, N_FF)}
    norms = ["attn_norm", "ffn_norm"] + (["post_attention_norm", "post_ffw_norm"] if gemma else [])
    names = {"token_embd": (N_VOCAB, N_EMBD)} | ({} if gemma else {"output": (N_VOCAB, N_EMBD)})
    names |= {f"blk.{layer}.{name}": shape for layer in range(N_LAYER) for name, shape in shapes.items()}
    for name, shape in names.items():
        writer.add_tensor(f"{name}.weight", draw.normal(0, shape[1] ** -0.5, shape).astype(np.float32))
    for name in ["output_norm", *(f"blk.{layer}.{norm}" for layer in range(N_LAYER) for norm in norms)]:
        writer.add_tensor(f"{name}.weight", np.ones(N_EMBD, np.float32))


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
