"""Words and variables become values; what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.cli.flags import FLAGS
from corral.cli.kinds import SWITCH
from corral.cli.parse import Parsed, UsageError, parse
from corral.config import ApiKey
from corral.errors import LoadError
from corral.tasks import SAMPLERS


def values(*words: str, **environ: str) -> Parsed:
    return parse(words, environ)


def refusal(*words: str, **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(words, environ)
    return str(caught.value)


def test_short_long_and_equals_forms_are_one_flag() -> None:
    for words in (("-c", "512"), ("--ctx-size", "512"), ("--ctx-size=512",), ("--ctx_size", "512")):
        assert values(*words)["ctx_size"] == 512


def test_a_negative_number_is_a_value() -> None:
    assert values("-n", "-1", "-s", "-1")["predict"] == -1


def test_defaults_fill_what_is_not_given() -> None:
    parsed = values()
    assert parsed["port"] == 8080
    assert not parsed.given
    assert not parsed.notes


def test_a_repeated_flag_warns_and_the_last_wins() -> None:
    parsed = values("--temp", "1", "--temperature", "0")
    assert parsed["temp"] == 0
    assert parsed.notes == ("--temp is given more than once: the last one counts",)


def test_repeatable_flags_collect() -> None:
    parsed = values("-r", "a\\n", "-r", "b", "-l", "5+1.5", "-l", "7-inf")
    assert parsed["reverse_prompt"] == ("a\n", "b")
    assert parsed["logit_bias"] == ((5, 1.5), (7, float("-inf")))
    assert not parsed.notes


@pytest.mark.parametrize("word", ["1", "true", "ON", "enabled"])
def test_variables_switch_on(word: str) -> None:
    assert values(LLAMA_ARG_ENDPOINT_METRICS=word)["metrics"] is True


@pytest.mark.parametrize("word", ["0", "false", "off", "Disabled"])
def test_variables_switch_off(word: str) -> None:
    assert values(LLAMA_ARG_ENDPOINT_SLOTS=word)["slots"] is False


def test_the_negative_variable_switches_off() -> None:
    assert values(LLAMA_ARG_NO_CONT_BATCHING="1")["cont_batching"] is False
    assert values(LLAMA_ARG_NO_CONT_BATCHING="0")["cont_batching"] is True


def test_a_flag_beats_its_variable() -> None:
    assert values("-c", "1", LLAMA_ARG_CTX_SIZE="2")["ctx_size"] == 1
    assert values("--slots", LLAMA_ARG_ENDPOINT_SLOTS="0")["slots"] is True
    assert not values("-c", "1", LLAMA_ARG_CTX_SIZE="2").notes


def test_an_empty_variable_is_not_set() -> None:
    assert values(LLAMA_ARG_CTX_SIZE="")["ctx_size"] == 0


def test_a_bad_variable_is_named() -> None:
    assert refusal(LLAMA_ARG_CTX_SIZE="many") == "LLAMA_ARG_CTX_SIZE: 'many' is not a whole number"
    assert refusal(LLAMA_ARG_ENDPOINT_SLOTS="maybe").startswith("LLAMA_ARG_ENDPOINT_SLOTS: ")


def test_every_bad_switch_is_named_with_its_value() -> None:
    switches = [flag for group in FLAGS.values() for flag in group if flag.kind is SWITCH]
    names = [name for flag in switches for name in (flag.env, flag.negative_env) if name]
    assert "LLAMA_ARG_NO_MMAP" in names
    for name in names:
        for value in ("maybe", "2", " "):
            assert refusal(**{name: value}) == f"{name}: {value!r} is not a switch (use on or off)"


def test_a_variable_that_would_be_ignored_is_refused() -> None:
    assert refusal(LLAMA_ARG_HF_REPO="a/b") == "LLAMA_ARG_HF_REPO is set, and corral does not have it"
    assert not values(LLAMA_ARG_EMBEDDINGS="0").given


def test_an_unknown_flag_gets_the_nearest_name() -> None:
    assert refusal("--temperture", "1") == "unknown flag --temperture (did you mean --temperature?)"
    assert refusal("--qqqqqqqq") == "unknown flag --qqqqqqqq"


@pytest.mark.parametrize("name", ["--control-vector", "--mmproj", "--spec-type", "--spec-draft-n-max", "--embeddings"])
def test_what_only_llama_server_has_is_said_so(name: str) -> None:
    assert refusal(name, "x") == f"{name} is not available in corral yet"


def test_values_that_are_not_there_yet_are_refused() -> None:
    assert values("--cache-reuse", "256")["cache_reuse"] == 256
    assert values("--cache-reuse", "0")["cache_reuse"] == 0
    assert refusal("--no-jinja") == "--no-jinja: templates are Jinja; nothing else is available in corral yet"
    assert "nothing else is available" in refusal(LLAMA_ARG_NO_JINJA="1")


def test_switching_off_what_is_absent_is_only_noted() -> None:
    assert values("--no-mmproj").notes == ("--no-mmproj has no effect: corral does not have it",)
    assert values("-fit", "off").notes == ("-fit off has no effect: corral does not have it",)
    assert values("--spec_type=none", "-np", "2")["parallel"] == 2
    assert refusal("-fit", "on") == refusal("--fit").replace("--fit", "-fit") == "-fit is not available in corral yet"


def test_a_refusal_says_what_to_do_where_there_is_another_way() -> None:
    assert refusal("-hf", "a/b") == ("-hf is not available in corral yet: download the GGUF file, then name it with -m")


def test_flags_without_effect_are_noted() -> None:
    parsed = values("--threads-http", "8", "--no-webui")
    assert len(parsed.notes) == 2
    assert all("has no effect" in note for note in parsed.notes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--port",), "--port needs a value: N"),
        (("--port", "70000"), "--port: 70000 is too large (at most 65535)"),
        (("-b", "0"), "-b: 0 is too small (at least 1)"),
        (("--port", "8_0"), "--port: '8_0' is not a whole number"),
        (("--port", "\u0663"), "--port: '\u0663' is not a whole number"),
        (("-c", "99999999999"), "-c: 99999999999 is too large (at most 2147483647)"),
        (("-t", "-99999999999"), "-t: -99999999999 is too small (at least -2147483648)"),
        (("-s", "4294967296"), "-s: 4294967296 is too large (at most 4294967295)"),
        (("--temp", "1_0"), "--temp: '1_0' is not a number"),
        (("--temp", "1e39"), "--temp: 1e+39 is too large (at most 3e+38)"),
        (("-l", "5+1.5.0"), "-l: '5+1.5.0' is not TOKEN_ID+BIAS or TOKEN_ID-BIAS"),
        (("-l", "\u0663+1"), "-l: '\u0663+1' is not TOKEN_ID+BIAS or TOKEN_ID-BIAS"),
        (("--temp", "nan"), "--temp: 'nan' is not a finite number"),
        (("-fa", "maybe"), "-fa: 'maybe' is not one of on, off, auto"),
        (("-l", "5*2"), "-l: '5*2' is not TOKEN_ID+BIAS or TOKEN_ID-BIAS"),
        (
            ("--samplers", "top_k;magic"),
            f"--samplers: no sampler is called 'magic'; there are {', '.join(SAMPLERS.values())}",
        ),
        (("--sampler-seq", "kz"), "--sampler-seq: no sampler has the letter 'z'"),
        (("--chat-template-kwargs", "[1]"), "--chat-template-kwargs: not a JSON object"),
        (("--metrics=1",), "--metrics takes no value"),
        (("model.gguf",), "unexpected argument 'model.gguf' (did you mean -m model.gguf?)"),
    ],
)
def test_what_is_wrong_is_said(words: tuple[str, ...], message: str) -> None:
    assert refusal(*words) == message


def test_files_are_read_where_they_are_named(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfirst\n\n second \n")
    assert values("--api-key-file", str(keys))["api_key_file"] == (ApiKey("first"), ApiKey("second"))


@pytest.mark.parametrize("name", ["--api-key-file", "--chat-template-file", "--ssl-key-file", "--grammar-file"])
def test_a_missing_file_is_an_error_with_its_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"cannot read .*nothing"):
        values(name, str(tmp_path / "nothing"))


def test_a_key_file_without_keys_does_not_open_the_server(tmp_path: Path) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# none yet\n")
    with pytest.raises(LoadError, match="holds no API key"):
        values("--api-key-file", str(empty))


def test_samplers_by_name_and_by_letter() -> None:
    assert values("--samplers", "top-k;temp")["samplers"] == ("top_k", "temperature")
    assert values("--samplers", "nucleus;typical_p;TopNSigma")["samplers"] == ("top_p", "typ_p", "top_n_sigma")
    assert values("--sampler-seq", "kt")["sampler_seq"] == ("top_k", "temperature")


def test_no_name_stands_for_two_flags() -> None:
    flags = [flag for group in FLAGS.values() for flag in group]
    names = [name for flag in flags for name in (*flag.names, *flag.negatives)]
    variables = [flag.env for flag in flags if flag.env] + [flag.negative_env for flag in flags if flag.negative_env]
    assert len(set(names)) == len(names)
    assert len(set(variables)) == len(variables)


NAMES = [flag.name for group in FLAGS.values() for flag in group if flag.kind.metavar.startswith(("FILE", "DIR"))]


@pytest.mark.parametrize("flag", NAMES)
def test_no_name_is_not_the_folder_that_the_server_was_started_in(flag: str) -> None:
    assert refusal(flag, "").startswith(f"{flag} is empty: name a f")
    assert refusal(f"{flag}=") == refusal(flag, "")
