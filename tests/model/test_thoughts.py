"""A budget of thoughts on real vocabularies, over HTTP: what is said before its end is what would have been said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tests.api.live import client, events

from corral.config import ContextConfig, EngineConfig, ModelConfig, ServerConfig
from corral.runtime import Runtime

THINKS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
QUESTION = {"role": "user", "content": "Why is the sky blue?"}
ASK = {"messages": [QUESTION], "max_tokens": 40, "seed": 3, "cache_prompt": False}
BUDGET = {"reasoning_budget_tokens": 9, "reasoning_budget_message": " - enough."}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1},
    {"typical_p": 0.9, "repeat_penalty": 1.1},
    {"mirostat": 2},
]


@pytest.fixture(scope="module", params=["tiny_model", "smollm2_q4_0"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    path: Path = request.getfixturevalue(request.param)
    context = ContextConfig(1024, 2, 4, n_batch=256, n_ubatch=256, n_threads=1, n_threads_batch=1)
    runtime = Runtime.open(ModelConfig(path), context, EngineConfig(n_slots=2, audit=True))
    try:
        with client(runtime, ServerConfig(port=0, alias=("m",), chat_template=THINKS)) as served:
            yield served
    finally:
        runtime.close()


def reply(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={**ASK, **fields})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]["message"]
    return choice


@pytest.mark.parametrize("settings", SETTINGS)
def test_thoughts_are_cut_and_nothing_else_is_changed(http: httpx.Client, settings: dict[str, Any]) -> None:
    settings = {**settings, "ignore_eos": True}
    begun = reply(http, **{**settings, "max_tokens": 9})["reasoning_content"]
    cut = reply(http, **settings, **BUDGET)
    assert cut["reasoning_content"].startswith(begun) and cut["reasoning_content"].endswith(" - enough.")
    assert cut["content"]
    assert reply(http, **settings, **BUDGET) == cut
    chunks = events(http.post("/v1/chat/completions", json={**ASK, **settings, **BUDGET, "stream": True}))[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == cut["reasoning_content"]


def test_a_schema_holds_behind_the_forced_end(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"schema": {**schema, "additionalProperties": False}}}
    cut = reply(http, **BUDGET, response_format=form, max_tokens=200)
    assert cut["reasoning_content"].endswith(" - enough.")
    jsonschema.validate(json.loads(cut["content"]), schema)
    cut = reply(http, **BUDGET, grammar="root ::= [a-c]{3}")
    assert cut["reasoning_content"].endswith(" - enough.")
    assert len(cut["content"]) == 3 and set(cut["content"]) <= set("abc")
