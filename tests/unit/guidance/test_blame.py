"""The search for the part of a schema that is to blame: as deep as it can, and not for long."""

from __future__ import annotations

import pytest

from corral.guidance import blame

DEEP = {"type": "object", "properties": {"a": {"items": {"type": "string", "pattern": "("}}}}


def fault_of(schema: object) -> str:
    return "bad" if '"("' in repr(schema).replace("'", '"') else ""


def test_the_keyword_is_found() -> None:
    assert blame.where(DEEP, "bad", fault_of) == "json_schema: /properties/a/items/pattern: bad"


def test_the_search_ends_where_it_is_when_trials_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, n_trials = 0.0, 0

    def slow(schema: object) -> str:
        nonlocal now_s, n_trials
        now_s += blame.MAX_S
        n_trials += 1
        return fault_of(schema)

    monkeypatch.setattr(blame.time, "monotonic", lambda: now_s)
    assert blame.where({"properties": {f"p{i}": DEEP for i in range(50)}}, "bad", slow).startswith("json_schema: /prop")
    assert n_trials < 8
