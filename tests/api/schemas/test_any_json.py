"""Whatever JSON comes, reading it succeeds or is refused as the request's fault: never an error of ours."""

from __future__ import annotations

import contextlib

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.canned import CannedEngine, canned_runtime, says

from corral.api.job import make_job
from corral.api.schemas.chat import read_chat
from corral.api.schemas.defaults import Defaults
from corral.api.schemas.documents import ChatRequest, NativeRequest
from corral.api.schemas.fields import Fields, parse_object
from corral.api.schemas.params import read_params
from corral.api.schemas.prompt import read_prompts
from corral.api.service import Service
from corral.config import ServerConfig
from corral.errors import InvalidRequest
from corral.ids import CacheKey

ENGINE = CannedEngine(says(""))
RUNTIME = canned_runtime(ENGINE)
SERVICE = Service.of(RUNTIME, ServerConfig(), Defaults())
NAMES = sorted({*NativeRequest.model_fields, *ChatRequest.model_fields, "n_cmpl", "max_tokens", "lora", "json_schema"})

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 300)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "text", "json_object", "false", "1"])
)
KEYS = st.sampled_from(["role", "content", "type", "text", "id", "prompt_string", "include_usage", "tool_calls", "5"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)
BODIES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": VALUES})
)


@settings(max_examples=100, deadline=None)
@given(BODIES)
def test_completion_bodies(body: dict[str, object]) -> None:
    with contextlib.suppress(InvalidRequest, orjson.JSONEncodeError):
        fields = Fields(parse_object(orjson.dumps(body)))
        tokenizer = RUNTIME.model.tokenizer
        params = read_params(fields, Defaults(), ServerConfig(), tokenizer, n_slots=4)
        prompts = read_prompts(fields, tokenizer, 1024)
        key = CacheKey("")
        job = make_job(prompts, params, engine=RUNTIME.engine, tokenizer=tokenizer, model="m", key=key)
        assert [task.index for task in job.tasks] == list(range(len(prompts) * params.n))


@settings(max_examples=100, deadline=None)
@given(BODIES, MESSAGES)
def test_chat_bodies(body: dict[str, object], messages: list[dict[str, object]]) -> None:
    with contextlib.suppress(InvalidRequest, orjson.JSONEncodeError):
        read_chat(Fields(parse_object(orjson.dumps({"messages": messages, **body}))), SERVICE)


@given(st.binary(max_size=64))
def test_any_bytes(raw: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        assert isinstance(parse_object(raw), dict)
