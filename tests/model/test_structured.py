"""A real model held to a schema answers by it."""

from __future__ import annotations

import json

import jsonschema
import pytest

from corral import LLM, SamplingParams
from corral.errors import InvalidRequest

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "legs": {"type": "integer", "minimum": 0, "maximum": 100},
        "kind": {"enum": ["mammal", "bird", "fish"]},
        "sounds": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["name", "legs", "kind", "sounds"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe a llama as JSON."}]


def test_answers_obey_the_schema_beside_others() -> None:
    with LLM(n_slots=4, n_ctx=2048, n_threads=1, n_threads_batch=1) as llm:
        settings = [
            SamplingParams(temperature=0.0, max_tokens=150, json_schema=SCHEMA),
            SamplingParams(temperature=1.5, seed=2, max_tokens=150, json_schema=json.dumps(SCHEMA)),
            SamplingParams(temperature=1.0, seed=3, max_tokens=20, regex="(yes|no), because [a-z ]{3,20}!"),
            SamplingParams(temperature=0.0, max_tokens=8),
        ]
        first, second, third, free = llm.chat([QUESTION] * 4, settings)
        for answer in (first, second):
            jsonschema.validate(json.loads(answer.text), SCHEMA)
            assert answer.finish_reason == "stop"
        assert third.text.startswith(("yes, because ", "no, because ")) and third.text.endswith("!")
        assert free.text and not free.text.startswith("{")
        with pytest.raises(InvalidRequest, match="/not: the keyword 'not'"):
            llm.generate("x", SamplingParams(json_schema={"not": {}}))
        with pytest.raises(InvalidRequest, match="use one of"):
            llm.generate("x", SamplingParams(json_schema={}, regex="a"))
