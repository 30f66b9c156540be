"""Budgets of thoughts: what is counted, what is forced and when, and who is stronger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from corral.engine.sampling import RowSampler, new_row_sampler, pick_rows
from corral.engine.thoughts import Stage, Thoughts
from corral.errors import InvalidRequest
from corral.sim.model import SimModel
from corral.tasks import Constraint, ConstraintKind, Sampling, ThoughtBudget, Trigger

MODEL = SimModel()
EOG = MODEL.info.eog_tokens
END = "\nenough</t>"


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(MODEL.tokenizer.tokenize(text, add_special=False, parse_special=True))


def text_of(tokens: list[int]) -> str:
    return MODEL.tokenizer.detokenize(tokens, special=True)


def budget(n_tokens: int, n_open: int = 0, **more: Any) -> ThoughtBudget:
    return ThoughtBudget(n_tokens, ("<t>",), ("</t>", "{call}"), tokens_of(END), n_open, **more)


def thinking(n_tokens: int, n_open: int = 0, **more: Any) -> Thoughts:
    return Thoughts(budget(n_tokens, n_open, **more), MODEL.tokenizer)


def say(thoughts: Thoughts, text: str) -> None:
    """What the model would say where nothing is forced."""
    for token in tokens_of(text):
        assert thoughts.forced is None, f"something is forced in {text!r}"
        thoughts.accept(token)


def forced_text(thoughts: Thoughts) -> str:
    told = []
    while (token := thoughts.forced) is not None:
        told.append(token)
        thoughts.accept(token)
    return text_of(told)


def test_after_so_many_tokens_message_and_end_are_forced_one_by_one() -> None:
    thoughts = thinking(4)
    say(thoughts, "hm, ")
    assert forced_text(thoughts) == END
    say(thoughts, "an answer, as long as it likes")


@pytest.mark.parametrize("end", ["</t>", "{call}"])
def test_thoughts_that_end_in_time_are_left_alone(end: str) -> None:
    thoughts = thinking(len(end) + 2)
    say(thoughts, f"hm{end}the answer, which is longer")
    assert thoughts.stage is Stage.OVER


def test_only_thoughts_count() -> None:
    thoughts = thinking(3, n_open=-1)
    say(thoughts, "\n <t>abc")
    assert forced_text(thoughts) == END
    answers = thinking(0, n_open=-1)
    say(answers, "no <t>thoughts here")


def test_a_budget_of_nothing_ends_them_at_once() -> None:
    assert forced_text(thinking(0)) == END
    thoughts = thinking(0, n_open=-1)
    say(thoughts, "<t>")
    assert forced_text(thoughts) == END


def test_thoughts_of_the_prompt_count() -> None:
    thoughts = thinking(5, n_open=3)
    say(thoughts, "ab")
    assert forced_text(thoughts) == END
    assert forced_text(thinking(5, n_open=9)) == END


def test_without_a_limit_nothing_is_forced() -> None:
    say(thinking(-1), "x" * 5000)


def test_a_mark_may_be_part_of_a_token_and_spread_over_several() -> None:
    the = tokens_of("the ")
    assert len(the) == 1
    thoughts = Thoughts(ThoughtBudget(2, ("t",), ("xyz",), tokens_of("!"), anywhere=True), MODEL.tokenizer)
    thoughts.accept(the[0])
    say(thoughts, "ab")
    assert forced_text(thoughts) == "!"


def test_no_character_is_cut() -> None:
    half, rest = tokens_of("€")[0], tokens_of("€")[1:]
    assert rest, "the character is one token"
    thoughts = thinking(2)
    say(thoughts, "a")
    for token in (half, *rest):
        assert thoughts.forced is None
        thoughts.accept(token)
    assert forced_text(thoughts) == END


def test_a_character_that_never_ends_is_cut_all_the_same() -> None:
    thoughts = thinking(2)
    n = 0
    while thoughts.forced is None:
        thoughts.accept(0xF0)
        n += 1
    assert n == 5


def test_thoughts_between_which_only_space_stands_have_a_budget_each() -> None:
    thoughts = thinking(3)
    say(thoughts, "</t")
    assert forced_text(thoughts) == END
    say(thoughts, " \n<t>ab")
    assert thoughts.stage is Stage.THINKING
    say(thoughts, "c")
    assert forced_text(thoughts) == END
    say(thoughts, "text <t> that is shown as it is")


def test_thoughts_anywhere() -> None:
    thoughts = thinking(2, n_open=-1, anywhere=True)
    say(thoughts, "some text <t>ab")
    assert forced_text(thoughts) == END
    say(thoughts, "more <t>ab")
    assert forced_text(thoughts) == END


def test_they_are_ended_from_outside() -> None:
    thoughts = thinking(-1)
    say(thoughts, "hm")
    thoughts.end()
    assert forced_text(thoughts) == END
    say(thoughts, "<t>")
    thoughts.end()
    assert forced_text(thoughts) == END
    say(thoughts, "answer")
    thoughts.end()
    say(thoughts, "<t> goes on")


def test_the_first_ones_are_ended_before_they_begin_and_no_others() -> None:
    thoughts = thinking(3, n_open=-1, anywhere=True)
    thoughts.end()
    say(thoughts, "first <t>")
    assert forced_text(thoughts) == END
    thoughts.end()
    say(thoughts, "then <t>abc")
    assert forced_text(thoughts) == END


def test_an_end_from_outside_waits_for_the_character() -> None:
    half, *rest = tokens_of("€")
    thoughts = thinking(-1)
    thoughts.accept(half)
    thoughts.end()
    for token in rest:
        assert thoughts.forced is None
        thoughts.accept(token)
    assert forced_text(thoughts) == END


# --- in the draw -----------------------------------------------------------------------------------------------------


def drawn(sampler: RowSampler, n: int, likes: str = "q") -> str:
    """What is drawn from a row that likes one character."""
    logits = np.zeros((1, MODEL.info.n_vocab), np.float32)
    logits[0, ord(likes)] = 30
    return text_of([pick_rows(logits, [(0, sampler)])[0].token for _ in range(n)])


def sampler_of(thoughts: ThoughtBudget, **settings: Any) -> RowSampler:
    return new_row_sampler(Sampling(seed=1, thoughts=thoughts, **settings), MODEL, EOG, ())


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_k": 0}, {"typical_p": 0.9}])
def test_what_is_forced_is_told_in_place_of_a_draw(settings: dict[str, float]) -> None:
    n = len(tokens_of(END))
    assert drawn(sampler_of(budget(3), **settings), 3 + n + 2) == f"qqq{END}qq"


def test_bans_do_not_touch_it() -> None:
    banned = tuple((token, -np.inf) for token in set(tokens_of(END)))
    assert drawn(sampler_of(budget(1), logit_bias=banned, temperature=0.0), 1 + len(tokens_of(END))) == f"q{END}"


def test_neighbours_draw_as_without_it() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (3, MODEL.info.n_vocab)).astype(np.float32)
    before = logits.copy()

    def draws(forced: bool) -> list[int]:
        middle = sampler_of(budget(0)) if forced else new_row_sampler(Sampling(seed=5), MODEL, EOG, ())
        others = [new_row_sampler(Sampling(seed=seed), MODEL, EOG, ()) for seed in (3, 4)]
        told = pick_rows(logits, [(0, others[0]), (1, middle), (2, others[1])])
        return [told[0].token, told[2].token]

    assert draws(True) == draws(False)
    assert (logits == before).all()


@pytest.mark.parametrize("post", [False, True])
def test_probabilities_of_what_is_forced(post: bool) -> None:
    sampler = sampler_of(budget(0), n_probs=2, post_sampling_probs=post)
    logits = np.zeros((1, MODEL.info.n_vocab), np.float32)
    logits[0, ord("q")] = 9
    pick = pick_rows(logits, [(0, sampler)])[0]
    assert pick.token == tokens_of(END)[0]
    if post:
        assert (pick.p, pick.top) == (1.0, ((pick.token, 1.0),))
    else:
        assert pick.p < -8 and pick.top[0][0] == ord("q")


def test_a_lazy_constraint_begins_behind_a_forced_end() -> None:
    constraint = Constraint(ConstraintKind.REGEX, "[xy]{2}", after="</t>")
    n = len(tokens_of(END))
    text = drawn(sampler_of(budget(2), constraint=constraint), 2 + n + 2)
    assert text[: 2 + n] == f"qq{END}" and set(text[2 + n :]) <= set("xy")
    triggered = Constraint(ConstraintKind.REGEX, "[xy]{2}", triggers=(Trigger("q"),), after="</t>")
    text = drawn(sampler_of(budget(2), constraint=triggered), 2 + n + 3)
    assert text[: 3 + n] == f"qq{END}q" and set(text[3 + n :]) <= set("xy")


def test_a_constraint_that_holds_is_stronger() -> None:
    """It would have to fail otherwise."""
    held = Constraint(ConstraintKind.REGEX, "[a-z]{9}")
    sampler = sampler_of(budget(3), constraint=held)
    assert drawn(sampler, 9) == "qqqqqqqqq" and sampler.error is None
    allows = Constraint(ConstraintKind.REGEX, r"[a-z]*\nenough</t>xx")
    assert drawn(sampler_of(budget(3), constraint=allows), 5 + len(tokens_of(END))) == f"qqq{END}xx"


def test_a_grammar_of_the_chain_is_stronger() -> None:
    sampler = sampler_of(budget(3), grammar='root ::= "abcdef"')
    assert drawn(sampler, 7) == "abcdef</s>" and sampler.error is None
    sampler = sampler_of(budget(3), grammar=r'root ::= "abc\nenough</t>z"')
    assert drawn(sampler, 4 + len(tokens_of(END))) == f"abc{END}z"


def test_a_grammar_and_bans_can_still_leave_nothing() -> None:
    sampler = sampler_of(budget(0), grammar='root ::= "a"', logit_bias=((ord("a"), -np.inf),))
    drawn(sampler, 1)
    assert isinstance(sampler.error, InvalidRequest)


def test_a_grammar_that_describes_the_thoughts_goes_on_behind_the_forced_end() -> None:
    """As that of a call that must be made in a channel behind the thoughts."""
    (end,) = tokens_of("<pad>")
    grammar = f'start: any <[{end}]> "ab"\nany: /(?s:.*)/'
    thoughts = ThoughtBudget(3, ("<t>",), ("<pad>",), (end,), n_open=0, anywhere=True)
    sampler = sampler_of(thoughts, constraint=Constraint(ConstraintKind.LARK, grammar), temperature=0.0)
    assert drawn(sampler, 6) == "qqq<pad>ab" and sampler.is_complete
