"""Tokens that a constraint leaves no choice about: taken and computed together, and the same as one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.props.engine_machine import MODEL, Player, Setup, Submit

from corral.events import StopReason
from corral.tasks import Constraint, ConstraintKind

TEXT = "what the constraint says is all that there is to be said"
TOKENS = tuple(MODEL.tokenizer.tokenize(TEXT, add_special=False, parse_special=False))
ALL = Constraint(ConstraintKind.LARK, f'start: "{TEXT}"')
SPLIT_OR_NOT = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


def setup(unified: bool = True, **more: int) -> Setup:
    return replace(Setup(unified, n_slots=4, n_ctx=200, n_spare=2 if unified else 0, n_batch=128, n_ubatch=64), **more)


def n_passes(player: Player) -> int:
    return player.engine.snapshot.counters.n_decode


@SPLIT_OR_NOT
def test_n11_certain_tokens_share_a_pass(unified: bool) -> None:
    player = Player(setup(unified))
    (task,) = player.submit(Submit(n_predict=100, held=ALL))
    player.drain()
    assert player.finished[task][1].text == TEXT
    assert n_passes(player) <= len(TOKENS) // 4, "one pass for each token"


@SPLIT_OR_NOT
def test_n11_others_say_the_same_beside_them(unified: bool) -> None:
    """The player compares each answer with that of a run alone, token by token."""
    player = Player(setup(unified))
    for i in range(3):
        player.submit(Submit(stem=i, n_predict=40, held=ALL if i else None, seed=i))
    player.drain()


def test_the_limit_of_tokens_cuts_a_run() -> None:
    player = Player(setup())
    (task,) = player.submit(Submit(n_predict=7, held=ALL))
    player.drain()
    end = player.finished[task][1]
    assert (end.tokens, end.reason, end.timings.n_predicted) == (TOKENS[:7], StopReason.LIMIT, 7)


def test_a_stop_string_ends_a_run() -> None:
    player = Player(setup())
    (task,) = player.submit(Submit(n_predict=100, held=ALL, stop="constr"))
    player.drain()
    end = player.finished[task][1]
    assert (end.text, end.reason) == ("what the ", StopReason.WORD)


@pytest.mark.parametrize("n_prompt", range(30, 39))
def test_the_context_ends_a_run(n_prompt: int) -> None:
    player = Player(setup(n_ctx=40))
    (task,) = player.submit(Submit(n_prompt=n_prompt, n_predict=-1, held=ALL))
    player.drain()
    end = player.finished[task][1]
    assert (end.tokens, end.truncated) == (TOKENS[: 40 - n_prompt], True)


@pytest.mark.parametrize("n_prompt", range(30, 39))
def test_a_run_goes_on_in_a_shifted_context(n_prompt: int) -> None:
    player = Player(replace(setup(n_ctx=40), shift=True))
    (task,) = player.submit(Submit(n_prompt=n_prompt, n_predict=-1, held=ALL))
    player.drain()
    assert player.finished[task][1].text == TEXT


def test_where_cells_are_short_a_run_is_computed_token_by_token() -> None:
    """Two of three have to be parked in between, and lose nothing."""
    player = Player(setup(n_ctx=80, n_slots=3))
    tasks = [player.submit(Submit(stem=i, n_prompt=20, n_predict=99, held=ALL))[0] for i in range(3)]
    player.drain()
    assert all(player.finished[task][1].text == TEXT for task in tasks)


def test_a_small_batch_takes_a_run_in_pieces() -> None:
    player = Player(setup(n_batch=4, n_ubatch=4, n_slots=4))
    tasks = [player.submit(Submit(stem=i, n_predict=100, held=ALL))[0] for i in range(3)]
    player.drain()
    assert all(player.finished[task][1].text == TEXT for task in tasks)


def test_probabilities_are_asked_of_the_model_for_each_token() -> None:
    """And the text is the same with and without them."""
    player = Player(setup())
    (task,) = player.submit(Submit(n_predict=100, held=ALL, n_probs=2))
    player.drain()
    end = player.finished[task][1]
    assert end.tokens == TOKENS == tuple(probs.token for probs in end.probs)
    assert all(len(probs.top) == 2 and probs.p < 0 for probs in end.probs)
    assert n_passes(player) >= len(TOKENS)
