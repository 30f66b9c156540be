"""SamplingParams as what the engine takes."""

from __future__ import annotations

import json
import math
import re

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


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("n", "2", "a whole number, but is '2'"),
        ("n", True, "a whole number, but is True"),
        ("max_tokens", -2, "a whole number from -1 to 2147483647 or None, but is -2"),
        ("max_tokens", 1.5, "a whole number from -1 to 2147483647 or None, but is 1.5"),
        ("temperature", math.nan, "a finite number, but is nan"),
        ("temperature", "hot", "a finite number, but is 'hot'"),
        ("top_k", None, "a whole number, but is None"),
        ("top_p", math.inf, "a finite number, but is inf"),
        ("min_p", [0.1], "a finite number, but is [0.1]"),
        ("seed", 0.5, "a whole number or None, but is 0.5"),
        ("stop", 5, "text or a list of texts, but is 5"),
        ("stop", ["a", 5], "text or a list of texts, but is ['a', 5]"),
        ("repetition_penalty", 0, "a finite number greater than 0, but is 0"),
        ("presence_penalty", None, "a finite number, but is None"),
        ("frequency_penalty", -math.inf, "a finite number, but is -inf"),
        ("logprobs", -1, "a whole number from 0 to 2147483647 or None, but is -1"),
        ("prompt_logprobs", True, "a whole number from 0 to 2147483647 or None, but is True"),
        ("logit_bias", [1.0], "a mapping of token ids to finite numbers or -inf, or None, but is [1.0]"),
        ("logit_bias", {5: math.nan}, "a mapping of token ids to finite numbers or -inf, or None, but is {5: nan}"),
        ("ignore_eos", 1, "True or False, but is 1"),
        ("skip_special_tokens", None, "True or False, but is None"),
        ("grammar", 5, "text, but is 5"),
        ("json_schema", 5, "a schema as a mapping, its text or None, but is 5"),
        ("regex", None, "text, but is None"),
        ("choice", [], "a list of at least one text or None, but is []"),
        ("choice", "yes", "a list of at least one text or None, but is 'yes'"),
        ("lark", b"x", "text, but is b'x'"),
        ("lora", [1.0], "a mapping of the numbers of adapters to finite scales or None, but is [1.0]"),
        ("lora", {0: math.nan}, "a mapping of the numbers of adapters to finite scales or None, but is {0: nan}"),
        ("priority", "high", "a whole number from -100 to 100, but is 'high'"),
        ("cache_salt", 5, "text, but is 5"),
        ("cache_prompt", "no", "True or False, but is 'no'"),
        ("thinking_token_budget", -2, "a whole number from -1 to 2147483647 or None, but is -2"),
        ("extra_args", [], "a mapping, but is []"),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: object, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"{field}: must be {told}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mirostat", 3),
        ("typical_p", math.nan),
        ("adaptive_decay", 1.0),
        ("samplers", ["none"]),
        ("dry_sequence_breakers", []),
        ("post_sampling_probs", 1),
        ("repeat_penalty", 0),
    ],
)
def test_a_wrong_further_field_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"extra_args: {field}: must be .*, but is {re.escape(repr(value))}"):
        SamplingParams(extra_args={field: value})
