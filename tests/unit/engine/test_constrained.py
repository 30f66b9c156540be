"""Where a constraint begins to hold: at once, behind thoughts, from a trigger on."""

import re
from collections.abc import Sequence

import numpy as np
import pytest

from corral.engine.constrained import Constrained, Phase
from corral.engine.sampling import new_row_sampler, pick_rows
from corral.errors import InvalidRequest
from corral.sim.model import SimModel
from corral.sim.tokenizer import EOS, IM_END, IM_START
from corral.tasks import Constraint, ConstraintKind, Sampling, Trigger, TriggerKind

MODEL = SimModel()
EOG = MODEL.info.eog_tokens
REGEX = ConstraintKind.REGEX


def constrained(constraint: Constraint, banned: Sequence[int] = ()) -> Constrained:
    return Constrained(constraint, MODEL.new_matcher(constraint), MODEL.tokenizer, EOG, banned)


def say(held: Constrained, text: str) -> None:
    for token in MODEL.tokenizer.tokenize(text, add_special=False, parse_special=True):
        allowed = held.allowed()
        assert allowed is None or token in allowed, f"{text}: {token} is not allowed"
        assert not held.refuses(token)
        held.accept(token)


def allowed(held: Constrained) -> str | None:
    """The allowed ASCII characters, "." for an end; None: everything."""
    found = held.allowed()
    if found is None:
        return None
    mask = found.flags
    return "".join(chr(t) for t in np.flatnonzero(mask[:128])) + ("." if mask[EOS] else "")


def test_it_holds_from_the_first_token() -> None:
    held = constrained(Constraint(REGEX, "ab?"))
    assert allowed(held) == "a"
    say(held, "a")
    assert allowed(held) == "b." and not held.is_complete
    say(held, "b")
    assert held.is_complete


def test_behind_thoughts_that_are_open() -> None:
    held = constrained(Constraint(REGEX, "ab", after="</think>"))
    found = held.allowed()
    assert found is not None
    everything = found.flags
    assert not everything[[EOS, IM_END]].any() and everything.sum() == len(everything) - 2
    say(held, "hm {</think")
    assert len(allowed(held) or "") == 128
    say(held, ">")
    assert allowed(held) == "a"


@pytest.mark.parametrize("mark", ["<m>", "<m j>", "<c>j<m>"])
def test_any_of_several_marks_ends_the_thoughts(mark: str) -> None:
    held = constrained(Constraint(REGEX, "ab", after="<m>", or_after=("<m j>", "<c>j<m>")))
    say(held, f"hm {mark[:-1]}")
    assert len(allowed(held) or "") == 128
    say(held, ">")
    assert allowed(held) == "a"


def test_thoughts_begin_with_their_opener_or_not_at_all() -> None:
    constraint = Constraint(REGEX, "ab", after="</t>", opener="<t>")
    held = constrained(constraint)
    assert allowed(held) == "<a"
    say(held, "<")
    assert allowed(held) == "t"
    say(held, "t>what ab</t>")
    assert allowed(held) == "a"
    held = constrained(constraint)
    say(held, "a")
    assert allowed(held) == "b"


@pytest.mark.parametrize("with_trigger", [False, True])
def test_a_trigger(with_trigger: bool) -> None:
    text = "<call>[0-9]" if with_trigger else "[0-9]"
    held = constrained(
        Constraint(
            REGEX,
            text,
            triggers=(
                Trigger("{{"),
                Trigger("<call>"),
            ),
            with_trigger=with_trigger,
        )
    )
    say(held, "some <cal text ")
    assert allowed(held) is None
    say(held, "<call>")
    assert allowed(held) == "0123456789"


def test_a_trigger_in_thoughts_does_not_count() -> None:
    constraint = Constraint(REGEX, "b", triggers=(Trigger("!"),), after="</t>", opener="<t>")
    held = constrained(constraint)
    say(held, " \n<t>a!</t> x")
    assert allowed(held) is None
    say(held, "!")
    assert allowed(held) == "b"
    held = constrained(constraint)
    say(held, "<tx!")
    assert allowed(held) == "b"


def test_control_tokens_can_be_triggers() -> None:
    held = constrained(Constraint(REGEX, "b", triggers=(Trigger("<|im_start|>"),)))
    held.accept(IM_START)
    assert allowed(held) == "b"


def test_a_token_counts_as_itself_only() -> None:
    of_token = Trigger("<|im_start|>", TriggerKind.TOKEN, IM_START)
    held = constrained(Constraint(REGEX, "b", triggers=(of_token,)))
    for byte in b"<|im_start|>":
        held.accept(byte)
    assert allowed(held) is None
    held.accept(IM_START)
    assert allowed(held) == "b"


@pytest.mark.parametrize(
    ("kind", "pattern", "text", "held_part"),
    [
        (TriggerKind.PATTERN, "<(call|tool)>", "So <tool>", "tool>"),
        (TriggerKind.PATTERN, "(?:<<)?(x)?=", "So <<=", "<<="),
        (TriggerKind.PATTERN, '^ *(\\{ *"name")', '  { "name"', '{ "name"'),
        (TriggerKind.PATTERN, "^a|b$", "xb", "b"),
        (TriggerKind.PATTERN_FULL, "[\\s\\S]*(<t>)x*", "any\n<t>", "<t>"),
    ],
)
def test_a_pattern_holds_from_its_first_group_that_is_not_empty(
    kind: TriggerKind, pattern: str, text: str, held_part: str
) -> None:
    constraint = Constraint(REGEX, re.escape(held_part) + "[0-9]", triggers=(Trigger(pattern, kind),))
    held = constrained(constraint)
    for byte in text.encode()[:-1]:
        assert held.phase is Phase.FREE and not held.refuses(byte)
        held.accept(byte)
    assert not held.refuses(ord(text[-1]))
    held.accept(ord(text[-1]))
    assert allowed(held) == "0123456789"


def test_of_all_text_a_pattern_means_all_of_it() -> None:
    held = constrained(Constraint(REGEX, "ab", triggers=(Trigger("a", TriggerKind.PATTERN_FULL),)))
    say(held, "xa")
    assert allowed(held) is None
    held = constrained(Constraint(REGEX, "ab", triggers=(Trigger("a", TriggerKind.PATTERN_FULL),)))
    say(held, "a")
    assert allowed(held) == "b"


def test_a_pattern_counts_behind_thoughts_only() -> None:
    trigger = Trigger("^\\s*(<c>)", TriggerKind.PATTERN)
    constraint = Constraint(REGEX, "<c>b", triggers=(trigger,), after="</t>", opener="<t>")
    held = constrained(constraint)
    say(held, "<t><c>a</t>\n")
    assert allowed(held) is None
    say(held, "<c>")
    assert allowed(held) == "b"
    held = constrained(constraint)
    say(held, "<c>")
    assert allowed(held) == "b"


@pytest.mark.parametrize(("first", "second", "text"), [("he", "th", " z"), ("th", "he", "e z")])
def test_the_first_of_several_triggers_in_a_token_counts(first: str, second: str, text: str) -> None:
    held = constrained(Constraint(REGEX, text, triggers=(Trigger(first), Trigger(second))))
    held.accept(MODEL.tokenizer.tokenize("the ", add_special=False, parse_special=False)[0])
    assert allowed(held) == "z"


def test_a_token_that_goes_on_behind_a_trigger_counts_as_far_as_it_does() -> None:
    the = MODEL.tokenizer.tokenize("the ", add_special=False, parse_special=False)
    assert len(the) == 1
    held = constrained(Constraint(REGEX, "e x", triggers=(Trigger("th"),)))
    assert not held.refuses(the[0])
    held.accept(the[0])
    assert allowed(held) == "x"
    assert constrained(Constraint(REGEX, "x", triggers=(Trigger("th"),))).refuses(the[0])


def test_a_refused_token_is_not_drawn() -> None:
    the = MODEL.tokenizer.tokenize("the ", add_special=False, parse_special=False)[0]
    sampling = Sampling(temperature=0.0, constraint=Constraint(REGEX, "x", triggers=(Trigger("th"),)))
    logits = np.zeros((1, MODEL.info.n_vocab), np.float32)
    logits[0, the], logits[0, ord("q")] = 9, 5
    sampler = new_row_sampler(sampling, MODEL, EOG, ())
    assert [pick_rows(logits, [(0, sampler)])[0].token for _ in range(2)] == [ord("q")] * 2


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {}, {"top_k": 0}, {"typical_p": 0.9}, {"mirostat": 2}])
def test_only_allowed_tokens_are_drawn_and_the_row_is_as_before(settings: dict[str, float]) -> None:
    rng = np.random.default_rng(0)
    for seed in range(20):
        logits = rng.normal(0, 5, (2, MODEL.info.n_vocab)).astype(np.float32)
        before = logits.copy()
        sampling = Sampling(seed=seed, constraint=Constraint(REGEX, "[xyz]{3}"), **settings)  # type: ignore[arg-type]
        held, free = (new_row_sampler(s, MODEL, EOG, ()) for s in (sampling, Sampling(temperature=0.0)))
        drawn = pick_rows(logits, [(0, held), (1, free), (0, free)])
        assert chr(drawn[0].token) in "xyz"
        assert [pick.token for pick in drawn[1:]] == [before[1].argmax(), before[0].argmax()]
        assert (logits == before).all()
        if settings.get("temperature") == 0.0:
            assert chr(drawn[0].token) == max("xyz", key=lambda c: before[0, ord(c)])


def test_probabilities_before_sampling_are_those_of_all_tokens() -> None:
    logits = np.zeros((1, MODEL.info.n_vocab), np.float32)
    logits[0, ord("q")] = 9
    for post in (False, True):
        sampling = Sampling(n_probs=2, post_sampling_probs=post, constraint=Constraint(REGEX, "[xy]"))
        pick = pick_rows(logits, [(0, new_row_sampler(sampling, MODEL, EOG, ()))])[0]
        assert chr(pick.token) in "xy"
        assert next(t for t, _ in pick.top) == ord("q") if not post else {t for t, _ in pick.top} <= {*b"xy"}
        assert pick.p < 0.01 if not post else pick.p > 0.4


def test_bans_that_leave_nothing_fail_this_task_alone() -> None:
    stuck = Sampling(constraint=Constraint(REGEX, "[xy]"), logit_bias=tuple((ord(c), -np.inf) for c in "xy"))
    samplers = [new_row_sampler(s, MODEL, EOG, ()) for s in (stuck, Sampling(temperature=0.0))]
    logits = np.zeros((2, MODEL.info.n_vocab), np.float32)
    logits[1, 77] = 1
    drawn = pick_rows(logits, list(enumerate(samplers)))
    assert isinstance(samplers[0].error, InvalidRequest) and "no token is left" in str(samplers[0].error)
    assert samplers[1].error is None and drawn[1].token == 77


def test_a_grammar_beside_it_is_refused() -> None:
    sampling = Sampling(grammar='root ::= "a"', constraint=Constraint(REGEX, "a"))
    with pytest.raises(InvalidRequest, match="exclude each other"):
        new_row_sampler(sampling, MODEL, EOG, ())
