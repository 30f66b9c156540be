"""SamplingParams as what the engine takes."""

from __future__ import annotations

import json

import pytest

from corral import SamplingParams
from corral.errors import InvalidRequest
from corral.ids import CacheKey
from corral.tasks import Constraint, ConstraintKind, Limits, Sampling


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


def test_the_salt_is_what_requests_with_that_salt_have() -> None:
    assert SamplingParams().cache_key() == CacheKey("")
    assert SamplingParams(cache_salt="s").cache_key() == CacheKey(":s")


def test_further_fields_of_sampling() -> None:
    sampling = SamplingParams(extra_args={"mirostat": 2, "samplers": ("top_k", "temperature")}).sampling()
    assert (sampling.mirostat, sampling.samplers) == (2, ("top_k", "temperature"))
    with pytest.raises(TypeError, match="'mirostatt'"):
        SamplingParams(extra_args={"mirostatt": 2})


@pytest.mark.parametrize(
    ("params", "held"),
    [
        (SamplingParams(), None),
        (SamplingParams(grammar='root ::= "a"'), None),
        (SamplingParams(json_schema={"type": "null"}), Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "null"}')),
        (SamplingParams(json_schema="{}"), Constraint(ConstraintKind.JSON_SCHEMA, "{}")),
        (SamplingParams(json_schema={}), Constraint(ConstraintKind.JSON_SCHEMA, "{}")),
        (SamplingParams(regex="a+"), Constraint(ConstraintKind.REGEX, "a+")),
        (SamplingParams(choice=["a", 'b"']), Constraint(ConstraintKind.LARK, 'start: "a" | "b\\""')),
        (SamplingParams(lark='start: "a"'), Constraint(ConstraintKind.LARK, 'start: "a"')),
    ],
)
def test_what_text_is_held_to(params: SamplingParams, held: Constraint | None) -> None:
    assert params.sampling().constraint == held


@pytest.mark.parametrize(
    "fields",
    [{"grammar": "x", "regex": "a"}, {"json_schema": {}, "lark": "x"}, {"choice": ["a"], "json_schema": '{"a": 1}'}],
    ids=json.dumps,
)
def test_text_is_held_to_one_thing(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="use one of grammar, json_schema, regex, choice, lark"):
        SamplingParams(**fields).sampling()  # type: ignore[arg-type]
