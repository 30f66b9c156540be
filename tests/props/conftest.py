"""Owns how hard the property tests search: a few dozen examples, or thousands with CORRAL_LONG=1."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}

settings.register_profile("default", max_examples=40, stateful_step_count=40, **_COMMON)
settings.register_profile("long", max_examples=5000, stateful_step_count=100, **_COMMON)
settings.load_profile("long" if os.environ.get("CORRAL_LONG") == "1" else "default")
