"""A task from admission to its end: states, reasons, counts and times."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.props.answers import expected
from tests.props.engine_machine import Cancel, Heard, Player, Setup, Submit

from corral.engine.slot import MOVES, IllegalMove, Slot
from corral.engine.state import SlotSnapshot, SlotState
from corral.events import Chunk, Event, Finished, Progress, StopReason
from corral.ids import SlotId, TaskId
from corral.tasks import Limits, Sampling, Task

MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


def submit_as(player: Player, task: Task) -> None:
    player.open[task.id] = Heard(task)
    player.engine.submit((task,))


def test_s10_a_slot_makes_no_other_moves_than_the_table_has() -> None:
    for state in SlotState:
        for wanted in SlotState:
            slot = Slot(SlotId(0), state=state)
            if wanted in MOVES[state]:
                slot.move(wanted)
                assert slot.state is wanted
            else:
                with pytest.raises(IllegalMove):
                    slot.move(wanted)


def test_s10_the_states_of_a_task_are_seen_in_order() -> None:
    player = Player(Setup(n_slots=2, n_ctx=100, n_batch=8, min_shared_prefill=1))
    player.submit(Submit(n_prompt=20, n=2, n_predict=4, seed=1))
    seen: list[tuple[SlotState, ...]] = []
    while player.engine.has_work:
        player.step()
        states = tuple(sorted((s.state for s in player.engine.snapshot.slots), key=lambda s: s.value))
        if not seen or seen[-1] != states:
            seen.append(states)
    assert seen[0] == (SlotState.PROCESSING_PROMPT, SlotState.WAIT_OTHER)
    assert (SlotState.GENERATING, SlotState.GENERATING) in seen
    assert seen[-1] == (SlotState.IDLE, SlotState.IDLE)
    player.drain()


@MEMORIES
def test_s9_a_busy_slot_shows_its_task_and_how_far_it_is(unified: bool) -> None:
    player = Player(Setup(unified, n_slots=1, n_ctx=100, n_batch=8, n_ubatch=8))
    (task,) = player.submit(Submit(n_prompt=20, n_predict=6))

    def slot() -> SlotSnapshot:
        player.step()
        return player.engine.snapshot.slots[0]

    assert [(s.n_tokens, s.n_prompt_processed, s.n_decoded) for s in (slot(), slot())] == [(8, 8, 0), (16, 16, 0)]
    first = slot()
    assert first.task is not None
    assert first.task.id == task
    assert (first.n_prompt, first.n_tokens, first.n_decoded, first.n_remain) == (20, 20, 1, 5)
    assert slot().n_decoded == 2
    player.drain()


@pytest.mark.parametrize(
    ("text", "limit_ms", "said"),
    [("ab\ncdef", 0, "ab\n"), ("abcdef", 0, "abcdef"), ("ab\ncdef", -1, "ab\ncdef"), ("ab\ncdef", 10**9, "ab\ncdef")],
)
def test_s25_a_time_limit_ends_the_answer_behind_its_first_line(text: str, limit_ms: int, said: str) -> None:
    player = Player(Setup(n_slots=1, n_ctx=100))
    sampling, limits = Sampling(grammar=f"root ::= {json.dumps(text)}"), Limits(t_max_predict_ms=limit_ms)
    player.engine.submit((Task(TaskId(1), (97, 98), sampling=sampling, limits=limits),))
    (end,) = (e for _ in range(20) for e in player.engine.step() if isinstance(e, Finished))
    assert end.text == said
    assert end.reason is (StopReason.EOS if said == text else StopReason.LIMIT)


@pytest.mark.parametrize("stem", range(3))
def test_a_stop_string_ends_the_answer_before_it(stem: int) -> None:
    player = Player(Setup(n_slots=1, n_ctx=200)).play([Submit(stem=stem, n_predict=150, stop="e")])
    end = player.finished[TaskId(1)][1]
    assert end.reason is StopReason.WORD
    assert end.stopping_word == "e"
    assert "e" not in end.text


def test_an_end_of_generation_token_is_counted_and_has_no_text() -> None:
    player = Player(Setup(n_slots=1, n_ctx=1000)).play([Submit(stem=stem, n_predict=-1) for stem in range(3)])
    ends = [end for _, end in player.finished.values() if end.reason is StopReason.EOS]
    assert ends
    assert all(end.timings.n_predicted == len(end.tokens) and not end.truncated for end in ends)


@MEMORIES
def test_the_limit_and_the_context_end_an_answer(unified: bool) -> None:
    player = Player(Setup(unified, n_slots=2, n_ctx=30))
    player.play([Submit(n_prompt=10, n_predict=5), Submit(stem=1, n_prompt=25, n_predict=-1)])
    limited, full = player.finished[TaskId(1)][1], player.finished[TaskId(2)][1]
    assert (limited.reason, limited.truncated, len(limited.tokens)) == (StopReason.LIMIT, False, 5)
    assert (full.reason, full.truncated, len(full.tokens)) == (StopReason.LIMIT, True, 5)


@pytest.mark.parametrize(("stop", "timed"), [((), [False, False, False]), (("abX", "bc"), [True])])
def test_only_a_chunk_that_a_stop_string_ends_carries_the_timings(stop: tuple[str, ...], timed: list[bool]) -> None:
    player = Player(Setup(n_slots=1, n_ctx=100))
    sampling, limits = Sampling(grammar='root ::= "abc"'), Limits(n_predict=3, stop=stop)
    player.engine.submit((Task(TaskId(1), (97, 98), sampling=sampling, limits=limits),))
    told = [e for _ in range(20) for e in player.engine.step() if isinstance(e, Chunk)]
    assert [chunk.timings is not None for chunk in told] == timed


@MEMORIES
def test_n_predict_0_computes_the_prompt_and_says_nothing(unified: bool) -> None:
    player = Player(Setup(unified, n_slots=2, n_ctx=60)).play([Submit(n_prompt=40, n_predict=0, n=2)])
    for _, end in player.finished.values():
        assert (end.tokens, end.text, end.reason) == ((), "", StopReason.LIMIT)
    (again,) = player.submit(Submit(n_prompt=45, n_predict=1))
    player.drain()
    assert player.starts[again].n_cached == 40


def test_waiting_for_cells_is_queueing() -> None:
    """A slot is free at once, and somebody else has all the cells."""
    player = Player(Setup(n_slots=2, n_ctx=100, n_batch=64, n_ubatch=64))
    player.submit(Submit(n_prompt=90, n_predict=9))
    player.step()
    submitted_ms = player.engine.now_ms()
    (late,) = player.submit(Submit(stem=1, n_prompt=40, n_predict=2))
    player.drain()
    timings = player.finished[late][1].timings
    total_ms = player.engine.now_ms() - submitted_ms
    assert timings.queue_ms > 7 * 5
    assert timings.queue_ms + timings.prompt_ms + timings.predicted_ms == pytest.approx(total_ms)


def test_timings_add_up_in_virtual_time() -> None:
    player = Player(Setup(n_slots=1, n_ctx=100, n_batch=64, n_ubatch=64))
    player.submit(Submit(n_prompt=20, n_predict=8))
    (queued,) = player.submit(Submit(stem=1, n_prompt=20, n_predict=8))
    player.drain()
    first, second = player.finished[TaskId(1)][1].timings, player.finished[queued][1].timings
    assert first.queue_ms == 0
    assert second.queue_ms == pytest.approx(first.prompt_ms + first.predicted_ms)
    assert first.prompt_ms > 20
    assert first.predicted_ms > 7 * 5
    assert first.n_predicted == 8
    counters = player.engine.snapshot.counters
    assert counters.n_prompt + counters.n_prompt_cached == 40
    assert counters.n_predicted == 16
    assert counters.n_finished == 2
    assert player.engine.snapshot.histograms["time_to_first_token_seconds"].n == 2


def test_progress_is_told_chunk_by_chunk_to_who_asked() -> None:
    player = Player(Setup(n_slots=1, n_ctx=100, n_batch=8, n_ubatch=8)).play([Submit(n_prompt=16, n_predict=1)])
    task = Task(
        TaskId(50),
        player.finished[TaskId(1)][0].prompt + (100,) * 20,
        sampling=Sampling(temperature=0),
        limits=player.finished[TaskId(1)][0].limits,
        return_progress=True,
    )
    submit_as(player, task)
    told: list[Event] = []
    while player.engine.has_work:
        told += player.step()
    progress = [e for e in told if isinstance(e, Progress)]
    assert [(p.n_total, p.n_cached, p.n_processed) for p in progress] == [
        (36, 16, 16),
        (36, 16, 24),
        (36, 16, 32),
        (36, 16, 36),
    ]


@MEMORIES
@pytest.mark.parametrize("n_steps", [0, 1, 3, 9])
def test_a_cancelled_task_says_nothing_more_and_its_slot_is_free(unified: bool, n_steps: int) -> None:
    """Queued, in its prompt, generating: the next one finds the slot idle, and whatever is in the cache."""
    player = Player(Setup(unified, n_slots=1, n_ctx=100, n_batch=8, n_ubatch=8))
    player.submit(Submit(n_prompt=20, n_predict=30))
    for _ in range(n_steps):
        player.step()
    player.play([Cancel()])
    assert player.engine.snapshot.n_busy == 0
    (second,) = player.submit(Submit(n_prompt=20, n_predict=5))
    player.drain()
    assert player.starts[second].n_cached == min(19, 8 * n_steps)


def test_one_sibling_may_be_cancelled_without_the_others() -> None:
    player = Player(Setup(n_slots=3, n_ctx=100, n_spare=3))
    ids = player.submit(Submit(n_prompt=20, n=3, n_predict=20, seed=1))
    player.until(lambda: all(i in player.starts for i in ids))
    player.forget(ids[1])
    player.drain()
    assert set(player.finished) == {ids[0], ids[2]}


def test_a_seed_gives_the_same_answer_in_any_company() -> None:
    wild = Submit(n_prompt=20, n_predict=15, seed=7)
    alone = Player(Setup(n_slots=4, n_ctx=200)).play([wild]).finished[TaskId(1)][1].tokens
    crowd = Player(Setup(n_slots=4, n_ctx=200)).play([Submit(stem=1), replace(wild, stem=2), wild])
    assert crowd.finished[TaskId(3)][1].tokens == alone
    assert crowd.finished[TaskId(3)][1].seed == 7


def test_the_oracle_of_these_tests_cuts_at_a_stop_string() -> None:
    task = Task(TaskId(1), (97, 98, 99), sampling=Sampling(temperature=0))
    tokens, text, _ = expected(task, 60)
    assert len(tokens) <= 57
    limits = replace(task.limits, stop=(text[3],))
    cut, before, reason = expected(replace(task, limits=limits), 60)
    assert before == text[: text.index(text[3])]
    assert tokens[: len(cut)] == cut
    assert reason is StopReason.WORD


@MEMORIES
def test_s22_the_pass_that_ends_a_prompt_gives_its_first_token_and_no_other_row_is_drawn_from(unified: bool) -> None:
    player = Player(Setup(unified, n_slots=2, n_ctx=100, n_batch=8, n_ubatch=8))
    short, long = (player.submit(Submit(stem=i, n_prompt=n, n_predict=9))[0] for i, n in ((0, 8), (1, 60)))
    player.step()
    states = {s.task.id: (s.state, s.n_decoded) for s in player.engine.snapshot.slots if s.task}
    assert states[short] == (SlotState.GENERATING, 1)
    assert states[long] == (SlotState.PROCESSING_PROMPT, 0)
    player.drain()


def test_prompts_that_come_together_are_done_together() -> None:
    """The first to be done would generate, and the others' chunks would be cut small for its sake."""
    player = Player(Setup(n_slots=3, n_ctx=100, n_spare=3, n_batch=32, n_ubatch=16))
    tasks = [player.submit(Submit(stem=i, n_prompt=25, n_predict=4))[0] for i in range(3)]
    generated: list[set[int]] = []
    while len(player.finished) < 3:
        player.step()
        generated.append({s.task.id for s in player.engine.snapshot.slots if s.task and s.n_decoded})
    assert next(found for found in generated if found) == set(tasks)


def test_a_prompt_does_not_wait_for_one_that_is_much_longer() -> None:
    player = Player(Setup(n_slots=2, n_ctx=200, n_spare=3, n_batch=16, n_ubatch=8))
    short, _ = (player.submit(Submit(stem=i, n_prompt=n, n_predict=4))[0] for i, n in enumerate((8, 150)))
    player.until(lambda: any(s.n_decoded for s in player.engine.snapshot.slots))
    (first,) = [s.task.id for s in player.engine.snapshot.slots if s.task and s.n_decoded]
    assert first == short


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("n_predict", [0, 2])
def test_the_time_of_a_prompt_counts_once_as_its_tokens_do(n: int, n_predict: int) -> None:
    player = Player(Setup(n_slots=3, n_ctx=200, n_batch=64, n_ubatch=64))
    tasks = player.submit(Submit(n_prompt=40, n_predict=n_predict, n=n, ignore_eos=True))
    player.drain()
    counters = player.engine.snapshot.counters
    total_ms = sum(player.finished[task][1].timings.prompt_ms for task in tasks if n_predict == 0 or task == tasks[0])
    assert counters.prompt_ms == pytest.approx(total_ms)


def test_what_a_parked_task_computes_again_is_no_time_of_its_prompt() -> None:
    player = Player(Setup(unified=True, n_slots=2, n_ctx=64, n_spare=2, cache_ram_bytes=0))
    for stem in (0, 1):
        player.submit(Submit(stem=stem, n_prompt=10, n_predict=45))
    player.drain()
    timings = [done.timings for _, done in player.finished.values()]
    assert sum(one.n_parked for one in timings) > 0
    assert player.engine.snapshot.counters.prompt_ms == pytest.approx(sum(one.prompt_ms for one in timings))
