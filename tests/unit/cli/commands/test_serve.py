"""What ``corral serve`` says when it is told to stop."""

from __future__ import annotations

import signal

import pytest
from tests.api.conftest import simulated

from corral.cli.commands.serve import Serving
from corral.cli.parse import parse
from corral.cli.resolve import resolve


def test_the_line_names_the_signal_and_what_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    args = parse(["--drain-s", "7"], {})
    loading = Serving(resolve(args), args)
    loading.on_signal(signal.SIGINT)
    assert caplog.messages == ["stopping: SIGINT; the model is still loading; once more to stop at once"]
    caplog.clear()
    with simulated() as runtime:
        serving = Serving(resolve(args), args)
        serving.app.ready(runtime)
        serving.on_signal(signal.SIGTERM)
    assert "stopping: SIGTERM; running requests get up to 7 s; once more to stop at once" in caplog.messages
