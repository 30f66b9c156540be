"""Flags become settings the way llama-server resolves them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from corral.api.schemas.defaults import Defaults
from corral.cli.flags import FLAGS
from corral.cli.parse import Parsed, UsageError, parse
from corral.cli.resolve import DEMO, Settings, resolve
from corral.config import MIB, ApiKey, ContextConfig, EngineConfig, ModelConfig, ServerConfig
from corral.errors import LoadError
from corral.tasks import DEFAULT_SAMPLERS, Constraint, ConstraintKind, Sampling


def settings(*words: str) -> Settings:
    return resolve(parse(words, {}))


def test_without_flags_every_setting_is_its_room_default() -> None:
    got = settings()
    assert got.model == ModelConfig(DEMO)
    assert got.context == ContextConfig(n_rows=16)
    assert got.engine == EngineConfig()
    assert settings("-m", "x.gguf").model.path == Path("x.gguf")
    assert got.server == ServerConfig()
    assert got.defaults == Defaults()


def test_adapters_are_numbered_in_the_order_of_their_ids() -> None:
    got = settings("--lora", "a.gguf,b.gguf", "--lora-scaled", "c:d.gguf:0.5,e.gguf:-2", "--lora", "f.gguf").model
    paths = [(str(adapter.path), adapter.scale) for adapter in got.adapters]
    assert paths == [("a.gguf", 1), ("b.gguf", 1), ("f.gguf", 1), ("c:d.gguf", 0.5), ("e.gguf", -2)]
    unapplied = settings("--lora", "a.gguf", "--lora-scaled", "b.gguf:3", "--lora-init-without-apply").model
    assert [adapter.scale for adapter in unapplied.adapters] == [0, 0]
    with pytest.raises(UsageError, match=r"--lora-scaled: 'a\.gguf' is not FILE:SCALE"):
        settings("--lora-scaled", "a.gguf")


def test_automatic_slots_share_the_context() -> None:
    context = settings("-c", "4096").context
    assert (context.n_slots, context.kv_unified, context.n_rows, context.n_ctx) == (4, True, 16, 4096)


@pytest.mark.parametrize(("n_slots", "unified", "n_rows"), [(1, True, 10), (8, True, 24), (9, False, 9)])
def test_slots_that_are_asked_for_split_it_if_the_model_is_plain(n_slots: int, unified: bool, n_rows: int) -> None:
    context = settings("-np", str(n_slots)).context
    assert (context.n_slots, context.kv_unified, context.n_rows) == (n_slots, unified, n_rows)
    assert context.split_if_plain
    assert settings("-np", str(n_slots)).engine.n_slots == n_slots
    assert not any(settings(*words).context.split_if_plain for words in ((), ("-np", "2", "-kvu")))


def test_the_kv_mode_can_be_chosen_apart() -> None:
    shared = settings("-np", "2", "-kvu").context
    assert (shared.kv_unified, shared.n_rows) == (True, 12)
    split = settings("-no-kvu").context
    assert (split.kv_unified, split.n_rows) == (False, 4)


def test_rows_never_exceed_what_libllama_can_hold() -> None:
    assert settings("-np", "200", "-kvu").context.n_rows == 256
    for n in ("0", "257"):
        with pytest.raises(UsageError, match="--parallel"):
            settings("-np", n)


def test_prompt_threads_follow_threads() -> None:
    context = settings("-t", "3").context
    assert (context.n_threads, context.n_threads_batch) == (3, 3)
    context = settings("-t", "3", "-tb", "5").context
    assert (context.n_threads, context.n_threads_batch) == (3, 5)
    assert settings("-t", "-1").context.n_threads == 0


def test_a_forward_pass_is_not_larger_than_a_step() -> None:
    assert settings("-b", "64").context.n_ubatch == 64


@pytest.mark.parametrize(
    ("words", "use_mmap", "use_mlock"),
    [
        (("-lm", "none"), False, False),
        (("-lm", "mlock"), False, True),
        (("-lm", "mmap+mlock"), True, True),
        (("--no-mmap",), False, False),
        (("--mlock",), True, True),
    ],
)
def test_load_modes(words: tuple[str, ...], use_mmap: bool, use_mlock: bool) -> None:
    model = settings(*words).model
    assert (model.use_mmap, model.use_mlock) == (use_mmap, use_mlock)


def test_cache_ram_is_in_mib() -> None:
    assert settings("-cram", "3").engine.cache_ram_bytes == 3 * MIB
    assert settings("-cram", "0").engine.cache_ram_bytes == 0
    assert settings("-cram", "-1").engine.cache_ram_bytes == -1


def test_rope_scale_is_the_inverse_of_the_frequency_scale() -> None:
    assert settings("--rope-scale", "4").context.rope_freq_scale == 0.25


def test_sampling_defaults_reach_requests() -> None:
    got = settings(
        "--temp", "-3", "--top-k", "5", "-s", "9", "-l", "3+1", "--sampler-seq", "kt", "--mirostat-ent", "4",
        "--dry-sequence-breaker", "none", "--ignore-eos", "-r", "END", "-n", "7", "-sp", "--no-cache-prompt",
    )  # fmt: skip
    wanted = replace(
        Sampling(),
        temperature=0.0,
        top_k=5,
        seed=9,
        logit_bias=((3, 1.0),),
        samplers=("top_k", "temperature"),
        mirostat_tau=4.0,
        dry_sequence_breakers=(),
        ignore_eos=True,
    )
    assert got.defaults.sampling == wanted
    assert (got.defaults.limits.n_predict, got.defaults.limits.stop) == (7, ("END",))
    assert got.defaults.special
    assert not got.defaults.cache_prompt
    assert settings().defaults.sampling.samplers == DEFAULT_SAMPLERS


def test_files_and_flags_add_up(tmp_path: Path) -> None:
    keys, template = tmp_path / "keys", tmp_path / "template"
    keys.write_text("b\n")
    template.write_text("{{ x }}")
    server = settings("--api-key", "a, c", "--api-key-file", str(keys), "--chat-template-file", str(template)).server
    assert server.api_keys == (ApiKey("a"), ApiKey("c"), ApiKey("b"))
    assert server.chat_template == "{{ x }}"


def key_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "keys"
    path.write_text(text)
    return str(path)


def test_n5_keys_have_weights_and_priorities(tmp_path: Path) -> None:
    text = "# llama-server's format\nplain==\n\n  ann  weight=3 priority=-2\nbob priority=1\n#cy\nd#e weight=0.5\n"
    server = settings("--api-key-file", key_file(tmp_path, text)).server
    assert server.api_keys == (
        ApiKey("plain=="),
        ApiKey("ann", 3.0, -2),
        ApiKey("bob", 1.0, 1),
        ApiKey("d#e", 0.5, 0),
    )
    assert "ann" not in repr(server)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sesame weight=0", "line 2: weight: 0.0 is too small"),
        ("sesame weight=nan", "line 2: weight: 'nan' is not a finite number"),
        ("sesame priority=101", "line 2: priority: 101 is too large"),
        ("sesame priority=1.5", "line 2: priority: '1.5' is not a whole number"),
        ("sesame open", "line 2: after the key there may be weight=X and priority=N"),
        ("sesame weight=1 weight=1", "line 2: after the key there may be weight=X and priority=N, each once"),
    ],
)
def test_n5_a_bad_line_of_keys_is_named_without_the_key(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(LoadError) as caught:
        settings("--api-key-file", key_file(tmp_path, f"good\n{line}\n"))
    assert says in str(caught.value)
    assert "sesame" not in str(caught.value) and "\n" not in str(caught.value)


def test_n5_a_key_has_one_weight(tmp_path: Path) -> None:
    path = key_file(tmp_path, "a weight=2\nb\n")
    assert len(settings("--api-key", "b", "--api-key-file", path).server.api_keys) == 2
    with pytest.raises(UsageError, match="given twice"):
        settings("--api-key", "a", "--api-key-file", path)


@pytest.mark.parametrize("name", ["-j", "-jf"])
def test_a_schema_for_every_reply(name: str, tmp_path: Path) -> None:
    def value(text: str) -> str:
        (tmp_path / "schema").write_text(text)
        return text if name == "-j" else str(tmp_path / "schema")

    held = settings(name, value('{"type": "array"}')).defaults.sampling.constraint
    assert held == Constraint(ConstraintKind.JSON_SCHEMA, '{"type": "array"}')
    held = settings(name, value("{}")).defaults.sampling.constraint
    assert held is not None and json.loads(held.text) == {"type": "object"}
    with pytest.raises(UsageError, match="use one of them"):
        settings(name, value("{}"), "--grammar", 'root ::= "a"')


def test_tls_needs_both_files(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("")
    with pytest.raises(UsageError, match="need each other"):
        settings("--ssl-key-file", str(key))


class Recorder(Parsed):
    """Remembers which values were asked for."""

    asked: ClassVar[set[str]] = set()

    def __getitem__(self, key: str) -> object:
        self.asked.add(key)
        return super().__getitem__(key)


ELSEWHERE = {"drain_s", "verbose", "verbosity", "log_file", "log_prefix", "log_timestamps", "log_disable"}
"""Read by ``commands.serve`` and ``logs``."""


def test_no_flag_is_silently_ignored() -> None:
    values = parse([], {}).values
    resolve(Recorder(values, frozenset(), ()))
    resolve(Recorder({**values, "api_key": ("secret",)}, frozenset(values), ()))
    flags = [flag for group in FLAGS.values() for flag in group if not flag.note and flag.only is None]
    assert {flag.key for flag in flags} - Recorder.asked == ELSEWHERE


@pytest.mark.parametrize("keys", ["", ",", " , "])
def test_an_empty_key_does_not_open_the_server(keys: str) -> None:
    """As when a script passes a variable that is not set."""
    with pytest.raises(UsageError, match="--api-key is empty"):
        settings("--api-key", keys)
    assert settings("--api-key", "a,b").server.api_keys == (ApiKey("a"), ApiKey("b"))


@pytest.mark.parametrize(("text", "prefix"), [("foo", "/foo"), ("/foo/", "/foo"), ("/", ""), ("", ""), ("a/b", "/a/b")])
def test_a_prefix_has_its_slash_in_front(text: str, prefix: str) -> None:
    assert settings("--api-prefix", text).server.api_prefix == prefix


@pytest.mark.parametrize("text", ["bad", "root ::= (", "root ::= ([a-c] | [b-d] | [b-e])*", "root ::= other"])
def test_a_grammar_that_cannot_be_used_is_a_wrong_command_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.gbnf"
    file.write_text(text)
    for name, value in (("--grammar", text), ("--grammar-file", str(file))):
        with pytest.raises(UsageError, match=f"^{name}: .*grammar: ") as caught:
            settings(name, value)
        assert len(str(caught.value).splitlines()) == 1
    assert settings("--grammar", 'root ::= "a"').defaults.sampling.grammar == 'root ::= "a"'


def test_the_limit_of_bodies() -> None:
    assert settings().server.max_body_bytes == 0
    assert settings("--max-body-mib", "3").server.max_body_bytes == 3 * MIB
