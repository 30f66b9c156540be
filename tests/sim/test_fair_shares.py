"""Tenants that want more than there is, over long stretches of virtual time: what each gets, and how far it is off."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from tests.props.engine_machine import WEIGHTS, Player, Setup, Submit

from corral.engine.fair import account_of
from corral.events import Event
from corral.ids import TaskId

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
N_PREFIX, N_PROMPT, N_ANSWER = 20, 60, 80
"""Prompts have N_PREFIX to N_PROMPT tokens, answers up to N_ANSWER."""


class Crowd(Player):
    """Tenants who always have two more requests than there are slots. Counts the tokens computed for each."""

    def __init__(self, unified: bool, park_min_tokens: int = 8, n_slots: int = 4, seed: int = 0) -> None:
        super().__init__(
            Setup(
                unified,
                n_slots=n_slots,
                n_ctx=1000 if unified else 200,
                n_spare=8,
                n_batch=64,
                n_ubatch=64,
                park_min_tokens=park_min_tokens,
                itl_target_ms=100.0,
                min_shared_prefill=1000,
            )
        )
        self.served = dict.fromkeys(WEIGHTS, 0)
        self.rng = Random(seed)

    def want(self, tenant: str, n_predict: int = 0, priority: int = 0) -> TaskId:
        """A request whose prompt nobody had before."""
        rng = self.rng
        tail = tuple(rng.choices(range(97, 120), k=rng.randint(N_PREFIX, N_PROMPT)))
        n_predict = n_predict or rng.choice([1, 10, 30, N_ANSWER])
        op = Submit(
            n_prompt=len(tail), tail=tail, n_predict=n_predict, tenant=tenant, priority=priority, seed=rng.randint(0, 9)
        )
        return self.submit(op)[0]

    def saturate(self, tenants: str) -> None:
        for tenant in tenants:
            n_open = sum(heard.task.tenant == tenant for heard in self.open.values())
            for _ in range(len(self.engine.books.slots) + 2 - n_open):
                self.want(tenant)

    def step(self) -> list[Event]:
        self.n_steps = 0  # as long as it takes
        drawn = {task: heard.task.tenant for task, heard in self.open.items()}
        events = super().step()
        for span in self.engine.last_plan.spans:
            tenant = drawn[self.engine.books.slots[span.slot].last_task.id]  # type: ignore[union-attr]
            self.served[tenant] += len(span.span.tokens)
        return events

    def run(self, n_steps: int, tenants: str) -> Iterator[None]:
        for _ in range(n_steps):
            self.saturate(tenants)
            self.step()
            yield

    def counter(self, tenant: str) -> float:
        return self.engine.books.shares.served.get((0, tenant), 0.0)  # type: ignore[call-overload]


def bound(player: Crowd, *tenants: str) -> float:
    """docs/scheduling.md: how far the counters of two tenants that always wait can be apart."""
    n_slots, quantum = len(player.engine.books.slots), player.setup.park_min_tokens or N_ANSWER
    return (n_slots + 1) * (N_PROMPT + quantum + 1) / min(WEIGHTS[t] for t in tenants)


@MEMORIES
@pytest.mark.parametrize("park_min_tokens", [0, 8])
def test_n5_two_keys_of_weights_3_and_1_are_served_3_to_1(unified: bool, park_min_tokens: int) -> None:
    player = Crowd(unified, park_min_tokens)
    for _ in player.run(1200, "ab"):
        assert abs(player.counter("a") - player.counter("b")) <= bound(player, "a", "b")
    assert player.served["b"] / player.served["a"] == pytest.approx(3.0, rel=0.1)
    assert len(player.finished) > 100


@MEMORIES
def test_n5_what_a_tenant_gets_does_not_depend_on_how_its_requests_are_cut(unified: bool) -> None:
    """One asks for long answers, the other for many short ones."""
    player = Crowd(unified)
    for _ in range(1000):
        for tenant, n_predict in (("", N_ANSWER), ("a", 2)):
            n_open = sum(heard.task.tenant == tenant for heard in player.open.values())
            for _ in range(6 - n_open):
                player.want(tenant, n_predict)
        player.step()
    assert player.served["a"] / player.served[""] == pytest.approx(1.0, rel=0.1)


def test_n5_who_was_idle_has_saved_up_nothing() -> None:
    player = Crowd(True)
    for _ in player.run(600, "a"):
        pass
    player.served = dict.fromkeys(WEIGHTS, 0)
    for _ in player.run(300, "ab"):
        pass
    assert player.served["b"] / player.served["a"] == pytest.approx(3.0, rel=0.2), "neither credit nor debt"


def test_n5_who_has_a_slot_generates_its_minimum_before_it_is_parked_for_a_share() -> None:
    player = Crowd(True, park_min_tokens=8, n_slots=1)
    works = {}
    n_parked = 0
    for _ in player.run(1200, "ab"):
        held = {w.generation.task.id: w.generation.n_since for w in player.engine.books.held if w.generation}
        for task in held.keys() - works.keys():
            n_parked += 1
            assert held[task] >= 8, f"task {task} was parked after {held[task]} tokens"
        works = held
    assert n_parked > 10
    assert max((end.timings.n_parked for _, end in player.finished.values()), default=0) <= N_ANSWER // 8


def test_n5_nobody_is_parked_for_a_share_until_the_other_would_be_behind_with_its_prompt_and_minimum() -> None:
    """docs/scheduling.md: and so the one is not parked back for the other at once."""
    player = Crowd(True, park_min_tokens=8, n_slots=1)
    first = player.submit(Submit(n_prompt=20, n_predict=100, tenant="a", ignore_eos=True))[0]
    player.until(lambda: len(player.open[first].tokens) >= 20)
    before = player.counter("a")
    player.submit(Submit(stem=1, n_prompt=40, n_predict=10, tenant="", ignore_eos=True))
    player.until(lambda: bool(player.engine.books.held))
    assert player.counter("a") - before == pytest.approx((40 + 8) / WEIGHTS["a"], abs=2)


def test_n5_with_a_minimum_of_0_nobody_is_parked_for_a_share() -> None:
    player = Crowd(True, park_min_tokens=0)
    for _ in player.run(600, "ab"):
        assert not player.engine.books.held


def test_n5_shares_are_those_of_one_priority() -> None:
    """What a tenant was served at a high priority is not held against it at a low one."""
    player = Crowd(True, n_slots=2)
    for _ in range(300):
        if not any(heard.task.priority for heard in player.open.values()):
            player.want("a", n_predict=20, priority=1)
        player.saturate("ab")
        player.step()
    accounts = player.engine.books.shares.served
    assert abs(accounts[0, "a"] - accounts[0, "b"]) <= bound(player, "a", "b")  # type: ignore[index]
    assert accounts[1, "a"] > 500  # type: ignore[index]
    assert {account_of(task)[0] for task, _ in player.finished.values()} == {0, 1}
