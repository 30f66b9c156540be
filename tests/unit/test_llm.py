"""What LLM makes of its arguments, without a model."""

from __future__ import annotations

import subprocess
import sys

import pytest

from corral import LLM, SamplingParams
from corral.tasks import Limits, Sampling


def test_importing_corral_loads_neither_libllama_nor_the_server() -> None:
    code = "import corral, sys; print([m for m in ('llama_cpp', 'fastapi', 'numpy') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "[]"


def test_an_unknown_option_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(TypeError, match="n_slotz"):
        LLM("nowhere.gguf", n_slotz=3)


def test_parameters_default_to_the_server_sampling() -> None:
    assert SamplingParams().sampling() == Sampling()


def test_parameters_are_translated() -> None:
    params = SamplingParams(
        max_tokens=None, temperature=0, top_k=-1, stop="END", repetition_penalty=1.2, logprobs=3, logit_bias={7: -1.0}
    )
    sampling = params.sampling()
    assert (sampling.temperature, sampling.top_k, sampling.repeat_penalty) == (0, 0, 1.2)
    assert (sampling.n_probs, sampling.logit_bias) == (3, ((7, -1.0),))
    assert params.limits() == Limits(n_predict=-1, stop=("END",))
    assert SamplingParams(max_tokens=0, stop=["a", ""]).limits() == Limits(n_predict=0, stop=("a",))
