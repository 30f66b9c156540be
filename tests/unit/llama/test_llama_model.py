"""Loading: every way in which it can fail names the file and the reason in one line; what loads tells what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.model.tiny import write_tiny_llama

from corral.config import ContextConfig, ModelConfig
from corral.errors import Closed, LoadError
from corral.llama.model import LlamaModel
from corral.tasks import Constraint, ConstraintKind, Sampling


def load_error(path: Path) -> str:
    with pytest.raises(LoadError) as caught:
        LlamaModel.load(ModelConfig(path))
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_missing_file(tmp_path):
    assert "no such file" in load_error(tmp_path / "nowhere.gguf")


def test_directory(tmp_path):
    assert "directory" in load_error(tmp_path)


def test_empty_file(tmp_path):
    (path := tmp_path / "empty.gguf").touch()
    assert "not a GGUF" in load_error(path)


def test_other_format(tmp_path):
    (path := tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    assert "not a GGUF" in load_error(path)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_truncated(tmp_path, tiny_model, share):
    whole = tiny_model.read_bytes()
    (path := tmp_path / "cut.gguf").write_bytes(whole[: int(len(whole) * share)])
    message = load_error(path)
    assert "gave no reason" not in message


def test_truncated_weights_are_named(tmp_path, tiny_model):
    (path := tmp_path / "cut.gguf").write_bytes(tiny_model.read_bytes()[:-1000])
    assert "incomplete" in load_error(path)


def test_unknown_architecture(tmp_path):
    path = write_tiny_llama(tmp_path / "strange.gguf", arch="llamb")
    assert "unknown model architecture: 'llamb'" in load_error(path)


def test_load_errors_do_not_reach_the_terminal(tmp_path, tiny_model, capfd):
    (path := tmp_path / "cut.gguf").write_bytes(tiny_model.read_bytes()[:-1000])
    load_error(path)
    out, err = capfd.readouterr()
    assert (out, err.replace("AMX is not ready to be used!\n", "")) == ("", "")


def test_info(tiny_model):
    model = LlamaModel.load(ModelConfig(tiny_model))
    info = model.info
    assert (info.name, info.ftype, info.n_vocab, info.n_ctx_train, info.n_embd) == ("Tiny", "all F32", 354, 1024, 64)
    assert (info.bos_token, info.eos_token, info.add_bos) == (1, 2, True)
    assert 2 in info.eog_tokens
    assert info.meta["general.architecture"] == "llama"
    assert info.chat_template is None
    model.close()
    model.close()


def test_name_falls_back_to_the_file(tmp_path):
    model = LlamaModel.load(ModelConfig(write_tiny_llama(tmp_path / "my-model.gguf", name="")))
    assert model.info.name == "my-model"
    model.close()


def test_progress_rises_to_one(tiny_model):
    heard: list[float] = []
    LlamaModel.load(ModelConfig(tiny_model), heard.append).close()
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


def test_what_progress_raises_stops_the_load(tiny_model):
    def refuse(_fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LlamaModel.load(ModelConfig(tiny_model), refuse)


def test_closing_the_model_closes_its_contexts(tiny_model):
    model = LlamaModel.load(ModelConfig(tiny_model))
    context = model.new_context(ContextConfig(n_ctx=256))
    model.close()
    with pytest.raises(ValueError, match="closed"):
        context.bounds(0)
    context.close()


def test_a_closed_model_and_its_tokenizer_refuse(tiny_model):
    model = LlamaModel.load(ModelConfig(tiny_model))
    tokenizer = model.tokenizer
    model.close()
    asked = (
        lambda: tokenizer.tokenize("a", add_special=True, parse_special=True),
        lambda: tokenizer.tokenize("a" * 10_000, add_special=True, parse_special=True),
        lambda: tokenizer.piece(3, special=False),
        lambda: tokenizer.detokenize([3], special=True),
        lambda: tokenizer.n_tokens_at_least("a"),
        lambda: model.new_context(ContextConfig(n_ctx=256)),
        lambda: model.new_sampler(Sampling(), 1, 1024),
        lambda: model.prepare(Sampling(grammar='root ::= "a"'), 1),
        lambda: model.new_matcher(Constraint(ConstraintKind.REGEX, "a")),
    )
    for ask in asked:
        with pytest.raises(Closed, match="the model is closed"):
            ask()
    model.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"n_slots": 5, "n_rows": 4},
        {"n_rows": 10_000},
        {"n_ctx": -1},
        {"n_batch": 0},
        {"n_ctx": 2**32},
        {"type_k": "q3_x"},
        {"type_v": "q4_0", "flash_attn": False},
    ],
)
def test_impossible_contexts_are_load_errors(tiny_model, settings):
    model = LlamaModel.load(ModelConfig(tiny_model))
    with pytest.raises(LoadError):
        model.new_context(ContextConfig(**settings))
    model.close()


def test_tokens_round_trip(tiny_model):
    tokenizer = LlamaModel.load(ModelConfig(tiny_model)).tokenizer
    text = "Hello, wörld! \U0001f40e\n" * 50
    tokens = tokenizer.tokenize(text, add_special=True, parse_special=False)
    assert tokens[0] == 1
    assert tokenizer.detokenize(tokens, special=False) == text
    assert b"".join(tokenizer.piece(token, special=False) for token in tokens).decode() == text


def test_special_tokens_only_where_asked(tiny_model):
    tokenizer = LlamaModel.load(ModelConfig(tiny_model)).tokenizer
    assert tokenizer.tokenize("</s>", add_special=False, parse_special=True) == [2]
    assert len(tokenizer.tokenize("</s>", add_special=False, parse_special=False)) == 4
    assert tokenizer.piece(2, special=False) == b""
    assert tokenizer.piece(2, special=True) == b"</s>"


def test_tokenizer_takes_any_string(tiny_model):
    tokenizer = LlamaModel.load(ModelConfig(tiny_model)).tokenizer
    assert tokenizer.tokenize("", add_special=False, parse_special=True) == []
    for text in ("\ud800", "a\0b", "\ufffd" * 1000):
        assert tokenizer.tokenize(text, add_special=False, parse_special=True)
    assert tokenizer.detokenize([3 + 0xC3], special=False) == "\ufffd"
    for token in (-1, tokenizer.n_vocab):
        with pytest.raises(IndexError):
            tokenizer.piece(token, special=True)
