"""Log-probabilities of Responses: each stands with the text that its token is part of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from tests.api.canned import CALL, WEATHER, ByteTokenizer, CannedEngine, Script, says
from tests.api.sequences import ResponseStream, check_response

from corral.api.dialects.trail import Trail
from corral.events import Chunk, Event, Finished, StopReason, TokenProbs
from corral.ids import TaskId
from corral.tasks import Task

Json = dict[str, Any]
TOOL: Any = {"type": "function", **WEATHER["function"]}
INCLUDE = ["reasoning.encrypted_content", "message.output_text.logprobs"]
BODY: Json = {"input": "hi", "tools": [TOOL], "include": INCLUDE, "top_logprobs": 2}


def probs(token: int) -> TokenProbs:
    """Of a byte and its two neighbours, so that each entry shows which token it is of."""
    return TokenProbs(token, -token / 100, ((token, -token / 100), (token ^ 1, -9.0), (token ^ 2, -10.0)), False)


def says_with_probs(text: str, reason: StopReason = StopReason.EOS, n_held: int = 1) -> Script:
    """As ``says``, a token for each byte; ``n_held`` characters in each chunk."""

    def script(task: Task) -> list[Event]:
        first, *_, last = says(text, reason)(task)
        assert isinstance(last, Finished)
        pieces = [text[i : i + n_held] for i in range(0, len(text), n_held)]
        chunks = [
            Chunk(task.id, piece, tuple(piece.encode()), 1, probs=tuple(map(probs, piece.encode()))) for piece in pieces
        ]
        end = probs(257)  # the end of generation is a token, too
        return [first, *chunks, replace(last, probs=(*map(probs, text.encode()), end))]

    return script


@pytest.fixture
def http(engine: CannedEngine, server: httpx.Client) -> httpx.Client:
    engine.script, engine.n_batch = says_with_probs("hi"), 1
    engine.tasks.clear()
    return server


def whole(http: httpx.Client, **fields: Any) -> Json:
    reply = http.post("/v1/responses", json={**BODY, **fields})
    assert reply.status_code == 200, reply.text
    return check_response(reply.json())


def streamed(http: httpx.Client, **fields: Any) -> Json:
    return ResponseStream(http.post("/v1/responses", json={**BODY, "stream": True, **fields}).text).response


def logprobs(response: Json) -> list[list[Json]]:
    """Of each message."""
    return [item["content"][0]["logprobs"] for item in response["output"] if item["type"] == "message"]


TEXTS = {
    "plain": ("Hello", ["Hello"]),
    "thoughts": ("<think>think</think>think", ["think"]),
    "a mark that is none": ("a <b> <think", ["a <b> <think"]),
    "characters of several bytes": ("é日\U0001f600!", ["é日\U0001f600!"]),
    "around calls": (f"Rome?\n{CALL}\nRome is sunny.\n{CALL}\nYes", ["Rome?", "Rome is sunny.", "Yes"]),
    "only a call": (CALL, []),
    "nothing": ("", []),
}


@pytest.mark.parametrize("n_held", [1, 2, 5, 1000])
@pytest.mark.parametrize("name", TEXTS)
def test_each_token_of_a_text_stands_with_it(http: httpx.Client, engine: CannedEngine, name: str, n_held: int) -> None:
    text, wanted = TEXTS[name]
    engine.script = says_with_probs(text, n_held=n_held)
    one, other = whole(http), streamed(http)
    assert logprobs(one) == logprobs(other)
    told = [bytes(byte for entry in entries for byte in entry["bytes"]).decode().strip() for entries in logprobs(one)]
    assert told == wanted
    for entry in (entry for entries in logprobs(one) for entry in entries):
        (byte,) = entry["bytes"]
        assert entry["logprob"] == -byte / 100
        assert entry.keys() == {"token", "bytes", "logprob", "top_logprobs"}
        assert [(top["bytes"], top["logprob"]) for top in entry["top_logprobs"]] == [
            ([byte], -byte / 100),
            ([byte ^ 1], -9.0),
        ]


def test_deltas_have_those_of_their_own_text(http: httpx.Client, engine: CannedEngine) -> None:
    engine.script = says_with_probs("<think>Hm.</think>Hi <b>")
    text = http.post("/v1/responses", json={**BODY, "stream": True}).text
    told = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    for event in told:
        if event["type"] in ("response.output_text.delta", "response.output_text.done"):
            tokens = [entry["token"] for entry in event["logprobs"]]
            assert "".join(tokens) == event.get("delta", event.get("text"))
            assert all(entry.keys() == {"token", "logprob", "top_logprobs"} for entry in event["logprobs"])
            assert all(top.keys() == {"token", "logprob"} for e in event["logprobs"] for top in e["top_logprobs"])


@pytest.mark.parametrize(
    ("fields", "n_top"),
    [({}, 2), ({"top_logprobs": 0}, 0), ({"top_logprobs": None}, 0), ({"include": None}, 2), ({"top_logprobs": 20}, 3)],
)
def test_how_many_alternatives_are_shown(http: httpx.Client, engine: CannedEngine, fields: Json, n_top: int) -> None:
    response = whole(http, **fields)
    assert [len(entry["top_logprobs"]) for entry in logprobs(response)[0]] == [n_top] * 2
    asked = {**BODY, **fields}["top_logprobs"] or 0
    assert response["top_logprobs"] == asked and engine.tasks[0].sampling.n_probs == max(asked, 1)


def test_nobody_gets_them_who_does_not_ask(http: httpx.Client, engine: CannedEngine) -> None:
    fields: Json = {"top_logprobs": None, "include": INCLUDE[:1], "logprobs": True}
    assert logprobs(whole(http, **fields)) == [[]] == logprobs(streamed(http, **fields))
    assert engine.tasks[0].sampling.n_probs == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_logprobs": 21}, "Field 'top_logprobs': Value must be between 0 <= value <= 20, but got 21"),
        ({"top_logprobs": "x"}, "Field 'top_logprobs': type must be number"),
        ({"include": "x"}, "Field 'include': type must be array"),
    ],
)
def test_refusals(http: httpx.Client, fields: Json, message: str) -> None:
    reply = http.post("/v1/responses", json={**BODY, **fields})
    assert reply.status_code == 400 and reply.json()["error"]["message"].startswith(message)


def test_the_client_reads_them(http: httpx.Client, engine: CannedEngine) -> None:
    with openai.OpenAI(base_url=f"{str(http.base_url).rstrip('/')}/v1", api_key="none", max_retries=0) as api:
        reply = api.responses.create(
            model="m", input="hi", include=["message.output_text.logprobs"], top_logprobs=1
        ).output[0]
        assert reply.type == "message" and reply.content[0].type == "output_text"
        assert [entry.token for entry in reply.content[0].logprobs or ()] == ["h", "i"]
        stream = api.responses.create(
            model="m", input="hi", include=["message.output_text.logprobs"], top_logprobs=1, stream=True
        )
        told = [entry for event in stream if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [(entry.token, entry.logprob) for entry in told] == [("h", -1.04), ("i", -1.05)]


def test_real_ones_are_those_of_the_chat_route(serve_sim: Any) -> None:
    """The same question with the same seed, over the simulated model."""
    http = serve_sim()
    more = {"seed": 3, "temperature": 0.8, "top_logprobs": 3}
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "logprobs": True, **more}
    chat = http.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    (entries,) = logprobs(whole(http, tools=[], max_output_tokens=12, **more))
    shown = [entry for entry in chat if entry["bytes"]]
    assert [(e["bytes"], e["logprob"]) for e in entries] == [(e["bytes"], e["logprob"]) for e in shown][: len(entries)]
    assert len(entries) >= 10 and all(len(entry["top_logprobs"]) == 3 for entry in entries)


def test_a_token_that_no_text_shows_is_in_none() -> None:
    """Control tokens have no text, and a stop string is cut off behind its first tokens."""
    task = Task(TaskId(1), (1,))
    trail = Trail(task, ByteTokenizer())
    done = says("ab", StopReason.WORD, "cd")(task)[-1]
    assert isinstance(done, Finished)
    assert trail.add(replace(done, probs=tuple(map(probs, (97, 257, 98, 99, 100))))) == ["a", "b"]
    assert [entry.token for entry in trail.take(0, 2)] == [97, 98]
