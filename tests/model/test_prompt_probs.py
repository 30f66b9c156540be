"""Log-probabilities of prompts agree with what libllama computes for the whole prompt at once."""

from __future__ import annotations

from pathlib import Path

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from corral.config import ContextConfig, EngineConfig, ModelConfig, n_rows_for
from corral.engine.core import Engine
from corral.events import Finished
from corral.ids import TaskId, Token
from corral.llama.model import LlamaModel
from corral.runtime import SystemClock
from corral.tasks import Limits, Sampling, Task

TEXT = "The capital of France is Paris, and the capital of Italy is Rome. " * 4


def whole_logprobs(model: LlamaModel, tokens: list[Token]) -> np.ndarray:
    """Of each token but the first, by one decode with logits everywhere: nothing of ours is in between."""
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 512, 512, 512
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = lib.GGML_TYPE_F32
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = lib.llama_init_from_model(model._handle, params)
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    assert lib.llama_decode(context, batch) == 0
    n_vocab = model.info.n_vocab
    rows = np.ctypeslib.as_array(lib.llama_get_logits(context), (len(tokens), n_vocab)).astype(np.float64)
    logs = rows - rows.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    found: np.ndarray = logs[np.arange(len(tokens) - 1), tokens[1:]]
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    return found


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
def test_they_agree_with_one_decode_of_the_whole_prompt(smollm2_f32: Path, unified: bool) -> None:
    model = LlamaModel.load(ModelConfig(smollm2_f32))
    try:
        tokens = model.tokenizer.tokenize(TEXT, add_special=True, parse_special=True)
        config = ContextConfig(
            n_ctx=512,
            n_slots=2,
            n_rows=n_rows_for(2, unified),
            kv_unified=unified,
            n_threads=1,
            type_k="f32",
            type_v="f32",
            flash_attn=False,
        )
        context = model.new_context(config)
        engine = Engine(model, context, SystemClock(), EngineConfig(n_slots=2, audit=True))
        asked = Task(TaskId(1), tuple(tokens), sampling=Sampling(temperature=0.0), limits=Limits(2), n_prompt_probs=3)
        beside = Task(TaskId(2), tuple(tokens[:20]), sampling=Sampling(temperature=0.0), limits=Limits(12))
        engine.submit((asked,))
        engine.submit((beside,))
        ends = {}
        while engine.has_work:
            ends.update({event.task_id: event for event in engine.step() if isinstance(event, Finished)})
        engine.close()
        probs = ends[asked.id].prompt_probs
        assert [entry.token for entry in probs] == tokens[1:]
        assert np.abs(np.array([entry.p for entry in probs]) - whole_logprobs(model, tokens)).max() < 1e-3
        assert all(len(entry.top) == 3 and entry.top[0][1] >= entry.p for entry in probs)
    finally:
        model.close()
