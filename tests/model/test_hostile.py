"""Bodies that killed other servers: each is refused at once, the server lives, and a stream beside them goes on.

Over libllama itself, whose parser of grammars was what fell.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.canned import TEMPLATE
from tests.api.live import client
from tests.model.tiny import write_tiny_llama

from corral.config import ContextConfig, EngineConfig, ModelConfig, ServerConfig
from corral.runtime import Runtime

Json = dict[str, Any]
MAX_S = 2.0
N_CTX = 30_000
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
PATHS = (CHAT, RESPONSES, MESSAGES, OLLAMA)
ASK: list[Json] = [{"role": "user", "content": "hi"}]
STEADY: Json = {"messages": ASK, "temperature": 0, "ignore_eos": True, "stream": True, "max_tokens": N_CTX - 100}


def nested(depth: int, leaf: Any, key: str | None = None) -> Any:
    for _ in range(depth):
        leaf = [leaf] if key is None else {"type": "object", key: {"a": leaf}}
    return leaf


def tool(parameters: Any, **more: Any) -> Json:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True, **more}}


def with_pattern(pattern: str) -> Json:
    return {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}


def schema_of(path: str, schema: Any) -> Json:
    """A text that must match ``schema``, as each route asks for it."""
    return {
        CHAT: {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
        },
        RESPONSES: {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}},
        MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        OLLAMA: {"format": schema},
    }[path]


def strict_tool_of(path: str, parameters: Any) -> Json:
    function = tool(parameters)["function"]
    if path == MESSAGES:
        return {"tools": [{"name": "f", "input_schema": parameters, "strict": True}], "tool_choice": {"type": "any"}}
    if path == RESPONSES:
        return {"tools": [{"type": "function", **function}], "tool_choice": "required"}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}


VERY_DEEP = "3000 lists, each in the other"
"""Stands for them in a body: Python's own writer of JSON fails at so many."""
DEEP_PATTERN = "(" * 5000 + "a" + ")" * 5000
SCHEMAS: dict[str, Any] = {
    "a pattern that is none": with_pattern("(("),
    "a pattern that repeats nothing": with_pattern("*a"),
    "a deep pattern": with_pattern(DEEP_PATTERN),
    "a reference that leads nowhere": {"$ref": "#/nowhere"},
    "a reference that leads out": {"$ref": "https://example.org/x.json"},
    "a deep schema": nested(150, {"type": "string"}, "properties"),
    "a schema of which nothing is known": {"type": "object", "properties": {"a": 7}},
    "a type that is none": {"type": "thing"},
    "what nothing satisfies": {"type": "string", "enum": []},
    "a text that no text can be": {"type": "string", "minLength": 9, "maxLength": 2},
}
"""53 and 54: llama.cpp#19051, llama.cpp#26600, llama.cpp#25283."""

GRAMMARS = {
    "very many brackets": "root ::= " + "(" * 60_000,
    "very many closed brackets": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000,
    "a star behind nothing": "root ::= *",
    "a count behind nothing": "root ::= {3}",
    "a rule that is missing": "root ::= other",
    "no root": 'rout::= "a"',
    "a rule without an end": "root ::= (",
    "a set without an end": "root ::= [a-",
    "a text without an end": 'root ::= "a',
    "a rule of itself": "root ::= root",
    "no grammar": "\0\0\0",
    "nothing at all but space": "   \n\n",
}
"""54: llama.cpp#25308, llama.cpp#27434, llama.cpp#4492."""

OTHERS: dict[str, tuple[str, Json]] = {
    "tools that are nested lists": (CHAT, {"tools": VERY_DEEP}),
    "a tool that is nested lists": (CHAT, {"tools": [tool(nested(150, 1))]}),
    "a tool whose schema is a list": (CHAT, {"tools": [tool([])]}),
    "two tools of one name": (CHAT, {"tools": [tool({}), tool({})]}),
    "a tool that nobody has": (
        CHAT,
        {"tools": [tool({})], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    ),
    "messages that are nested": (CHAT, {"messages": VERY_DEEP}),
    "a message without a role": (CHAT, {"messages": [{"content": "x"}]}),
    "text that is a number": (CHAT, {"messages": [{"role": "user", "content": 7}]}),
    "a part that is none": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": {}}]}]}),
    "a call without a function": (CHAT, {"messages": [*ASK, {"role": "assistant", "tool_calls": [{"id": "x"}]}]}),
    "arguments that are a list": (
        CHAT,
        {"messages": [*ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]},
    ),
    "a grammar with left recursion": ("/completion", {"prompt": "x", "grammar": 'root ::= root "a" | "a"'}),
    "a regex that is none": (CHAT, {"regex": "((("}),
    "a regex that looks back": (CHAT, {"regex": r"(a)\1"}),
    "a tool that is nested deeply": (CHAT, {"tools": [tool(nested(80, {}, "properties"))]}),
    "a lark grammar that is none": (CHAT, {"lark": "start: ("}),
    "a lark grammar without a start": (CHAT, {"lark": 'end: "a"'}),
    "biases that are no numbers": (CHAT, {"logit_bias": {"5": "much"}}),
    "a bias of a token that is none": (CHAT, {"logit_bias": {"123456789": 1}}),
    "a prompt that is too long": (CHAT, {"messages": [{"role": "user", "content": "x" * 100_000}]}),
    "variables that are none": (CHAT, {"chat_template_kwargs": {"enable_thinking": "maybe"}}),
    "an item that is none": (RESPONSES, {"input": [{"type": "thing"}]}),
    "a call whose arguments are no text": (
        RESPONSES,
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]},
    ),
    "a response that is not kept": (RESPONSES, {"previous_response_id": "resp_" + "x" * 5000}),
    "a block that is none": (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "thing"}]}]}),
    "an input that is a list": (
        MESSAGES,
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": [1]}]}]},
    ),
    "a format that is none": (OLLAMA, {"format": "xml"}),
    "an option that is none": (OLLAMA, {"options": {"top_k": {}}}),
}


def cases() -> Iterator[tuple[str, str, Json]]:
    """Names, paths, bodies."""
    for name, schema in SCHEMAS.items():
        for path in PATHS:
            yield f"{name}, {path}", path, schema_of(path, schema)
    for name in ("a pattern that is none", "a deep pattern", "a deep schema"):
        for path in PATHS[:3]:
            yield f"{name} in a strict tool, {path}", path, strict_tool_of(path, SCHEMAS[name])
    for name, grammar in GRAMMARS.items():
        yield f"grammar: {name}", CHAT, {"grammar": grammar}
        yield f"grammar, native: {name}", "/completion", {"prompt": "x", "grammar": grammar}
    for name, (path, body) in OTHERS.items():
        yield name, path, body


def raw_body(path: str, body: Json, **more: Any) -> bytes:
    own: Json = {"input": "hi"} if path == RESPONSES else {"messages": ASK} if path in PATHS else {}
    raw = json.dumps({**own, "max_tokens": 4, **body, **more})
    return raw.replace(json.dumps(VERY_DEEP), "[" * 3000 + "]" * 3000).encode()


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    model = write_tiny_llama(tmp_path / "long.gguf", n_ctx=N_CTX)
    exact = {"type_k": "f32", "type_v": "f32", "flash_attn": False, "n_threads": 1, "n_threads_batch": 1}
    shape = {"n_slots": 2, "n_rows": 2, "kv_unified": False}
    context = ContextConfig(n_ctx=2 * N_CTX, n_batch=256, n_ubatch=128, **shape, **exact)  # type: ignore[arg-type]
    runtime = Runtime.open(ModelConfig(model), context, EngineConfig(n_slots=2, audit=True))
    config = ServerConfig(port=0, alias=("tiny",), chat_template=TEMPLATE)
    with contextlib.closing(runtime), client(runtime, config) as served:
        yield served


class Stream:
    """A steady stream that is read in a thread of its own, as long as the block goes on."""

    def __init__(self, url: httpx.URL) -> None:
        self.is_over = False
        self.n_chars = 0
        self._texts: list[str] = []
        self._news = threading.Condition()
        self._url = url
        self._is_left = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_left.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def wait(self, n_chars: int) -> None:
        """Until so many characters came, or the end."""
        with self._news:
            assert self._news.wait_for(lambda: self.is_over or self.n_chars >= n_chars, 60), "the stream does not go on"

    def _read(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as http, http.stream("POST", CHAT, json=STEADY) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    self._add(choice)
                if self._is_left.is_set():
                    return

    def _add(self, choice: Json) -> None:
        texts = [text for key, text in choice["delta"].items() if key != "role" and text]
        with self._news:
            self.is_over = choice["finish_reason"] is not None
            self._texts += texts
            self.n_chars += sum(map(len, texts))
            self._news.notify()


def assert_refused(http: httpx.Client, name: str, path: str, body: bytes) -> None:
    begun_s = time.process_time()
    reply = http.post(path, content=body)
    took_s = time.process_time() - begun_s
    assert 400 <= reply.status_code < 500, f"{name}: {reply.status_code} {reply.text[:300]}"
    assert took_s < MAX_S, f"{name}: {took_s:.1f} s"
    assert "error" in reply.json() and "internal error" not in reply.text, name
    assert http.get("/health").json() == {"status": "ok"}, name


def test_53_54_57_hostile_bodies_harm_nobody(http: httpx.Client) -> None:
    """Each is a 4xx within two seconds of processor time, and one stream runs through all of it as if it were alone."""
    asked = list(cases())
    assert len(asked) > 90
    with Stream(http.base_url) as stream:
        stream.wait(1)
        for name, path, body in asked:
            n_before = stream.n_chars
            for mode in (False, True):
                assert_refused(http, name, path, raw_body(path, body, stream=mode))
            stream.wait(n_before + 1)
            assert not stream.is_over, "the stream is too short for so many cases"
    with Stream(http.base_url) as alone:
        alone.wait(stream.n_chars)
    assert alone.text.startswith(stream.text) and stream.n_chars > len(asked)
