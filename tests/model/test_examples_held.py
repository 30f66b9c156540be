"""The examples of docs/tools.md and docs/structured-output.md on SmolLM2: each is answered by what it asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tests.api.live import client
from tests.api.test_examples import DOCS, Example, compare, examples

from corral.config import ContextConfig, EngineConfig, ModelConfig, ServerConfig
from corral.runtime import Runtime

Said = dict[str, Any]


@pytest.fixture(scope="module")
def http(smollm2_q4_0: Path) -> Iterator[httpx.Client]:
    context = ContextConfig(2048, 1, 3, n_batch=256, n_ubatch=256, n_threads=1, n_threads_batch=1)
    runtime = Runtime.open(ModelConfig(smollm2_q4_0), context, EngineConfig(n_slots=1))
    try:
        with client(runtime, ServerConfig(port=0, alias=("m",))) as served:
            yield served
    finally:
        runtime.close()


def said(http: httpx.Client, example: Example) -> Said:
    reply = http.request(example.method, example.path, content=example.body)
    assert reply.is_success, f"{example.body}: {reply.text}"
    if example.reply is not None:
        compare(example.reply, reply.json(), example.body)
    answer: Said = reply.json()
    return answer


def message(answer: Said) -> Said:
    found: Said = answer["choices"][0]["message"]
    return found


CITIES = {"Lima", "Quito"}
TOOLS: list[Callable[[Said], object]] = [
    lambda said: json.loads(message(said)["tool_calls"][0]["function"]["arguments"])["city"] in CITIES,
    lambda said: message(said)["content"],
    lambda said: said["content"][0]["input"]["city"] in CITIES,
    lambda said: said["message"]["content"],
]
SCHEMA = {
    "properties": {"name": {"type": "string", "maxLength": 20}, "legs": {"type": "integer"}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}
STRUCTURED: list[Callable[[Said], object]] = [
    lambda said: jsonschema.validate(json.loads(message(said)["content"]), SCHEMA) is None,
    lambda said: re.fullmatch("(Yes|No), because [a-z ]{3,20}!", said["content"]),
    lambda said: re.fullmatch(r"[12]\d{3}-[01]\d-[01]\d", said["choices"][0]["text"]),
    lambda said: re.fullmatch("(red|green|blue)(, (red|green|blue)){2}", said["content"]),
    lambda said: re.fullmatch(r"(?s)(?!.*Answer:).*|.*Answer: (yes|no)\.", said["content"]),
]


@pytest.mark.parametrize(("page", "fits"), [("tools", TOOLS), ("structured-output", STRUCTURED)])
def test_each_example_is_answered_by_what_it_asks_for(
    http: httpx.Client, page: str, fits: list[Callable[[Said], object]]
) -> None:
    for example, fit in zip(examples(DOCS / f"{page}.md"), fits, strict=True):
        answer = said(http, example)
        assert fit(answer), f"{example.body}: {answer}"
