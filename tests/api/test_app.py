"""A server that could answer no request does not begin to serve."""

from __future__ import annotations

import pytest
from tests.api.conftest import simulated
from tests.api.live import client

from corral.api.app import create_app
from corral.api.schemas.defaults import Defaults
from corral.config import ServerConfig
from corral.errors import LoadError
from corral.tasks import Sampling


@pytest.mark.parametrize(
    "sampling",
    [Sampling(grammar="root ::= [a-z]"), Sampling(logit_bias=((70_000, 1.0),)), Sampling(repeat_penalty=0.0)],
)
def test_default_sampling_that_no_request_could_use_is_a_load_error(sampling: Sampling) -> None:
    with simulated() as runtime, pytest.raises(LoadError, match="the sampling flags do not suit this model: "):
        create_app(runtime, ServerConfig(port=0), Defaults(sampling=sampling))


def test_a_grammar_of_the_command_line_holds_for_every_request() -> None:
    defaults = Defaults(sampling=Sampling(grammar='root ::= "yes"'))
    with simulated() as runtime, client(runtime, ServerConfig(port=0), defaults) as http:
        assert http.post("/completion", json={"prompt": "x"}).json()["content"] == "yes"
