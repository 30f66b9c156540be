"""Owns how hard the property tests search: a few dozen examples, or thousands with CORRAL_LONG=1."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}

settings.register_profile("default", max_examples=40, stateful_step_count=40, **_COMMON)
settings.register_profile("long", max_examples=2000, stateful_step_count=60, **_COMMON)
_LONG = os.environ.get("CORRAL_LONG") == "1"
settings.load_profile("long" if _LONG else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Thousands of examples take longer than a test may otherwise."""
    for item in items:
        if _LONG and item.path.parent.name == "props":
            item.add_marker(pytest.mark.timeout(3600))
