"""The fake's vocabulary, sampler, oracle and clock behave like a real model's."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.config import ContextConfig
from corral.errors import InvalidRequest
from corral.ids import RowId
from corral.ops import Span, Trim
from corral.sim.clock import CostModel, VirtualClock, Work
from corral.sim.model import SimModel, SimSpec
from corral.sim.oracle import solo
from corral.tasks import Sampling

MODEL = SimModel()
TOKENIZER = MODEL.tokenizer
GREEDY = Sampling(temperature=0.0)


@given(st.text(max_size=60))
def test_text_survives_the_tokenizer(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    tokens = TOKENIZER.tokenize(text, add_special=False, parse_special=False)
    assert TOKENIZER.detokenize(tokens, special=False) == text
    assert all(0 <= token < TOKENIZER.n_vocab for token in tokens)


def test_control_tokens_are_read_only_when_asked() -> None:
    read = TOKENIZER.tokenize("<|im_start|>hi", add_special=True, parse_special=True)
    assert read == [MODEL.info.bos_token, 258, ord("h"), ord("i")]
    assert len(TOKENIZER.tokenize("<|im_start|>", add_special=False, parse_special=False)) == 12


def test_control_tokens_are_silent_unless_asked() -> None:
    assert TOKENIZER.piece(258, special=False) == b""
    assert TOKENIZER.piece(258, special=True) == b"<|im_start|>"


def test_a_character_may_need_several_tokens() -> None:
    tokens = TOKENIZER.tokenize("€", add_special=False, parse_special=False)
    assert len(tokens) == 2
    assert TOKENIZER.detokenize(tokens[:1], special=False) == "\ufffd"
    assert TOKENIZER.detokenize(tokens, special=False) == "€"


def logits(seen: int = 5) -> np.ndarray:
    return MODEL.head.logits(seen)


def test_greedy_takes_the_winner() -> None:
    picked = MODEL.new_sampler(GREEDY, 0, 0).pick(logits())
    assert picked.token == MODEL.head.winner(5) == int(logits().argmax())


def test_draws_depend_on_the_seed_and_the_history_alone() -> None:
    flat = np.zeros(MODEL.info.n_vocab, np.float32)
    hot = Sampling(temperature=1.0, top_k=0)
    first, again, other = (
        [s.pick(flat).token for _ in range(20)] for s in (MODEL.new_sampler(hot, n, 0) for n in (7, 7, 8))
    )
    assert first == again != other


def test_draws_follow_the_probabilities() -> None:
    row = np.full(MODEL.info.n_vocab, -math.inf, np.float32)
    row[[10, 20]] = math.log(3), 0.0
    sampler = MODEL.new_sampler(Sampling(temperature=1.0, top_k=0), 1, 0)
    counts = Counter(sampler.pick(row).token for _ in range(2000))
    assert set(counts) == {10, 20}
    assert 0.70 < counts[10] / 2000 < 0.80


def test_top_k_cuts() -> None:
    row = np.arange(MODEL.info.n_vocab, dtype=np.float32) / 100
    sampler = MODEL.new_sampler(Sampling(temperature=1.0, top_k=3), 1, 0)
    assert {sampler.pick(row).token for _ in range(200)} == set(range(MODEL.info.n_vocab - 3, MODEL.info.n_vocab))


def test_biases_ban_and_force() -> None:
    winner = MODEL.head.winner(5)
    banned = MODEL.new_sampler(Sampling(temperature=0.0, logit_bias=((winner, -math.inf),)), 0, 0)
    forced = MODEL.new_sampler(Sampling(temperature=0.0, logit_bias=((9, 1000.0),)), 0, 0)
    assert banned.pick(logits()).token != winner
    assert forced.pick(logits()).token == 9


def test_the_end_of_generation_comes_now_and_then_and_can_be_ignored() -> None:
    model = SimModel(SimSpec(eos_every=4))
    ending = next(seen for seen in range(1000) if model.head.winner(seen) == model.info.eos_token)
    assert model.new_sampler(GREEDY, 0, 0).pick(model.head.logits(ending)).token == model.info.eos_token
    ignoring = model.new_sampler(Sampling(temperature=0.0, ignore_eos=True), 0, 0)
    assert ignoring.pick(model.head.logits(ending)).token not in model.info.eog_tokens
    shares = Counter(model.head.winner(seen) == model.info.eos_token for seen in range(4000))
    assert 0.2 < shares[True] / 4000 < 0.3


def test_probabilities_are_logarithms_before_and_shares_after_sampling() -> None:
    before = MODEL.new_sampler(Sampling(temperature=0.0, n_probs=3), 0, 0).pick(logits())
    after = MODEL.new_sampler(Sampling(temperature=0.5, top_k=2, n_probs=3, post_sampling_probs=True), 0, 0).pick(
        logits()
    )
    assert len(before.top) == 3
    assert before.top[0] == (before.token, before.p)
    assert [p for _, p in before.top] == sorted((p for _, p in before.top), reverse=True)
    assert before.p <= 0
    assert sum(p for _, p in after.top) == pytest.approx(1.0)


def test_a_literal_grammar_forces_its_text_and_then_the_end() -> None:
    sampler = MODEL.new_sampler(Sampling(grammar='root ::= "yes the\\n"'), 3, 0)
    tokens = [sampler.pick(logits(n)).token for n in range(9)]
    assert TOKENIZER.detokenize(tokens, special=False).startswith("yes the\n")
    assert MODEL.info.eos_token in tokens


def test_other_grammars_are_refused() -> None:
    for grammar in ("root ::= [a-z]+", "root", 'root ::= "a" | "b"'):
        with pytest.raises(InvalidRequest):
            MODEL.new_sampler(Sampling(grammar=grammar), 0, 0)


def test_solo_stops_at_the_end_of_generation() -> None:
    model = SimModel(SimSpec(eos_every=8))
    tokens = solo((1, 2, 3), 500, model=model)
    assert tokens[-1] == model.info.eos_token
    assert model.info.eos_token not in tokens[:-1]
    assert solo((1, 2, 3), 3, model=model) == tokens[:3]


def test_the_clock_moves_only_when_told() -> None:
    clock = VirtualClock(5.0)
    clock.advance(2.5)
    assert clock.now_ms() == 7.5
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1.0)


def test_the_slow_path_of_attention_ends_at_64_tokens() -> None:
    cost = CostModel()
    assert cost.ubatch([Work(48, 1024, 1024)]) > cost.ubatch([Work(64, 1024, 1024)])


def step_ms(unified: bool, rows: list[int], n_rows: int = 8, cold: int = 0) -> float:
    """Virtual time of one decoding step of ``rows`` with ``cold`` tokens lying in another row."""
    clock = VirtualClock()
    context = MODEL.new_context(ContextConfig(n_ctx=4096, n_slots=4, n_rows=n_rows, kv_unified=unified), clock)
    if cold:
        context.decode([Span(RowId(n_rows - 1), 0, (1,) * cold)])
    context.decode([Span(RowId(row), 0, (1,) * 32) for row in rows])
    before = clock.now_ms()
    context.decode([Span(RowId(row), 32, (1,), 1) for row in rows])
    return clock.now_ms() - before


def test_scattered_rows_cost_more_on_split_kv_only() -> None:
    assert step_ms(False, [0, 2, 4, 6]) > 2 * step_ms(False, [0, 1, 2, 3])
    assert step_ms(True, [0, 2, 4, 6]) == step_ms(True, [0, 1, 2, 3])


def test_cold_rows_cost_time_on_unified_kv_only() -> None:
    assert step_ms(True, [0, 1], cold=2000) > 1.1 * step_ms(True, [0, 1])
    assert step_ms(False, [0, 1], cold=2000) == step_ms(False, [0, 1])


def test_moving_a_row_as_bytes_is_far_cheaper_than_computing_it() -> None:
    clock = VirtualClock()
    context = MODEL.new_context(ContextConfig(n_ctx=2048), clock)
    context.decode([Span(RowId(0), 0, (1,) * 512)])
    computed = clock.now_ms()
    assert context.load(RowId(1), context.save(RowId(0)))
    assert 0 < (clock.now_ms() - computed) * 50 < computed
    context.apply(Trim(RowId(0), 0))
