"""``echo`` and ``logprobs`` of prompts, as evaluation harnesses ask for them."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from tests.api.conftest import SimServer
from tests.api.live import events, is_idle, until

from corral.config import ServerConfig

Json = dict[str, Any]
LONG = [3 + i % 200 for i in range(100)]


def echoed(http: httpx.Client, prompt: object, **fields: Any) -> Json:
    body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0, **fields}
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    made: Json = reply.json()
    return made


def logprobs(http: httpx.Client, prompt: object, **fields: Any) -> Json:
    found: Json = echoed(http, prompt, **fields)["choices"][0]["logprobs"]
    return found


def direct(http: httpx.Client, prompt: list[int], i: int) -> float:
    """The log-probability of token i, had the model been asked to go on there."""
    body = {"prompt": prompt[:i], "n_predict": 1, "temperature": 0, "n_probs": 100_000}
    (position,) = http.post("/completion", json=body).json()["completion_probabilities"]
    return next(float(entry["logprob"]) for entry in position["top_logprobs"] if entry["id"] == prompt[i])


def test_the_text_is_repeated(http: httpx.Client) -> None:
    body: Json = {"prompt": "Once", "echo": True, "max_tokens": 20, "grammar": 'root ::= " upon"'}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == "Once upon"
    chunks = events(http.post("/v1/completions", json={**body, "stream": True}))[:-1]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Once upon"
    two = {**body, "prompt": ["A", "B"], "n": 2}
    assert [choice["text"] for choice in http.post("/v1/completions", json=two).json()["choices"]] == [
        "A upon",
        "A upon",
        "B upon",
        "B upon",
    ]
    chunks = events(http.post("/v1/completions", json={**two, "stream": True}))[:-1]
    texts = ["".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i) for i in range(4)]
    assert texts == ["A upon", "A upon", "B upon", "B upon"]


def test_each_token_of_the_prompt_has_its_logprob(http: httpx.Client) -> None:
    """llama.cpp#27174, llama.cpp#8942: without these a harness scores at chance, and nobody notices."""
    told = logprobs(http, LONG)
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(LONG) + 1
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    assert all(len(top) in (2, 3) for top in told["top_logprobs"][1:])
    assert [entry["id"] for entry in told["content"]][:-1] == LONG[1:]
    for i in (1, 2, 31, 32, 33, 64, 99):
        assert told["token_logprobs"][i] == pytest.approx(direct(http, LONG, i), abs=1e-4), i
        assert max(told["top_logprobs"][i].values()) >= told["token_logprobs"][i]


@pytest.mark.parametrize("prompt", ["Once upon a time", list(b"Once upon a time"), "é日 \U0001f600!", ""])
@pytest.mark.parametrize("echo", [True, False])
def test_offsets_lead_into_the_text(http: httpx.Client, prompt: str | list[int], echo: bool) -> None:
    """Also behind a token that begins the text and is not in it; parts of a character are where the character is."""
    grammar = 'root ::= " ab日c"'
    choice = echoed(http, prompt, echo=echo, max_tokens=20, grammar=grammar)["choices"][0]
    told, text = choice["logprobs"], choice["text"]
    assert text.endswith(" ab日c") and told["text_offset"] == sorted(told["text_offset"])
    for token, at in zip(told["tokens"], told["text_offset"], strict=True):
        if token.startswith("bytes:"):
            assert bytes.fromhex(token.removeprefix("bytes:").replace("\\x", "")) in text[at].encode()
        elif not token.startswith("<"):
            assert text[at : at + len(token)] == token


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_a_harness_reads_it(http: httpx.Client, max_tokens: int) -> None:
    """As lm-eval does: the sum over the continuation, and whether it is what the model would have said."""
    context, n_new = LONG[:40], 3
    body = {"prompt": context, "n_predict": n_new, "temperature": 0, "return_tokens": True}
    greedy = http.post("/completion", json=body).json()["tokens"]
    told = logprobs(http, context + greedy, max_tokens=max_tokens, logprobs=1)
    end = len(context) + len(greedy)
    assert len(told["token_logprobs"]) == end + max_tokens
    pairs = list(zip(told["token_logprobs"][40:end], told["top_logprobs"][40:end], strict=True))
    assert all(p == max(top.values()) for p, top in pairs)
    other = [*greedy[:-1], (greedy[-1] + 1) % 250]
    told = logprobs(http, context + other, max_tokens=max_tokens, logprobs=1)
    assert told["token_logprobs"][end - 1] < max(told["top_logprobs"][end - 1].values())


def test_nothing_is_reused_and_nothing_is_left(http: httpx.Client) -> None:
    prompt = [7 + i % 190 for i in range(90)]
    http.post("/completion", json={"prompt": prompt, "n_predict": 1})
    first = echoed(http, prompt)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert echoed(http, prompt)["choices"] == first["choices"]
    assert http.post("/completion", json={"prompt": [9, *prompt], "n_predict": 1}).json()["timings"]["cache_n"] == 0


def test_siblings_show_the_prompt_that_they_share(http: httpx.Client) -> None:
    choices = echoed(http, [LONG[:20], LONG[20:50]], n=2, max_tokens=2)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for a, b, prompt in ((0, 1, LONG[:20]), (2, 3, LONG[20:50])):
        mine, others = (choices[i]["logprobs"]["token_logprobs"][: len(prompt)] for i in (a, b))
        assert mine == others and [e["id"] for e in choices[a]["logprobs"]["content"]][: len(prompt) - 1] == prompt[1:]


@pytest.mark.parametrize("unified", [True, False])
def test_many_at_once_and_streams_beside_them(serve_sim: SimServer, unified: bool) -> None:
    http = serve_sim(ServerConfig(port=0), n_slots=4 if unified else 3, n_ctx=1200)
    prompts = [[(5 + 7 * k + i) % 250 for i in range(40 + 9 * k)] for k in range(6)]
    alone = [logprobs(http, prompt) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        streams = [
            pool.submit(http.post, "/completion", json={"prompt": [k], "n_predict": 60, "stream": True}) for k in (1, 2)
        ]
        together = list(pool.map(lambda prompt: logprobs(http, prompt), prompts))
        as_streams = list(pool.map(lambda prompt: streamed(http, prompt)[0], prompts))
        assert all(stream.result().status_code == 200 for stream in streams)
    assert together == alone
    assert [joined([piece["logprobs"] for piece in told if piece["logprobs"]]) for told in as_streams] == alone
    assert is_idle(http)


def joined(told: list[Json]) -> Json:
    keys = told[0].keys()
    return {key: [item for one in told for item in one[key]] for key in keys}


def streamed(http: httpx.Client, prompt: object, **fields: Any) -> list[list[Json]]:
    """The choices of each index as they came."""
    body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0, **fields}
    reply = http.post("/v1/completions", json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    choices = [choice for chunk in events(reply)[:-1] for choice in chunk["choices"]]
    n = 1 + max(choice["index"] for choice in choices)
    return [[choice for choice in choices if choice["index"] == i] for i in range(n)]


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 0}, {"logprobs": 0}, {"n": 3, "max_tokens": 5}, {"echo": False}])
@pytest.mark.parametrize("prompt", ["Once upon a time", LONG, [LONG[:40], LONG[:7]], ["é日", "x"]])
def test_a_stream_says_what_the_whole_reply_says(http: httpx.Client, prompt: object, fields: Json) -> None:
    """The first chunk of each choice has the prompt and its log-probabilities, each further one those of its text."""
    fields = {"regex": "日b[a-z]", "max_tokens": 20, "seed": 4, **fields}
    for choice, told in zip(echoed(http, prompt, **fields)["choices"], streamed(http, prompt, **fields), strict=True):
        assert "".join(piece["text"] for piece in told) == choice["text"]
        assert joined([piece["logprobs"] for piece in told if piece["logprobs"]]) == choice["logprobs"]
        assert [piece["finish_reason"] for piece in told if piece["finish_reason"]] == [choice["finish_reason"]]
        if fields.get("echo", True):
            assert told[0]["text"] and told[0]["logprobs"]["token_logprobs"][0] is None
        for piece in told:
            n_text = sum(len(bytes(entry["bytes"])) for entry in (piece["logprobs"] or {"content": []})["content"])
            assert n_text >= len(piece["text"].encode()) or piece is told[0]


def test_the_prompt_is_there_before_the_reply(serve_sim: SimServer) -> None:
    """A long reply does not hold it back."""
    http = serve_sim(n_ctx=100_000)
    body = {"prompt": LONG, "echo": True, "logprobs": 1, "max_tokens": 50_000, "logit_bias": {"q": 1e6}}
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        lines = reply.iter_lines()
        (choice,) = json.loads(next(lines).removeprefix("data: "))["choices"]
        assert len(choice["logprobs"]["tokens"]) == len(LONG)
    until(lambda: is_idle(http), "the client left")


def test_log_probabilities_without_echo(http: httpx.Client) -> None:
    """OpenAI's lists are there beside llama-server's, also for 0: those of the tokens themselves."""
    body: Json = {"prompt": "x", "max_tokens": 9, "grammar": 'root ::= "abc"'}
    for asked, n_top in ((2, 2), (0, 0), (True, 1)):
        choice = http.post("/v1/completions", json={**body, "logprobs": asked}).json()["choices"][0]
        told = choice["logprobs"]
        assert told["tokens"][:3] == ["a", "b", "c"] and told["text_offset"][:3] == [0, 1, 2]
        assert told["token_logprobs"] == [entry["logprob"] for entry in told["content"]]
        assert [len(entry["top_logprobs"]) for entry in told["content"]] == [n_top] * len(told["tokens"])
    for asked in (None, False):
        assert http.post("/v1/completions", json={**body, "logprobs": asked}).json()["choices"][0]["logprobs"] is None
    assert http.post("/v1/completions", json={**body, "n_probs": 0}).json()["choices"][0]["logprobs"] is None


def test_probabilities_after_sampling_have_logarithms(http: httpx.Client) -> None:
    body: Json = {"prompt": "x", "max_tokens": 2, "n_probs": 3, "post_sampling_probs": True, "seed": 1}
    told = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    for p, entry in zip(told["token_logprobs"], told["content"], strict=True):
        assert p == pytest.approx(math.log(entry["prob"]))


def test_short_prompts(http: httpx.Client) -> None:
    told = logprobs(http, [5])
    assert len(told["token_logprobs"]) == 2 and told["token_logprobs"][0] is None
    assert logprobs(http, [5], max_tokens=0)["token_logprobs"] == [None]


def test_no_alternatives(http: httpx.Client) -> None:
    told = logprobs(http, LONG[:10], logprobs=0)
    assert all(len(top) == 1 for top in told["top_logprobs"][1:-1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": 101}, "Field 'logprobs': Value must be between 0 <="),
        ({"echo": "yes"}, "Field 'echo': type must be boolean"),
    ],
)
def test_refusals(http: httpx.Client, fields: Json, message: str) -> None:
    body = {"prompt": "x", "echo": True, "logprobs": 1, **fields}
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["message"].startswith(message)


def test_the_client_reads_it(http: httpx.Client) -> None:
    with openai.OpenAI(base_url=f"{str(http.base_url).rstrip('/')}/v1", api_key="none", max_retries=0) as client:
        reply = client.completions.create(model="m", prompt=LONG[:9], echo=True, logprobs=1, max_tokens=1)
    told = reply.choices[0].logprobs
    assert told is not None and told.token_logprobs is not None and len(told.token_logprobs) == 10
    assert told.tokens and told.text_offset == sorted(told.text_offset or ())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"suffix": "the end"}, "Field 'suffix': a text can only be continued"),
        ({"suffix": 5}, "Field 'suffix': type must be string, but is number"),
        ({"best_of": 3}, "Field 'best_of': 3 is more than n (1)"),
        ({"n": 2, "best_of": 3}, "Field 'best_of': 3 is more than n (2)"),
        ({"best_of": "3"}, "Field 'best_of': type must be number, but is string"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_fields_that_would_change_the_answer_are_refused(
    http: httpx.Client, fields: Json, says: str, stream: bool
) -> None:
    refused = http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1, "stream": stream, **fields})
    assert refused.status_code == 400
    assert says in refused.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{"suffix": ""}, {"suffix": None, "best_of": None}, {"n": 2, "best_of": 2}])
def test_fields_that_ask_for_nothing_are_no_fault(http: httpx.Client, fields: Json) -> None:
    reply = http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1, **fields})
    assert reply.status_code == 200, reply.text
