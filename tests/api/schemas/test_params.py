"""Request fields: types, limits, aliases and clamps."""

from __future__ import annotations

import math
import re

import pytest
from tests.api.canned import EOS, N_VOCAB, ByteTokenizer

from corral.api.schemas.defaults import Defaults
from corral.api.schemas.fields import Fields, parse_object
from corral.api.schemas.params import Params, read_params
from corral.config import ServerConfig
from corral.errors import InvalidRequest
from corral.tasks import Limits, Sampling


def read(body: dict[str, object], defaults: Defaults | None = None, server: ServerConfig | None = None) -> Params:
    return read_params(Fields(body), defaults or Defaults(), server or ServerConfig(), ByteTokenizer(), n_slots=4)


def test_an_empty_body_is_the_command_lines_defaults() -> None:
    defaults = Defaults(Sampling(temperature=0.25), Limits(n_predict=9, stop=("x",)), cache_prompt=False)
    params = read({}, defaults)
    assert (params.sampling, params.limits, params.cache_prompt) == (defaults.sampling, defaults.limits, False)


def test_null_counts_as_absent() -> None:
    every = ("temperature", "n_predict", "stop", "stream", "seed", "samplers", "logit_bias", "stream_options", "n")
    assert read(dict.fromkeys(every)) == read({})


@pytest.mark.parametrize(
    ("body", "n_predict"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 2, "max_tokens": 3}, 2),
        ({"n_predict": 1, "max_completion_tokens": 2, "max_tokens": 3}, 1),
        ({"n_predict": None, "max_tokens": 3}, 3),
        ({"n_predict": 0}, 0),
        ({"n_predict": -1}, 50),
        ({"n_predict": 99}, 99),
    ],
)
def test_n_predict_and_its_aliases(body: dict[str, object], n_predict: int) -> None:
    assert read(body, Defaults(limits=Limits(n_predict=50))).limits.n_predict == n_predict


def test_soft_limits_clamp() -> None:
    s = read({"temperature": -1, "top_k": -5, "top_p": 7, "min_p": -2, "mirostat": 9, "adaptive_target": 2}).sampling
    assert (s.temperature, s.top_k, s.top_p, s.min_p, s.mirostat, s.adaptive_target) == (0, 0, 1, 0, 2, 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n_predict": -2}, "Field 'n_predict': Value must be between -1 <= value <= 2147483647, but got -2"),
        ({"n": 0}, "Field 'n': Value must be between 1 <= value <= 4, but got 0"),
        ({"n_cmpl": 5}, "Field 'n_cmpl': Value must be between 1 <= value <= 4, but got 5"),
        ({"repeat_last_n": -1}, "Field 'repeat_last_n': Value must be between 0 <= value <= 2147483647, but got -1"),
        (
            {"adaptive_decay": 1.5},
            "Field 'adaptive_decay': Value must be between 0.000000 <= value <= 0.990000, but got 1.500000",
        ),
        (
            {"adaptive_decay": 2},
            "Field 'adaptive_decay': Value must be between 0.000000 <= value <= 0.990000, but got 2.000000",
        ),
        (
            {"adaptive_decay": -1e300},
            "Field 'adaptive_decay': Value must be between 0.000000 <= value <= 0.990000, but got -1e+300",
        ),
        ({"n": 1e300}, "Field 'n': Value must be between 1 <= value <= 4, but got 1e+300"),
        ({"n": 2**63}, "Field 'n': Value must be between 1 <= value <= 4, but got 9.22337e+18"),
        ({"temperature": "hot"}, "Field 'temperature': type must be number, but is string"),
        ({"temperature": True}, "Field 'temperature': type must be number, but is boolean"),
        ({"n_predict": [1]}, "Field 'n_predict': type must be number, but is array"),
        ({"stream": 1}, "Field 'stream': type must be boolean, but is number"),
        ({"stop": [1]}, "Field 'stop.0': type must be string, but is number"),
        ({"stop": {}}, "Field 'stop': type must be array, but is object"),
        ({"stream_options": True}, "Field 'stream_options': type must be object, but is boolean"),
        ({"dry_sequence_breakers": []}, "Field 'dry_sequence_breakers': must be a non-empty array of strings"),
        ({"repeat_penalty": 0}, "Failed to initialize samplers: repeat_penalty must be greater than 0"),
        ({"grammar": {}}, "Field 'grammar': type must be string, but is object"),
        ({"samplers": 3}, "Field 'samplers': type must be array, but is number"),
        ({"seed": "x"}, "Field 'seed': type must be number, but is string"),
        ({"lora": [1]}, "Field 'lora.0': type must be object with 'id' and 'scale', but is number"),
        ({"lora": [{"scale": 1}]}, "Field 'lora.0.id': type must be an integer, but is null"),
        ({"lora": [{"id": 0, "scale": "x"}]}, "Field 'lora.0.scale': type must be number, but is string"),
        (
            {"stream_options": {"include_usage": 1}},
            "Field 'stream_options.include_usage': type must be boolean, but is number",
        ),
        ({"response_format": {"type": 5}}, "Field 'response_format.type': type must be string, but is number"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "Field 'response_format.json_schema.schema': type must be object, but is number",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": 5}},
            "Field 'response_format.json_schema': type must be object, but is number",
        ),
        ({"grammar_lazy": True, "grammar_triggers": [{}]}, "Field 'grammar_triggers.0': a trigger has no 'value'"),
        (
            {"grammar_lazy": True, "grammar_triggers": [{"value": "a"}, {"type": 9}]},
            "Field 'grammar_triggers.1.type': Value must be between 0 <= value <= 3, but got 9",
        ),
        ({"lora": {}}, "Field 'lora': type must be array, but is object"),
        ({"priority": 1.5}, "Field 'priority': must be a whole number, but is 1.5"),
        ({"priority": True}, "Field 'priority': type must be number, but is boolean"),
        (
            {"dry_penalty_last_n": -1},
            "Field 'dry_penalty_last_n': Value must be between 0 <= value <= 2147483647, but got -1",
        ),
    ],
)
def test_refusals(body: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(body)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "body",
    [
        {"json_schema": 5},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
        {"response_format": {"type": "poem"}},
        {"response_format": "json"},
        {"grammar_lazy": True, "grammar": 'root ::= "a"'},
        {"grammar_lazy": True, "grammar": 'root ::= "a"', "grammar_triggers": [{"type": 2, "value": "a(.*"}]},
        {"grammar_lazy": True, "regex": "a", "grammar_triggers": [{"type": 1}]},
        {"json_schema": {}, "grammar": 'root ::= "a"'},
        {"json_schema": {}, "response_format": {"type": "json_object"}},
        {"regex": "a", "lark": 'start: "a"'},
    ],
)
def test_a_constraint_that_is_not_one_is_never_ignored(body: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        read(body)


@pytest.mark.parametrize(
    ("seed", "used"),
    [(-1, None), (2**32 - 1, None), (0, 0), (2**32 + 5, 5), (-2, 2**32 - 2), (1e300, 2**32 - 1), (7.9, 7)],
)
def test_seeds_are_unsigned_32_bit_and_minus_one_draws(seed: float, used: int | None) -> None:
    expected = None if seed == 1e300 else used
    assert read({"seed": seed}).sampling.seed == expected


@pytest.mark.parametrize(
    ("bias", "pairs"),
    [
        ([[5, 1.5]], ((5, 1.5),)),
        ([[5, False], ["ab", -1]], ((5, -math.inf), (97, -1.0), (98, -1.0))),
        ({"5": 2, "ab": False}, ((5, 2.0), (97, -math.inf), (98, -math.inf))),
        ([], ()),
    ],
)
def test_logit_bias_forms(bias: object, pairs: tuple[tuple[int, float], ...]) -> None:
    assert read({"logit_bias": bias}).sampling.logit_bias == pairs


@pytest.mark.parametrize(
    "bias",
    [
        *([[N_VOCAB, 1]], {"-1": 1}, [[5]], [5], [[True, 1]], [[5, True]], [[5, "x"]], "x"),
        *({"9" * 19: 1}, {"9" * 5000: 1}, {"-" + "0" * 5000: 1}),
    ],
)
def test_a_wrong_logit_bias_is_refused(bias: object) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias") as refused:
        read({"logit_bias": bias})
    assert len(str(refused.value)) < 200


def test_what_only_looks_like_an_id_is_text() -> None:
    bytes_of_text = tuple((byte, 1.0) for byte in b"--5")
    assert read({"logit_bias": {"--5": 1}}).sampling.logit_bias == bytes_of_text
    assert len(read({"logit_bias": {"1_0": 1, "+1": 1, "\u0663": 1}}).sampling.logit_bias) == 3 + 2 + 2


def test_unknown_samplers_are_left_out_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert read({"samplers": ["top-k", "magic\n", *["x" * 9000] * 999]}).sampling.samplers == ("top_k",)
    (line,) = caplog.messages
    assert "'magic\\n'" in line and "top_k" not in line.partition("(")[0]
    assert len(line) < 500
    caplog.clear()
    assert read({"samplers": "kqt"}).sampling.samplers == ("top_k", "temperature")
    assert "'q'" in caplog.text
    caplog.clear()
    read({"samplers": ["nucleus", "typical-p", "temp"]})
    assert not caplog.messages


def test_samplers_by_name_alias_and_letter() -> None:
    assert read({"samplers": ["top-k", "topp", "nucleus", "temp", "nonsense"]}).sampling.samplers == (
        "top_k",
        "top_p",
        "top_p",
        "temperature",
    )
    assert read({"samplers": "kt?"}).sampling.samplers == ("top_k", "temperature")
    assert read({"samplers": []}).sampling.samplers == ()


def test_stop_forms() -> None:
    defaults = Defaults(limits=Limits(stop=("User:",)))
    assert read({"stop": "x"}, defaults).limits.stop == ("x",)
    assert read({"stop": ["a", "", "b"]}, defaults).limits.stop == ("a", "b")
    assert read({"stop": []}, defaults).limits.stop == ("User:",)


def test_n_probs_and_logprobs() -> None:
    assert read({"logprobs": True}).sampling.n_probs == 1
    assert read({"logprobs": 3}).sampling.n_probs == 3
    assert read({"n_probs": 2, "logprobs": 3}).sampling.n_probs == 2
    assert read({"n_probs": 10**9}).sampling.n_probs == N_VOCAB


def test_id_slot_wraps() -> None:
    assert [read({"id_slot": i}).id_slot for i in (-1, 0, 5)] == [None, 0, 1]


def test_preserved_tokens() -> None:
    assert read({"preserved_tokens": ["<eos>", "several"]}).preserved_tokens == {EOS}


def test_usage_can_be_always_on() -> None:
    assert not read({}).include_usage
    assert read({"stream_options": {"include_usage": True}}).include_usage
    assert read({}, server=ServerConfig(always_usage=True)).include_usage


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xc4\xe3", b'{"a": NaN}', b"[" * 5000, b'{"a":"\\ud800"}'])
def test_bad_bodies(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_object(raw)


def test_a_parse_error_names_its_place() -> None:
    with pytest.raises(InvalidRequest, match="parse error at line 2, column"):
        parse_object(b'{"a":\n x}')


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"prompt":"\xff\xfe"}', "byte 11 (from 0) is 0xff. Encode"),
        (b'{"prompt":"\xc3', "byte 11 (from 0) is 0xc3. Encode"),
        ('{"prompt":"x"}'.encode("utf-16"), "byte 0 (from 0) is 0xff; it looks like UTF-16 or UTF-32. Encode"),
        ('{"prompt":"x"}'.encode("utf-16-le"), "byte 1 (from 0) is 0x00; it looks like UTF-16 or UTF-32. Encode"),
        ('{"prompt":"x"}'.encode("utf-32-be"), "byte 0 (from 0) is 0x00; it looks like UTF-16 or UTF-32. Encode"),
    ],
)
def test_a_body_in_another_encoding_is_told_where(raw: bytes, place: str) -> None:
    with pytest.raises(InvalidRequest, match="the request body is not UTF-8: " + re.escape(place)):
        parse_object(raw)


def test_a_number_beyond_floats_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        read(parse_object(b'{"temperature": 1e999}'))
