"""Whatever happens, each task's answer is what it would be alone; and planted faults are found.

``make long`` (CORRAL_LONG=1) plays 20,000 histories: 5,000 for each kind of memory, healthy and failing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from tests.props.engine_machine import History, histories, play

N_HISTORIES = max(60, settings.default.max_examples if settings.default else 0)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Injected faults are logged one by one, which costs more than the histories."""
    log = logging.getLogger("corral.engine")
    level, log.disabled = log.level, True
    yield
    log.setLevel(level)
    log.disabled = False


@given(histories(unified=True))
@settings(max_examples=N_HISTORIES)
def test_answers_do_not_depend_on_company_on_unified_kv(history: History) -> None:
    play(history)


@given(histories(unified=False))
@settings(max_examples=N_HISTORIES)
def test_answers_do_not_depend_on_company_on_split_kv(history: History) -> None:
    play(history)


@given(histories(unified=True, faulty=True))
@settings(max_examples=N_HISTORIES)
def test_faults_on_unified_kv_harm_only_the_tasks_of_their_batch(history: History) -> None:
    play(history)


@given(histories(unified=False, faulty=True))
@settings(max_examples=N_HISTORIES)
def test_faults_on_split_kv_harm_only_the_tasks_of_their_batch(history: History) -> None:
    play(history)
