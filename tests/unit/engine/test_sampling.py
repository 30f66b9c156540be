"""Batch sampling: what is kept, with which probability, and that a task's draws are its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from corral.config import ModelConfig
from corral.engine.sampling import RANDOM_SEED, RowSampler, new_row_sampler, pick_rows
from corral.errors import InvalidRequest
from corral.ids import Token
from corral.llama.model import LlamaModel
from corral.ports import Model, ModelInfo, Picked, Tokenizer
from corral.tasks import Sampling

N_VOCAB = 2000
EOG = frozenset({1, 2})
Row = NDArray[np.float32]


class RecordingSampler:
    """A chain that always picks its seed, and keeps what it was given."""

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling, self.seed = sampling, seed
        self.fed: list[Token] = []
        self.closed = False

    def pick(self, logits: Row, allowed: object = None) -> Picked:
        return Picked(self.seed % len(logits))

    def take(self, token: Token) -> bool:
        return True

    def feed(self, tokens: Sequence[Token]) -> None:
        self.fed.extend(tokens)

    def close(self) -> None:
        self.closed = True


class FakeModel:
    """A model of which only the chain and the size of the vocabulary matter."""

    def __init__(self, n_vocab: int = N_VOCAB) -> None:
        self.chains: list[RecordingSampler] = []
        self.info = ModelInfo(
            name="fake",
            path="",
            description="",
            ftype="",
            n_vocab=n_vocab,
            vocab_type=0,
            n_ctx_train=128,
            n_embd=1,
            n_params=1,
            n_bytes=1,
            bos_token=None,
            eos_token=1,
            add_bos=False,
            eog_tokens=EOG,
            chat_template=None,
            meta={},
        )

    @property
    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError

    def new_sampler(self, sampling: Sampling, seed: int, n_ctx_train: int) -> RecordingSampler:
        self.chains.append(RecordingSampler(sampling, seed))
        return self.chains[-1]

    def close(self) -> None:
        pass


def sampler(prompt: Sequence[Token] = (), **settings: Any) -> RowSampler:
    return new_row_sampler(Sampling(**{"seed": 1, **settings}), FakeModel(), EOG, prompt)


def random_rows(n: int, seed: int = 0, n_vocab: int = N_VOCAB) -> Row:
    return np.random.default_rng(seed).normal(0, 3, (n, n_vocab)).astype(np.float32)


def pick(row: Row, **settings: Any) -> Picked:
    return pick_rows(row[None], [(0, sampler(**settings))])[0]


def kept(row: Row, **settings: Any) -> dict[Token, float]:
    """Every candidate with its probability of being drawn."""
    return dict(pick(row, n_probs=N_VOCAB, post_sampling_probs=True, **settings).top)


def softmax(values: Row) -> Row:
    exp = np.exp(values - values.max())
    return np.asarray(exp / exp.sum(), np.float32)


def test_temperature_zero_takes_the_largest_and_the_first_of_equals() -> None:
    rows = random_rows(3)
    rows[2, [70, 50]] = 99.0
    picked = pick_rows(rows, [(i, sampler(temperature=0.0)) for i in (2, 0, 1)])
    assert [p.token for p in picked] == [50, rows[0].argmax(), rows[1].argmax()]


@pytest.mark.parametrize("top_k", [1, 2, 20, 40, 700, N_VOCAB, 5000, 0])
def test_top_k_keeps_the_k_largest(top_k: int) -> None:
    row = random_rows(1)[0]
    order = np.argsort(-row)[: top_k or None]
    got = kept(row, top_k=top_k, top_p=1.0, min_p=0.0, temperature=1.0)
    assert list(got) == order.tolist()
    np.testing.assert_allclose(list(got.values()), softmax(row[order]), rtol=1e-4)


def test_equal_logits_still_give_k_candidates() -> None:
    assert len(kept(np.zeros(N_VOCAB, np.float32), top_k=40, top_p=1.0)) == 40


@pytest.mark.parametrize("n_vocab", [1, 3, 15, 16, 17, 100, 2047])
def test_small_and_odd_vocabularies(n_vocab: int) -> None:
    rows = random_rows(1, n_vocab=n_vocab)
    one = new_row_sampler(
        Sampling(n_probs=99, top_k=5, top_p=1.0, min_p=0.0, post_sampling_probs=True), FakeModel(n_vocab), EOG, ()
    )
    assert [t for t, _ in pick_rows(rows, [(0, one)])[0].top] == np.argsort(-rows[0])[:5].tolist()


def test_filters_of_llama_server_by_hand() -> None:
    row = np.full(N_VOCAB, -np.inf, np.float32)
    row[:4] = np.log([0.5, 0.25, 0.15, 0.1])
    off = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0}
    assert list(kept(row, **off | {"top_p": 0.6})) == [0, 1]
    assert list(kept(row, **off | {"top_p": 0.0})) == [0]
    assert list(kept(row, **off | {"top_p": 0.0, "min_keep": 3})) == [0, 1, 2]
    assert list(kept(row, **off | {"min_p": 0.28})) == [0, 1, 2]
    assert list(kept(row, **off | {"min_p": 1.0, "min_keep": 2})) == [0, 1]
    assert kept(row, **off | {"temperature": 0.5, "top_k": 2}) == pytest.approx({0: 0.8, 1: 0.2})


def test_a_sampler_that_is_not_listed_is_off() -> None:
    row = random_rows(1)[0]
    assert len(kept(row, samplers=("top_k",), top_k=100, top_p=0.1, min_p=0.9, temperature=0.0)) == 100


def test_different_settings_in_one_step_do_not_disturb_each_other() -> None:
    rows = random_rows(6)
    settings: list[dict[str, Any]] = [
        {"top_k": 3},
        {"top_k": 0},
        {"top_k": 1900},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.0},
        {"top_p": 0.5, "min_keep": 9},
    ]
    group = [(i, sampler(**s)) for i, s in enumerate(settings)]
    together = [[p.token for p in pick_rows(rows, group)] for _ in range(20)]
    for i, drawn in enumerate(zip(*together, strict=True)):
        alone = [(i, sampler(**settings[i]))]
        assert [pick_rows(rows, alone)[0].token for _ in range(20)] == list(drawn)


@pytest.mark.parametrize("temperature", [1e-300, 1e-20, 1e20, 1e300])
def test_temperatures_at_the_ends_of_the_scale(temperature: float) -> None:
    row = random_rows(1)[0]
    got = kept(row, temperature=temperature, top_k=4, top_p=1.0, min_p=0.0)
    assert list(got.values()) == pytest.approx([1.0] if temperature < 1.0 else [0.25] * 4)


def test_siblings_share_a_row_and_draw_apart() -> None:
    row = random_rows(1)
    picked = pick_rows(row, [(0, sampler(seed=seed, temperature=3.0)) for seed in range(30)])
    assert len({p.token for p in picked}) > 5


def test_the_seed_repeats_the_draws_and_is_told() -> None:
    rows = random_rows(1)

    def draws(s: RowSampler) -> list[Token]:
        return [pick_rows(rows, [(0, s)])[0].token for _ in range(20)]

    first = sampler(seed=None, temperature=2.0)
    assert 0 <= first.seed < RANDOM_SEED
    assert draws(first) == draws(sampler(seed=first.seed, temperature=2.0))
    assert sampler(seed=-1).seed != sampler(seed=None).seed


def test_draws_follow_the_probabilities() -> None:
    rows = random_rows(1)
    expected = kept(rows[0], temperature=1.5, top_k=8)
    s = sampler(temperature=1.5, top_k=8)
    n = 4000
    counts = Counter(pick_rows(rows, [(0, s)])[0].token for _ in range(n))
    assert counts.keys() <= expected.keys()
    chi2 = sum((counts[t] - n * p) ** 2 / (n * p) for t, p in expected.items())
    assert chi2 < 30  # 7 degrees of freedom: once in ten thousand seeds


def test_logits_are_never_changed() -> None:
    rows = random_rows(2)
    before = rows.copy()
    pick_rows(
        rows, [(0, sampler([5, 6], repeat_penalty=1.5, ignore_eos=True)), (1, sampler(temperature=0.0, n_probs=3))]
    )
    assert np.array_equal(rows, before)


def test_biases_ban_and_force_and_add_up() -> None:
    row = random_rows(1)[0]
    best = int(row.argmax())
    assert pick(row, temperature=0.0, logit_bias=((best, -math.inf),)).token == np.argsort(-row)[1]
    assert pick(row, temperature=0.0, logit_bias=((9, 60.0), (9, 60.0), (8, 100.0))).token == 9
    assert best not in kept(row, logit_bias=((best, -math.inf),))


def test_biases_too_large_for_a_float_still_win_and_ban() -> None:
    row = random_rows(1)[0]
    assert pick(row, logit_bias=((9, 1e300),)).token == 9
    assert 9 not in kept(row, logit_bias=((9, -1e300),))


def test_ignore_eos_bans_every_end_of_generation_token() -> None:
    row = random_rows(1)[0]
    row[[1, 2]] = 50.0
    assert pick(row, temperature=0.0).token == 1
    assert pick(row, temperature=0.0, ignore_eos=True).token not in EOG


def test_tokens_that_the_model_suppresses_are_never_drawn() -> None:
    row = random_rows(1)[0]
    model = FakeModel()
    model.info = replace(model.info, suppressed_tokens=frozenset({int(row.argmax())}))
    for temperature in (0.0, 1.0):
        s = new_row_sampler(Sampling(temperature=temperature, top_k=1), model, EOG, ())
        assert pick_rows(row[None], [(0, s)])[0].token == np.argsort(-row)[1]


def test_penalties_remember_prompt_and_picks_within_the_last_n() -> None:
    row = np.zeros(N_VOCAB, np.float32)
    row[:5] = [9.0, 8.0, 7.0, 6.0, 5.0]
    s = sampler([0, 0, 3, 4], temperature=0.0, presence_penalty=100.0, repeat_last_n=2)
    assert [pick_rows(row[None], [(0, s)])[0].token for _ in range(5)] == [0, 1, 2, 0, 1]


def test_a_negative_repeat_last_n_looks_back_over_the_whole_context() -> None:
    row = random_rows(1)[0]
    best = int(row.argmax())
    far = [best] + [7] * 100
    assert pick(row, prompt=far, temperature=0.0, presence_penalty=100.0, repeat_last_n=-1).token != best
    assert pick(row, prompt=far, temperature=0.0, presence_penalty=100.0, repeat_last_n=64).token == best


def test_penalty_formulas() -> None:
    row = np.full(N_VOCAB, -np.inf, np.float32)
    row[:3] = [2.0, -1.0, 0.5]
    got = kept(
        row,
        prompt=[0, 0, 1],
        temperature=1.0,
        top_p=1.0,
        min_p=0.0,
        repeat_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=0.1,
    )
    wanted = softmax(np.array([2.0 / 2 - 0.5 - 0.1, -1.0 * 2 - 0.25 - 0.1, 0.5], np.float32))
    assert got == pytest.approx({i: float(p) for i, p in enumerate(wanted)}, rel=1e-4)


def test_probabilities_before_sampling_are_those_of_the_raw_row() -> None:
    row = random_rows(1)[0]
    expected = np.log(softmax(row))
    order = np.argsort(-row)[:4]
    got = pick(row, n_probs=4, logit_bias=((1999, 99.0),))
    assert got.token == 1999
    assert got.p == pytest.approx(expected[1999], abs=1e-4)
    assert [t for t, _ in got.top] == order.tolist()
    assert [p for _, p in got.top] == pytest.approx(expected[order].tolist(), abs=1e-4)


def test_probabilities_after_sampling_leave_out_what_cannot_be_drawn() -> None:
    row = random_rows(1)[0]
    got = pick(row, n_probs=50, post_sampling_probs=True, top_k=3, top_p=1.0, min_p=0.0)
    assert len(got.top) == 3
    assert got.p == dict(got.top)[got.token]
    assert pick(row, n_probs=5, post_sampling_probs=True, temperature=0.0).top == ((int(row.argmax()), 1.0),)


def test_rows_that_are_broken_still_give_a_token() -> None:
    rows = np.stack([np.full(N_VOCAB, np.nan, np.float32), np.full(N_VOCAB, -np.inf, np.float32)])
    for settings in (
        {},
        {"top_k": 0},
        {"temperature": 0.0},
        {"n_probs": 3},
        {"n_probs": 3, "post_sampling_probs": True},
    ):
        for i in range(len(rows)):
            picked = pick_rows(rows, [(i, sampler(**settings))])
            assert 0 <= picked[0].token < N_VOCAB


@pytest.mark.parametrize(
    "settings",
    [
        {"grammar": 'root ::= "a"'},
        {"mirostat": 2},
        {"dry_multiplier": 0.8},
        {"xtc_probability": 0.5},
        {"typical_p": 0.9},
        {"top_n_sigma": 1.0},
        {"dynatemp_range": 0.5},
        {"samplers": ("temperature", "top_k")},
        {"samplers": ("top_k", "infill")},
        {"samplers": ("top_k", "top_k")},
    ],
)
def test_other_settings_go_to_the_chain_with_the_seed_and_the_prompt(settings: dict[str, Any]) -> None:
    model = FakeModel()
    sampling = Sampling(seed=77, **settings)
    s = new_row_sampler(sampling, model, EOG, [4, 5])
    assert pick_rows(random_rows(1), [(0, s)])[0].token == 77
    chain = model.chains[0]
    assert (chain.sampling, chain.seed, chain.fed) == (sampling, s.seed, [4, 5])
    s.close()
    assert chain.closed


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"grammar": 'root ::= "a"'}, {"mirostat": 1}])
def test_bans_of_every_token_are_refused(settings: dict[str, Any]) -> None:
    model = FakeModel()
    bans = tuple((t, -math.inf if t % 2 else -1e39) for t in range(model.info.n_vocab))
    with pytest.raises(InvalidRequest, match=r"^logit_bias: all \d+ tokens are banned"):
        new_row_sampler(Sampling(logit_bias=bans, **settings), model, EOG, ())
    but_eog = tuple((t, bias) for t, bias in bans if t not in EOG)
    new_row_sampler(Sampling(logit_bias=but_eog, **settings), model, EOG, ())
    with pytest.raises(InvalidRequest, match=r"^logit_bias and ignore_eos: all"):
        new_row_sampler(Sampling(logit_bias=but_eog, ignore_eos=True, **settings), model, EOG, ())
    new_row_sampler(Sampling(logit_bias=(*bans[1:], (0, -100.0)), **settings), model, EOG, ())


def test_a_chain_that_finds_no_token_fails_its_own_task_only(model: LlamaModel) -> None:
    eog = model.info.eog_tokens
    stuck = Sampling(grammar='root ::= "x"', ignore_eos=True, temperature=0.0)
    rows = np.zeros((1, model.info.n_vocab), np.float32)
    first, other = (new_row_sampler(s, model, eog, ()) for s in (stuck, Sampling(temperature=0.0)))
    pick_rows(rows, [(0, first)])
    assert first.error is None
    picked = pick_rows(rows, [(0, first), (0, other)])
    assert isinstance(first.error, InvalidRequest)
    assert picked[0].token in eog
    assert (other.error, picked[1].token) == (None, 0)
    first.close()


def test_defaults_do_not_make_a_chain() -> None:
    model = FakeModel()
    new_row_sampler(Sampling(dry_multiplier=1.0, samplers=("top_k", "temperature")), model, EOG, ())
    assert model.chains == []


@pytest.mark.parametrize(
    "settings",
    [
        {"repeat_penalty": 0.0},
        {"repeat_penalty": math.inf},
        {"frequency_penalty": math.nan},
        {"presence_penalty": math.inf},
        {"repeat_penalty": 1e-300},
        {"presence_penalty": 1e300},
        {"repeat_last_n": 1 << 70},
        {"min_keep": 1 << 40},
        {"logit_bias": ((N_VOCAB, 1.0),)},
        {"logit_bias": ((-1, 1.0),)},
    ],
)
def test_settings_that_nobody_can_use_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        sampler(**settings)


SETTINGS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.0, "repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": -0.4},
    {"temperature": 2.0, "repeat_penalty": 1.3, "repeat_last_n": 10, "top_p": 0.5, "min_keep": 7},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repeat_last_n": 300},
    {"repeat_penalty": 1.5, "repeat_last_n": 0},
    {"presence_penalty": 2.0, "repeat_last_n": -1},
    {"ignore_eos": True, "logit_bias": ((3, 5.0), (7, -math.inf), (3, 1.5), (11, 20.0))},
    {"top_k": 1},
    {"top_k": 5, "top_p": 1.0},
    {"top_k": 0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.2, "min_keep": 3},
    {"top_k": 0, "top_p": 0.999, "min_p": 0.0, "temperature": 1.0},
    {"top_k": 700, "top_p": 0.99, "min_p": 0.01},
    {"top_k": 1 << 30, "min_p": 0.0},
    {"top_p": 0.0, "min_keep": 5},
    {"top_p": 1.0, "min_p": 1.0, "min_keep": 2},
    {"min_keep": 60},
    {"samplers": ("top_k", "min_p"), "temperature": 0.1},
    {"samplers": ("penalties", "temperature"), "repeat_penalty": 1.2},
    {"samplers": ()},
]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[LlamaModel]:
    model = LlamaModel.load(ModelConfig(tiny_model))
    yield model
    model.close()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("spread", [0.2, 2.0, 8.0])
def test_what_numpy_keeps_is_what_the_chain_keeps(model: Model, settings: dict[str, Any], spread: float) -> None:
    info = model.info
    sampling = Sampling(**{"seed": 5, "n_probs": info.n_vocab, "post_sampling_probs": True} | settings)
    random = np.random.default_rng(3)
    row = random.normal(0, spread, info.n_vocab).astype(np.float32)
    row[list(info.eog_tokens)[:1]] = row.max() + 1.0
    prompt = [*random.integers(0, info.n_vocab, 100).tolist(), *np.argsort(-row)[:20].tolist() * 2]
    chain = model.new_sampler(sampling, 5, info.n_ctx_train)
    chain.feed(prompt)
    ours = new_row_sampler(sampling, model, info.eog_tokens, prompt)
    assert ours.chain is None
    wanted, got = chain.pick(row), pick_rows(row[None], [(0, ours)])[0]
    chain.close()
    if sampling.temperature <= 0.0 and "temperature" in sampling.samplers:
        assert got.token == wanted.token
    assert_same_probabilities(dict(got.top), dict(wanted.top))


def assert_same_probabilities(got: dict[Token, float], wanted: dict[Token, float]) -> None:
    """Up to rounding, which may also decide which of the least likely candidates are the last to be kept."""
    differences = [abs(got.get(t, 0.0) - wanted.get(t, 0.0)) for t in got.keys() | wanted.keys()]
    assert max(differences) < 2e-5
    assert sum(differences) < 1e-3


def test_log_probabilities_agree_with_the_chain(model: Model) -> None:
    info = model.info
    row = np.random.default_rng(3).normal(0, 2, info.n_vocab).astype(np.float32)
    for temperature in (0.0, 0.8):
        sampling = Sampling(seed=5, n_probs=10, temperature=temperature, top_k=1)
        chain = model.new_sampler(sampling, 5, info.n_ctx_train)
        wanted = chain.pick(row)
        chain.close()
        got = pick_rows(row[None], [(0, new_row_sampler(sampling, model, info.eog_tokens, ()))])[0]
        assert (got.token, [t for t, _ in got.top]) == (wanted.token, [t for t, _ in wanted.top])
        assert [got.p, *dict(got.top).values()] == pytest.approx([wanted.p, *dict(wanted.top).values()], abs=1e-4)
