"""Texts cut in pieces have the tokens that libllama gives for the whole; the time grows with their length only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import llama_cpp.llama_cpp as lib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corral.llama import cuts, library, tokenizer
from corral.llama.cuts import Cutter
from corral.llama.tokenizer import LlamaTokenizer
from corral.llama.vocab import Vocab

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im_", "<|endoftext|>", "[MASK]")
OWN = ("<tab>", "<tabl", "abl>c", "l>cde", "aa", "aaa", "><", "e<s>f", "日本", "本")
"""Some overlap, and the longer one need not be the first; "abl>c" and "l>cde" are of one length."""
BLANKS = ("  ", "   ", "     ", "\n\n", "\n\n\n")
ALPHABET = [
    *CONTROL,
    *OWN,
    "\n\n",
    "  ",
    "<",
    ">",
    "|",
    "a",
    "b",
    "l",
    "e",
    "f",
    " ",
    "\n",
    "\t",
    "<|",
    "im_",
    "é",
    "\ud800",
    "x y",
]

Vocabulary = tuple[Any, LlamaTokenizer]


def write_vocabulary(path: Path, name: str, own: tuple[str, ...]) -> Path:
    plain = tuple("▁" if code == 32 else chr(code) for code in range(32, 127))
    tokens = ["<unk>", *CONTROL, *own, *(f"<0x{byte:02X}>" for byte in range(256)), *plain]
    kinds = (
        [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * len(CONTROL) + [gguf.TokenType.USER_DEFINED] * len(own)
    )
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(plain)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def open_vocabulary(path: Path) -> Any:
    library.start()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    return lib.llama_model_load_from_file(str(path).encode(), params)


KINDS = {
    "plain": ("plain", OWN),
    "blanks": ("plain", (*OWN, *BLANKS)),
    "rstrip": ("phi-3", OWN),
    "rstrip and blanks": ("phi-3", (*OWN, *BLANKS)),
    "lstrip": ("modern-bert", OWN),
}


@pytest.fixture(scope="module", params=[*KINDS, "smollm2"])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    if request.param == "smollm2":
        path = request.getfixturevalue("smollm2_q4_0")
    else:
        path = write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "v.gguf", *KINDS[request.param])
    model = open_vocabulary(path)
    vocab = lib.llama_model_get_vocab(model)
    yield vocab, LlamaTokenizer(Vocab(vocab))
    lib.llama_model_free(model)


def whole(vocab: Any, text: str, add_special: bool, parse_special: bool) -> list[int]:
    raw = text.encode("utf-8", "replace")
    buffer = (lib.llama_token * (4 * len(raw) + 8))()
    n = lib.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), add_special, parse_special)
    return list(buffer[:n])


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "N_MOST", 1)
    monkeypatch.setattr(tokenizer, "SHORT_BYTES", 0)


@given(text=st.lists(st.sampled_from(ALPHABET), max_size=30).map("".join), add=st.booleans(), parse=st.booleans())
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@pytest.mark.usefixtures("small_pieces")
def test_pieces_have_the_tokens_of_the_whole(vocabulary: Vocabulary, text: str, add: bool, parse: bool) -> None:
    vocab, own = vocabulary
    tokens = own.tokenize(text, add_special=add, parse_special=parse)
    assert tokens == whole(vocab, text, add, parse)
    assert own.n_tokens_at_least(text) <= len(tokens)


def test_many_special_tokens_take_no_time_of_their_own(vocabulary: Vocabulary, request: pytest.FixtureRequest) -> None:
    if "rstrip and blanks" in request.node.name:
        pytest.skip("never cut")
    vocab, own = vocabulary
    turn = "<|im_start|>user\nhi there<|im_end|>\n"
    start_s = time.thread_time()
    tokens = own.tokenize(turn * 20_000, add_special=True, parse_special=True)
    assert time.thread_time() - start_s < 6
    n = len(whole(vocab, turn, False, True))
    assert tokens[: 3 * n] == whole(vocab, turn * 4, True, True)[: 3 * n]
    assert len(tokens) > 18_000 * n


def test_the_least_number_of_tokens(smollm2_q4_0: Path) -> None:
    model = open_vocabulary(smollm2_q4_0)
    own = LlamaTokenizer(Vocab(lib.llama_model_get_vocab(model)))
    longest = max((own.piece(token, special=True) for token in range(own.n_vocab)), key=len).decode()
    assert len(own.tokenize(longest * 9, add_special=False, parse_special=False)) >= 9
    assert own.n_tokens_at_least(longest * 9) == 9
    assert own.n_tokens_at_least("") == 0
    lib.llama_model_free(model)


def cut(text: str, *words: str) -> list[str]:
    specials = [word.encode() for word in words]
    return [piece.decode() for piece in Cutter(specials, specials).pieces(text.encode())]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["x<a>y", "<a>z", "<b>"], ["<a>", "<b>"]),
        (["nothing"], ["<a>"]),
        (["<a><a>"], []),
        (["<a>", "<abc", "<a>"], ["<a>", "<abc", "<ab"]),
        # A longer token that begins inside another takes its letters; behind it all is clear again.
        (["<a><ab>cd<a>ef", "<a>"], ["<a>", "<ab>", "b>cd<a>"]),
        # Of two of one length nobody knows which is taken.
        (["<a><ab>cd", "<a>"], ["<a>", "<ab>", "b>cd"]),
    ],
)
def test_where_texts_are_cut(pieces: list[str], words: list[str]) -> None:
    assert cut("".join(pieces), *words) == pieces
