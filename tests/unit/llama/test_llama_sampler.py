"""The chain draws what its settings say, and no grammar, however hostile, harms the process."""

from __future__ import annotations

import math

import numpy as np
import pytest

from corral.config import ModelConfig
from corral.errors import InvalidRequest, ServerError
from corral.llama.model import LlamaModel
from corral.tasks import Sampling

N = 60_000
LADDER = range(60)


@pytest.fixture(scope="module")
def model(tiny_model):
    model = LlamaModel.load(ModelConfig(tiny_model))
    yield model
    model.close()


@pytest.fixture
def sampler(model):
    """Makes samplers and frees them."""
    made = []

    def make(seed=1, **settings):
        made.append(model.new_sampler(Sampling(**settings), seed, model.info.n_ctx_train))
        return made[-1]

    yield make
    for each in made:
        each.close()
        each.close()


def logits(seed, n_vocab=354):
    return (np.random.default_rng(seed).normal(size=n_vocab) * 3).astype(np.float32)


def draw(sampler, n=30):
    return [sampler.pick(logits(step)).token for step in range(n)]


def test_equal_seeds_draw_equally_and_others_do_not(sampler):
    assert draw(sampler(7)) == draw(sampler(7))
    assert draw(sampler(7)) != draw(sampler(8))
    assert draw(sampler(0xFFFFFFFF)) == draw(sampler(0xFFFFFFFF))


@pytest.mark.parametrize("settings", [{"top_k": 1}, {"temperature": 0.0}, {"min_p": 1.0}, {"top_p": 0.0}])
def test_the_most_likely_token(sampler, settings):
    assert draw(sampler(**settings)) == [int(logits(step).argmax()) for step in range(30)]


def test_draws_follow_the_distribution(sampler):
    row = np.full(354, -20.0, np.float32)
    row[[10, 20]] = np.log([0.75, 0.25])
    sampler = sampler(temperature=1.0)
    tokens = [sampler.pick(row).token for _ in range(2000)]
    assert set(tokens) == {10, 20}
    assert tokens.count(10) / 2000 == pytest.approx(0.75, abs=0.05)


def test_logits_are_not_changed(sampler):
    row = logits(3)
    sampler(logit_bias=((5, 10.0),), grammar='root ::= "a"').pick(row)
    np.testing.assert_array_equal(row, logits(3))


def test_a_bias_bans_and_forces(sampler):
    best = int(logits(0).argmax())
    assert sampler(temperature=0.0, logit_bias=((best, -math.inf),)).pick(logits(0)).token != best
    assert sampler(temperature=0.0, logit_bias=((17, 1000.0), (10**6, 5.0), (-1, 5.0))).pick(logits(0)).token == 17


def test_ignore_eos_bans_the_end(sampler, model):
    row = logits(0)
    row[list(model.info.eog_tokens)] = 100
    assert sampler(temperature=0.0).pick(row).token in model.info.eog_tokens
    assert sampler(temperature=0.0, ignore_eos=True).pick(row).token not in model.info.eog_tokens


def test_penalties_remember_picks_and_prompt(sampler):
    greedy = sampler(temperature=0.0, presence_penalty=50.0)
    first, second = greedy.pick(logits(0)).token, greedy.pick(logits(0)).token
    assert first != second
    fed = sampler(temperature=0.0, presence_penalty=50.0, repeat_last_n=4)
    fed.feed([9] * 1000 + [first])
    assert fed.pick(logits(0)).token == second
    forgetful = sampler(temperature=0.0, presence_penalty=50.0, repeat_last_n=4)
    forgetful.feed([first, 5, 6, 7, 8])
    assert forgetful.pick(logits(0)).token == first


def test_dry_breaks_a_loop(sampler):
    row = logits(0)
    row[50] = 20
    loop = [40, 41, 42, 50] * 10 + [40, 41, 42]
    dry = sampler(temperature=0.0, dry_multiplier=10.0)
    dry.feed(loop)
    assert dry.pick(row).token != 50
    assert sampler(temperature=0.0).pick(row).token == 50


@pytest.mark.parametrize("settings", [{"mirostat": 1}, {"mirostat": 2}, {"samplers": ("top_k", "adaptive_p")}, {}])
def test_every_way_to_draw(sampler, settings):
    tokens = draw(sampler(adaptive_target=0.4, **settings))
    assert tokens == draw(sampler(adaptive_target=0.4, **settings))
    assert len(set(tokens)) > 3


def test_all_samplers_at_once(sampler):
    names = (
        "infill",
        "dry",
        "xtc",
        "typ_p",
        "top_n_sigma",
        "penalties",
        "min_p",
        "top_p",
        "top_k",
        "temperature",
        "no",
    )
    settings = {"xtc_probability": 0.5, "dry_multiplier": 0.5, "typical_p": 0.9, "top_n_sigma": 1.0, "min_keep": 2}
    assert draw(sampler(samplers=names, repeat_penalty=1.1, dynatemp_range=0.3, **settings))


def test_log_probabilities_are_of_the_whole_vocabulary(sampler):
    row = logits(1)
    expected = row - np.log(np.exp(row.astype(np.float64)).sum())
    picked = sampler(top_k=1, n_probs=3).pick(row)
    assert [token for token, _ in picked.top] == list(np.argsort(-row)[:3])
    np.testing.assert_allclose([p for _, p in picked.top], np.sort(expected)[::-1][:3], atol=1e-4)
    assert picked.p == pytest.approx(expected[picked.token], abs=1e-4)
    unlikely = sampler(temperature=0.0, n_probs=3, logit_bias=((17, 1000.0),)).pick(row)
    assert (unlikely.token, unlikely.p) == (17, pytest.approx(expected[17], abs=1e-4))
    assert len(sampler(n_probs=1000).pick(row).top) == 354


def test_probabilities_after_sampling_sum_to_one(sampler):
    picked = sampler(top_k=4, top_p=1.0, min_p=0.0, n_probs=10, post_sampling_probs=True).pick(logits(1))
    assert len(picked.top) == 4
    assert sum(p for _, p in picked.top) == pytest.approx(1, abs=1e-5)
    assert dict(picked.top)[picked.token] == picked.p
    assert sampler(temperature=0.0, n_probs=10, post_sampling_probs=True).pick(logits(1)).top == (
        (int(logits(1).argmax()), 1.0),
    )


def write(model, sampler, n=40):
    """Text drawn from random logits until the end of generation."""
    text = b""
    for step in range(n):
        token = sampler.pick(logits(step)).token
        if token in model.info.eog_tokens:
            return text.decode()
        text += model.tokenizer.piece(token, special=False)
    return text.decode("utf-8", "replace")


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 1}, {"mirostat": 2}])
def test_a_grammar_forces_the_text(model, sampler, settings):
    assert write(model, sampler(grammar='root ::= " L M" [N-P] "é" "\\n"', **settings))[:4] == " L M"
    assert write(model, sampler(grammar='root ::= "yes é" | "yes ü"', **settings)) in ("yes é", "yes ü")


def test_the_prompt_does_not_advance_a_grammar(model, sampler):
    forced = sampler(grammar='root ::= "ab"', repeat_penalty=1.1)
    forced.feed(model.tokenizer.tokenize("a", add_special=True, parse_special=False))
    assert write(model, forced) == "ab"


def test_tokens_that_were_not_drawn_are_remembered(model, sampler):
    row = np.zeros(354, np.float32)
    row[[10, 20]] = 9, 8.9
    greedy = sampler(temperature=0.0, repeat_penalty=1.5)
    assert greedy.take(10) and greedy.pick(row).token == 20
    ab, c = (model.tokenizer.tokenize(text, add_special=False, parse_special=False) for text in ("ab", "c"))
    held = sampler(grammar='root ::= "abx"')
    assert [held.take(token) for token in (*c, *ab, *c)] == [False, *[True] * len(ab), False]
    assert model.tokenizer.piece(held.pick(logits(0)).token, special=False) == b"x"


def test_a_grammar_at_its_end_with_the_end_banned_is_an_error(sampler):
    stuck = sampler(grammar='root ::= "a"', ignore_eos=True)
    stuck.pick(logits(0))
    with pytest.raises(
        InvalidRequest, match=r"^no token is left: all that the grammar allows next is banned .ignore_eos."
    ):
        stuck.pick(logits(1))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"mirostat": 2}, {"top_k": 1}, {"n_probs": 2}])
def test_a_grammar_whose_tokens_are_all_banned_is_an_error(model, sampler, settings):
    bans = tuple((t, -math.inf) for t in range(354) if model.tokenizer.piece(t, special=False) == b"a")
    stuck = sampler(grammar='root ::= "a"', logit_bias=bans, **settings)
    with pytest.raises(InvalidRequest, match=r"^no token is left: .* is banned .logit_bias."):
        stuck.pick(logits(0))


def test_logits_that_are_not_numbers_harm_nobody(sampler):
    for bad in (math.nan, -math.inf, math.inf):
        for settings in ({}, {"temperature": 0.0}, {"mirostat": 2}, {"grammar": 'root ::= "a"'}):
            try:
                token = sampler(n_probs=1, **settings).pick(np.full(354, bad, np.float32)).token
            except ServerError:
                continue
            assert 0 <= token < 354


def test_a_closed_sampler_refuses(sampler):
    closed = sampler()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        closed.pick(logits(0))


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.inf, math.nan])
def test_a_repeat_penalty_must_be_positive(sampler, penalty):
    with pytest.raises(InvalidRequest, match="Failed to initialize samplers"):
        sampler(repeat_penalty=penalty)


def steps(alternates):
    """A grammar whose rules each begin with the next one in the ways given."""
    rules = "\n".join(f"a{i} ::= " + alternates.replace("NEXT", f"a{i + 1}") for i in LADDER)
    return f'{rules}\na{len(LADDER)} ::= "x"\nroot ::= a0'


HOSTILE = {
    "nested": "root ::= " + "(" * N + '"a"' + ")" * N,
    "nested and open": "root ::= " + "(" * N,
    "misspelt root": 'rout::= "a"',
    "no root": 'a ::= "b"',
    "root used but not defined": "a ::= root",
    "undefined": "root ::= foo",
    "nothing": "  \n# only this\n",
    "left recursion": 'root ::= root "a" | "b"',
    "hidden left recursion": 'root ::= b root "x"\nb ::= c\nc ::= "y" | ""',
    "indirect left recursion": 'root ::= a\na ::= b "x"\nb ::= a | "y"',
    "nothing to repeat": "root ::= *",
    "empty literal repeated": 'root ::= ""*',
    "maximum below minimum": 'root ::= "a"{3,1}',
    "huge number": 'root ::= "a"{99999999999999999999999}',
    "many marks": 'root ::= "a"' + "?" * N,
    "long chain": "\n".join(f"a{i} ::= a{i + 1}" for i in range(N // 2)) + f'\na{N // 2} ::= "x"\nroot ::= a0',
    "too long": "root ::= " + '"a" ' * 300_000,
    "written out": 'root ::= "' + "a" * 50_000 + '"{2000}',
    "same twice": steps("NEXT | NEXT"),
    "ambiguous": steps('NEXT "x" | NEXT "y"'),
    "empty or twice": steps('NEXT NEXT | ""'),
    "optional parts": "root ::= " + "[xyz]? " * 1000 + '"b"',
    "optional groups": "root ::= a a a a\na ::= " + "[xyz]? " * 100,
    "NUL": 'root ::= "a\0b"',
    "bad escape": r'root ::= "\q"',
    "half an escape": r'root ::= "\x4"',
    "open literal": 'root ::= "a',
    "open class": "root ::= [a-z",
    "open group": 'root ::= ("a"',
    "closed group": 'root ::= "a")',
    "no definition": '"a"',
    "text after the end": 'root ::= "a" := b',
}


@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_grammars_are_refused(sampler, grammar):
    with pytest.raises(InvalidRequest, match="Failed to initialize samplers"):
        sampler(grammar=grammar)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('# a comment\nroot ::= a # another\na ::= "x" |\n  "x"', "x"),
        ('root ::= ( "a"\n | "a" ) "b"{2} "c"{0,0} "d"{1,1}', "abbd"),
        ('root ::= "\\x41" [\\u0042] "\\"" [\\]] "\\\\"', 'AB"]\\'),
        ('root ::= (("a"{5}){5})\n', "a" * 25),
        ('root ::= "a" root-1\nroot-1 ::= "b" | "b" root-1 "c"{0,5000} "d"', None),
        ('root ::= ([a-z]? [0-9]*)+ "."', None),
        ("root ::= .", None),
    ],
)
def test_good_grammars_are_taken(model, sampler, grammar, text):
    if text is None:
        draw(sampler(grammar=grammar, temperature=0.0), n=1)
    else:
        assert write(model, sampler(grammar=grammar)) == text
