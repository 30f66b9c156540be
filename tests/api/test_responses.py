"""POST /v1/responses: its events against OpenAI's rules, the unmodified ``openai`` client, and what is kept."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.api.canned import CALL, SERVER, TEMPLATE, WEATHER, CannedEngine, canned_runtime, says
from tests.api.live import client
from tests.api.sequences import ResponseStream, check_response

from corral.api import response_store
from corral.api.response_store import ResponseStore, Stored
from corral.config import ApiKey
from corral.errors import DecodeFailed, LoadError, ServerError
from corral.events import Event, Failed, StopReason
from corral.ids import TenantId
from corral.tasks import Task

TOOL: Any = {"type": "function", **WEATHER["function"]}
BODY: dict[str, Any] = {"input": "hi", "tools": [TOOL]}
TWO_CALLS = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"


@pytest.fixture(scope="module")
def server(engine: CannedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    store = tmp_path_factory.mktemp("store") / "responses.db"
    keys = (ApiKey("k"), ApiKey("other"))
    config = replace(SERVER, chat_template=TEMPLATE, responses_store=store, responses_store_max=5, api_keys=keys)
    with client(canned_runtime(engine), config) as http:
        http.headers["Authorization"] = "Bearer k"
        yield http


@pytest.fixture
def http(engine: CannedEngine, server: httpx.Client) -> httpx.Client:
    engine.start_again()
    return server


@pytest.fixture
def api(http: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{str(http.base_url).rstrip('/')}/v1", api_key="k", max_retries=0) as made:
        yield made


def streamed(http: httpx.Client, **fields: Any) -> ResponseStream:
    reply = http.post("/v1/responses", json={**BODY, "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    return ResponseStream(reply.text)


def whole(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = http.post("/v1/responses", json={**BODY, **fields})
    assert reply.status_code == 200, reply.text
    return check_response(reply.json())


def texts(items: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (item["type"], item["status"], item["arguments"] if "arguments" in item else item["content"][0]["text"])
        for item in items
    ]


ARGUMENTS = '{"city": "Rome"}'
SCRIPTS = {
    "text": (says("Hello"), [("message", "completed", "Hello")]),
    "thoughts": (
        says("<think>Hm.</think>Hello"),
        [("reasoning", "completed", "Hm."), ("message", "completed", "Hello")],
    ),
    "only thoughts": (says("<think>Hm.", StopReason.LIMIT), [("reasoning", "incomplete", "Hm.")]),
    "calls": (
        says(TWO_CALLS),
        [
            ("reasoning", "completed", "Hm."),
            ("message", "completed", "I look."),
            ("function_call", "completed", ARGUMENTS),
            ("function_call", "completed", ARGUMENTS),
        ],
    ),
    "a cut call": (says(CALL[:60], StopReason.LIMIT), [("function_call", "incomplete", '{"city": "Rome"')]),
    "a cut text": (says("Hel", StopReason.LIMIT), [("message", "incomplete", "Hel")]),
    "a stop string": (says("Hel", StopReason.WORD, "lo"), [("message", "completed", "Hel")]),
    "nothing": (says(""), []),
}


@pytest.mark.parametrize("n_batch", [1, 7, 1000])
@pytest.mark.parametrize("name", SCRIPTS)
def test_events_keep_the_rules_and_add_up_to_the_whole_reply(
    http: httpx.Client, engine: CannedEngine, name: str, n_batch: int
) -> None:
    """llama.cpp#21174, llama.cpp#18486, vllm-project/vllm#56285."""
    engine.script, items = SCRIPTS[name]
    engine.n_batch = n_batch
    stream = streamed(http)
    assert texts(stream.items) == items
    one = whole(http)
    assert texts(one["output"]) == items
    same = ("status", "usage", "incomplete_details", "object", "tools", "model")
    assert [one[key] for key in same] == [stream.response[key] for key in same]
    assert (one["status"] == "incomplete") == any("incomplete" in item for item in items)


def test_calls_have_ids_of_their_own(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says(TWO_CALLS)
    calls = streamed(http).items[2:]
    assert len({call["id"] for call in calls} | {call["call_id"] for call in calls}) == 4
    assert all(call["id"].startswith("fc_") and call["call_id"].startswith("call_") for call in calls)


@pytest.mark.parametrize("n_events", [1, 2, 5])
def test_a_failure_in_mid_stream_is_a_failed_response(http: httpx.Client, engine: CannedEngine, n_events: int) -> None:
    def script(task: Task) -> list[Event]:
        return [*says("Hello")(task)[:n_events], Failed(task.id, DecodeFailed("the forward pass failed"))]

    engine.script = script
    failed = streamed(http).response
    assert failed["error"] == {"code": "server_error", "message": "the forward pass failed"}
    assert http.get(f"/v1/responses/{failed['id']}").status_code == 404, "what failed is not kept"


def test_a_failed_response_does_not_repeat_all_that_was_sent(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = lambda task: [*says("Hello")(task)[:2], Failed(task.id, DecodeFailed("x" * 9000))]
    message = streamed(http).response["error"]["message"]
    assert "characters left out" in message and len(message) < 3000


def test_thoughts_are_counted(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says("<think>Hm.</think>Hello")
    assert whole(http)["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


def test_the_client_reads_a_reply(api: openai.OpenAI, engine: CannedEngine) -> None:
    engine.script = says(TWO_CALLS)
    reply = api.responses.create(model="m", input="hi", tools=[TOOL], instructions="Be brief.", temperature=0.5)
    assert reply.output_text == "I look." and reply.status == "completed" and reply.model == "canned"
    assert [item.type for item in reply.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (reply.instructions, reply.temperature) == ("Be brief.", 0.5)
    assert reply.usage is not None and reply.usage.output_tokens == len(TWO_CALLS)


def test_the_client_reads_a_stream(api: openai.OpenAI, engine: CannedEngine) -> None:
    engine.script = says(TWO_CALLS)
    with api.responses.stream(model="m", input="hi", tools=[TOOL]) as stream:
        told = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "I look." and final.output[-1].type == "function_call"
    assert "".join(event.delta for event in told if event.type == "response.output_text.delta") == "I look."
    engine.script = says("Hel", StopReason.LIMIT)
    last = list(api.responses.create(model="m", input="hi", stream=True))[-1]
    assert last.type == "response.incomplete" and last.response.incomplete_details is not None


def test_items_become_a_prompt(http: httpx.Client, engine: CannedEngine) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": ARGUMENTS}
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
    ]
    whole(http, input=items, instructions="Be brief.")
    assert engine.last_prompt.endswith(
        "<|system|>Be brief.\n\nBe kind.<|user|>hi<|assistant|><think>Hm.</think>I look."
        f"{CALL}<|tool|>sunny<|user|>and now?<|assistant|>"
    )


def test_fields_reach_the_task(http: httpx.Client, engine: CannedEngine) -> None:
    whole(
        http, max_output_tokens=5, temperature=0.25, n=3, reasoning={"effort": "none"}, tools=[{"type": "web_search"}]
    )
    (task,) = engine.tasks
    assert task.limits.n_predict == 5 and task.sampling.temperature == 0.25
    assert engine.last_prompt.endswith("<think></think>") and "web_search" not in engine.last_prompt


def test_tokens_are_counted_as_they_are_used(http: httpx.Client) -> None:
    counted = http.post("/v1/responses/input_tokens", json=BODY).json()
    assert counted == {"input_tokens": whole(http)["usage"]["input_tokens"], "object": "response.input_tokens"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": None}, "'input' is required"),
        ({"input": []}, "'input' is required"),
        ({"input": 3}, "Field 'input': type must be string or array, but is number"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "Field 'input.0': items of type 'item_reference'"),
        ({"input": [{"role": "tool", "content": ""}]}, "Field 'input.0.role': must be one of user"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "Field 'input.0.content.0': only parts"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "Field 'input.0.content.0': image input"),
        ({"max_output_tokens": 0}, "Field 'max_output_tokens': Value must be between 1 <="),
        ({"background": True}, "Field 'background': "),
        ({"conversation": "c"}, "Field 'conversation': not supported"),
        ({"previous_response_id": "resp_none"}, "Field 'previous_response_id': response with id 'resp_none' not found"),
    ],
)
def test_refusals(http: httpx.Client, fields: dict[str, Any], message: str) -> None:
    reply = http.post("/v1/responses", json={**BODY, **fields})
    assert reply.status_code == 400 and reply.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_a_kept_response(http: httpx.Client, engine: CannedEngine, stream: bool) -> None:
    engine.script = says(f"<think>Hm.</think>{CALL}")
    first = streamed(http).response if stream else whole(http)
    call_id = first["output"][1]["call_id"]
    engine.script = says("It is sunny.")
    output = [{"type": "function_call_output", "call_id": call_id, "output": "sunny"}]
    second = whole(http, input=output, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    whole(http, input="thanks", previous_response_id=second["id"])
    assert engine.last_prompt.endswith(
        f"<|user|>hi<|assistant|><think>Hm.</think>{CALL}<|tool|>sunny"
        "<|assistant|>It is sunny.<|user|>thanks<|assistant|>"
    )


def test_kept_responses_are_read_and_deleted(api: openai.OpenAI, http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says("Hello")
    made = api.responses.create(model="m", input="hi")
    assert api.responses.retrieve(made.id).output_text == "Hello"
    assert http.get(f"/v1/responses/{made.id}", headers={"Authorization": "Bearer other"}).status_code == 404
    assert http.delete(f"/v1/responses/{made.id}", headers={"Authorization": "Bearer other"}).status_code == 404
    api.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        api.responses.retrieve(made.id)
    assert http.get(f"/v1/responses/{whole(http, store=False)['id']}").status_code == 404


def test_only_the_newest_are_kept(http: httpx.Client) -> None:
    ids = [whole(http)["id"] for _ in range(7)]
    found = [http.get(f"/v1/responses/{name}").status_code for name in ids]
    assert found == [404, 404, 200, 200, 200, 200, 200]


def test_nothing_is_kept_unless_asked_for(engine: CannedEngine) -> None:
    with client(canned_runtime(engine), SERVER) as http:
        made = whole(http, tools=[])
        assert made["store"] is False
        assert http.get(f"/v1/responses/{made['id']}").status_code == 501
        refused = http.post("/v1/responses", json={"input": "x", "previous_response_id": made["id"]})
        assert refused.status_code == 400 and "--responses-store" in refused.json()["error"]["message"]


def test_the_file_outlives_the_server_and_is_the_owners(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    store = ResponseStore(path, 2)
    store.open()
    tenant = TenantId("t")
    store.put(tenant, Stored({"id": "resp_1", "text": "a\0b"}, [{"role": "user"}]))
    again = ResponseStore(path, 2)
    again.open()
    assert again.get(tenant, "resp_1") == Stored({"id": "resp_1", "text": "a\0b"}, [{"role": "user"}])
    assert again.get(TenantId("u"), "resp_1") is None
    assert path.stat().st_mode & 0o077 == 0


def test_nobody_pushes_out_the_responses_of_others(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "responses.db", 2)
    store.open()
    busy, rare = TenantId("busy"), TenantId("rare")
    store.put(rare, Stored({"id": "resp_rare"}, []))
    for i in range(5):
        store.put(busy, Stored({"id": f"resp_{i}"}, []))
    assert [i for i in range(5) if store.get(busy, f"resp_{i}")] == [3, 4]
    store.put(rare, Stored({"id": "resp_rare_2"}, []))
    assert store.get(rare, "resp_rare") and store.get(rare, "resp_rare_2"), "two are kept, however many others came"


def test_a_file_that_is_none_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("not a database, but long enough to be taken for one" * 50)
    for path in (tmp_path, tmp_path / "missing" / "x.db", tmp_path / "x.db"):
        with pytest.raises(LoadError, match="cannot keep responses in"):
            ResponseStore(path, 2).open()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite finds no room for anything more."""
    connect = sqlite3.connect

    def limited(*args: Any, **settings: Any) -> sqlite3.Connection:
        db = connect(*args, **settings)
        db.execute("PRAGMA max_page_count = 1")
        return db

    monkeypatch.setattr(response_store.sqlite3, "connect", limited)


@pytest.mark.usefixtures("full_disk")
def test_what_cannot_be_kept_is_answered_and_told_once(
    http: httpx.Client, engine: CannedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = says("word " * 5000)
    made = whole(http)
    assert made["output"][0]["content"][0]["text"].startswith("word ")
    assert streamed(http).response["status"] == "completed"
    (told,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert told.levelno == logging.WARNING and made["id"] in told.message and "is full" in told.message
    assert http.get(f"/v1/responses/{made['id']}").status_code == 404
    refused = http.post("/v1/responses", json={"input": "x", "previous_response_id": made["id"]})
    assert refused.status_code == 400 and "not found" in refused.json()["error"]["message"]


def test_a_damaged_file_is_an_error_that_says_so(
    engine: CannedEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "responses.db"
    with client(canned_runtime(engine), replace(SERVER, responses_store=path)) as http:
        made = whole(http, tools=[])
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(b"no database at all" * 1000)
        url = f"/v1/responses/{made['id']}"
        body = {"input": "x", "previous_response_id": made["id"]}
        for reply in (http.get(url), http.delete(url), http.post("/v1/responses", json=body)):
            error = reply.json()["error"]
            assert (reply.status_code, error["type"]) == (500, "server_error")
            assert "--responses-store" in error["message"] and "not a database" in error["message"]
        assert whole(http, tools=[])["output"]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("column", ["reply", "items"])
@pytest.mark.parametrize("value", [b"{", 5, "[", b"5"])
def test_a_damaged_response_is_an_error_that_says_so(tmp_path: Path, column: str, value: object) -> None:
    store = ResponseStore(tmp_path / "responses.db", 2)
    store.open()
    store.put(TenantId("t"), Stored({"id": "resp_1"}, []))
    with sqlite3.connect(store.path) as db:
        db.execute(f"UPDATE responses SET {column} = ?", (value,))
    db.close()
    with pytest.raises(ServerError, match="cannot be read: a response is damaged"):
        store.get(TenantId("t"), "resp_1")


def test_arguments_are_text(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says(CALL)
    (call,) = whole(http)["output"]
    assert json.loads(call["arguments"]) == {"city": "Rome"}
