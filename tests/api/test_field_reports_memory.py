"""Faults that users of LLM servers reported about caches, checkpoints, slot files, adapters and priorities.

Over HTTP and the simulated model: its next token is a hash of what the cache holds, so equal texts mean equal caches.
Its tokens are bytes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.conftest import SimServer
from tests.api.live import is_idle, send_raw, until

from corral.config import ServerConfig
from corral.ids import AdapterId
from corral.ports import AdapterInfo
from corral.sim.clock import VirtualClock
from corral.sim.shape import Kind

Json = dict[str, Any]
GREEDY: Json = {"temperature": 0, "ignore_eos": True, "n_predict": 16}
STORY = "Once upon a time there was a llama that lived in a corral with others. " * 4


@pytest.fixture
def serve(serve_sim: SimServer) -> SimServer:
    """As ``serve_sim``, in virtual time: what is worth keeping does not depend on this machine."""
    return lambda *args, **shape: serve_sim(*args, clock=VirtualClock(), **shape)


KINDS = pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name.lower())
MEMORIES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])


def ask(http: httpx.Client, prompt: str, **fields: Any) -> Json:
    response = http.post("/completion", json={**GREEDY, "prompt": prompt, **fields}, timeout=100)
    assert response.status_code == 200, response.text
    reply: Json = response.json()
    return reply


def cold(http: httpx.Client, prompt: str, **fields: Any) -> str:
    """What the prompt is answered without any cache."""
    return str(ask(http, prompt, cache_prompt=False, **fields)["content"])


def n_computed(reply: Json) -> int:
    return int(reply["timings"]["prompt_n"])


def chat(http: httpx.Client, messages: list[Json], **fields: Any) -> Json:
    body = {"messages": messages, "temperature": 0, "max_tokens": 16, "logit_bias": [], **fields}
    response = http.post("/v1/chat/completions", json=body, timeout=100)
    assert response.status_code == 200, response.text
    reply: Json = response.json()
    return reply


def metric(http: httpx.Client, name: str) -> float:
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(name + " ")]
    return float(lines[0].split()[1])


# --- the beginning of a prompt is found ------------------------------------------------------------------------------


@KINDS
@MEMORIES
def test_a_prompt_that_comes_back_after_others_is_not_computed_again(
    serve: SimServer, kind: Kind, unified: bool
) -> None:
    """llama.cpp#10993, llama.cpp#3738, llama.cpp#14113: A, B, A, A on one slot."""
    http = serve(n_slots=1, n_ctx=500, kind=kind, unified=unified)
    first = ask(http, "A: " + STORY)
    ask(http, "B: " + STORY)
    for _ in range(2):
        again = ask(http, "A: " + STORY)
        assert again["content"] == first["content"]
        assert n_computed(again) <= 64


@KINDS
@MEMORIES
def test_a_conversation_computes_its_new_message_in_each_turn(serve: SimServer, kind: Kind, unified: bool) -> None:
    """llama.cpp#21831, llama.cpp#19794, llama.cpp#24714: no checkpoint near the branch point, all is computed again."""
    http = serve(n_slots=2, n_ctx=4096, kind=kind, unified=unified)
    messages: list[Json] = [{"role": "system", "content": STORY}]
    for turn in range(5):
        messages.append({"role": "user", "content": f"{turn}: and what happened then?"})
        reply = chat(http, messages)
        assert (
            reply["choices"][0]["message"]["content"]
            == (chat(http, messages, cache_prompt=False)["choices"][0]["message"]["content"])
        )
        if turn:
            assert n_computed(reply) < 170, f"turn {turn}"
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})


@KINDS
@MEMORIES
def test_a_history_that_lost_its_thoughts_computes_the_last_answer_only(
    serve: SimServer, kind: Kind, unified: bool
) -> None:
    """llama.cpp#25254, abetlen/llama-cpp-python#1369: the next prompt parts from the cache where the answer began."""
    http = serve(n_slots=2, n_ctx=4096, kind=kind, unified=unified)
    messages: list[Json] = [{"role": "system", "content": STORY}, {"role": "user", "content": "Think first. " * 9}]
    chat(http, messages, max_tokens=150)
    messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
    reply = chat(http, messages)
    assert n_computed(reply) < 150
    alone = chat(http, messages, cache_prompt=False)
    assert reply["choices"][0]["message"] == alone["choices"][0]["message"]


@KINDS
@MEMORIES
def test_a_slot_that_is_named_finds_what_is_in_ram_and_in_other_slots(
    serve: SimServer, kind: Kind, unified: bool
) -> None:
    """llama.cpp#28139: an empty slot that is named looks into no cache."""
    http = serve(n_slots=3, n_ctx=1400, kind=kind, unified=unified)
    first = ask(http, STORY, id_slot=0)
    elsewhere = ask(http, STORY, id_slot=2)
    assert (elsewhere["id_slot"], elsewhere["content"]) == (2, first["content"])
    assert n_computed(elsewhere) <= 64
    for i in range(8):  # more than rows can hold
        ask(http, f"{i} {STORY}", id_slot=i % 2)
    from_ram = ask(http, STORY, id_slot=1)
    assert (from_ram["id_slot"], from_ram["content"]) == (1, first["content"])
    assert n_computed(from_ram) <= 64


@MEMORIES
def test_a_slot_that_looks_alike_does_not_cost_another_its_conversation(serve: SimServer, unified: bool) -> None:
    """llama.cpp#22083, llama.cpp#19977: all land in the slot that looks a little alike, and overwrite each other."""
    http = serve(n_slots=4, n_ctx=2400, unified=unified)
    prompts = [STORY[:60] + f"{i} goes its own way. " * 12 for i in range(4)]
    for prompt in prompts:
        ask(http, prompt)
    for prompt in prompts:
        assert n_computed(ask(http, prompt)) <= 64


@MEMORIES
def test_the_prompt_of_a_busy_slot_serves_others(serve: SimServer, unified: bool) -> None:
    """llama.cpp#27616: a second user of one big prompt waits minutes for the same prefill."""
    http = serve(n_slots=2, n_ctx=8000, unified=unified)
    with send_raw(http, {**GREEDY, "prompt": STORY + "first", "n_predict": 800}):
        until(lambda: any(s["is_processing"] for s in http.get("/slots").json()), "the first runs")
        second = ask(http, STORY + "second")
        assert sum(s["is_processing"] for s in http.get("/slots").json()) == 1, "the first is over"
    assert n_computed(second) <= 64
    assert second["content"] == cold(http, STORY + "second")


@KINDS
@pytest.mark.parametrize("n_ctx", [8192, 900], ids=["roomy", "tight"])
def test_34_one_agent_more_than_slots_where_memory_cannot_be_cut(serve: SimServer, kind: Kind, n_ctx: int) -> None:
    """llama.cpp#22756: three rounds, one of the agents is huge."""
    n_shares = 2 if kind is Kind.SLIDING_HYBRID else 1  # always on split KV
    http = serve(n_slots=2, n_ctx=n_ctx * n_shares, kind=kind)
    turns = [f"{i}: " + "agent " * n for i, n in enumerate((20, 20, 90))]
    for n_round in range(3):
        for i, prompt in enumerate(turns):
            reply = ask(http, prompt, n_predict=4)
            assert n_round == 0 or n_computed(reply) <= 64, f"round {n_round}, agent {i}"
            turns[i] = prompt + reply["content"] + " next"


# --- context shift ---------------------------------------------------------------------------------------------------


@MEMORIES
def test_18_a_shifted_reply_ends_where_it_was_told_to(serve: SimServer, unified: bool) -> None:
    """llama.cpp#3969, llama.cpp#25026, llama.cpp#6638: -c 1024 --context-shift, prompt 900, n_predict 512."""
    http = serve(n_slots=1, n_ctx=1024, unified=unified, context_shift=True)
    prompt = (STORY * 4)[:899]
    reply = ask(http, prompt, n_predict=512, n_keep=30)
    assert (reply["tokens_evaluated"], reply["tokens_predicted"]) == (900, 512)
    assert (reply["stop_type"], reply["truncated"]) == ("limit", True)
    too_long = http.post("/completion", json={**GREEDY, "prompt": STORY * 4, "n_keep": 30})
    assert too_long.status_code == 400
    assert too_long.json()["error"]["type"] == "exceed_context_size_error"
    again = ask(http, prompt, n_predict=16)
    assert again["content"] == reply["content"][: len(again["content"])], "what was moved served another request"


# --- adapters --------------------------------------------------------------------------------------------------------

LORAS = tuple(AdapterInfo(AdapterId(i), f"/loras/{i}.gguf", 0.0) for i in range(2))


def lora(adapter: int, scale: float = 1.0) -> list[Json]:
    return [{"id": adapter, "scale": scale}]


@KINDS
@MEMORIES
def test_30_adapters_do_not_share_what_they_computed(serve: SimServer, kind: Kind, unified: bool) -> None:
    """llama.cpp#26207: one long prompt, adapter 0, then adapter 1, then other scales; then each finds its own."""
    http = serve(n_slots=2, n_ctx=8192, adapters=LORAS, kind=kind, unified=unified)
    asked = [lora(0), lora(1), lora(1, 0.5), lora(0, 0.0), [*lora(0), *lora(1)]]
    for n_round in range(2):
        for named in asked:
            reply = ask(http, STORY, lora=named)
            assert reply["content"] == cold(http, STORY, lora=named)
            assert (reply["timings"]["cache_n"] > 0) == bool(n_round), named


def test_30_a_new_default_does_not_touch_what_runs(serve: SimServer) -> None:
    """llama.cpp#10374: /lora-adapters while a request runs; llama.cpp#10377: nor does that keep others waiting."""
    http = serve(n_slots=2, n_ctx=8192, adapters=LORAS)
    http.post("/lora-adapters", json=lora(0))
    alone = [cold(http, STORY, lora=lora(i), n_predict=40) for i in range(2)]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, http, STORY, n_predict=800)
        until(lambda: not is_idle(http), "the first runs")
        assert http.post("/lora-adapters", json=lora(1)).json() == {"success": True}
        assert ask(http, STORY, n_predict=40)["content"] == alone[1]
        assert not running.done(), "the second waited for the first"
        assert running.result()["content"].startswith(alone[0])


# --- slot files ------------------------------------------------------------------------------------------------------


def act(http: httpx.Client, slot: int, action: str, name: str) -> httpx.Response:
    return http.post(f"/slots/{slot}?action={action}", json={"filename": name})


def files(folder: Path) -> ServerConfig:
    return ServerConfig(port=0, alias=("sim",), slot_save_path=folder, endpoint_metrics=True)


@KINDS
@MEMORIES
def test_39_what_was_restored_is_reused(serve: SimServer, tmp_path: Path, kind: Kind, unified: bool) -> None:
    """llama.cpp#26676, llama.cpp#25913, llama.cpp#28194: restored with success, and the next turn reuses nothing."""
    first = serve(files(tmp_path), n_slots=2, n_ctx=2400, kind=kind, unified=unified)
    prompt = STORY + ask(first, STORY, id_slot=0, n_predict=4)["content"]
    ask(first, prompt, id_slot=0, n_predict=1)  # leaves just the prompt, as the client has it
    assert act(first, 0, "save", "chat").status_code == 200
    second = serve(files(tmp_path), n_slots=2, n_ctx=2400, kind=kind, unified=unified)
    n_restored = act(second, 1, "restore", "chat").json()["n_restored"]
    reply = ask(second, prompt + " and then?", id_slot=0)
    assert reply["timings"]["cache_n"] >= n_restored - 64
    assert reply["content"] == cold(first, prompt + " and then?")


@KINDS
def test_40_a_restore_that_fails_leaves_no_trace(serve: SimServer, tmp_path: Path, kind: Kind) -> None:
    """llama.cpp#14434, llama.cpp#27068: an empty slot, a missing file, a damaged one; then all is as before."""
    http = serve(files(tmp_path), n_slots=2, n_ctx=1200, kind=kind)
    alone = cold(http, STORY)
    assert act(http, 0, "save", "empty").json()["n_saved"] == 0
    ask(http, STORY, id_slot=1)
    before = http.get("/slots").json()
    assert act(http, 1, "restore", "missing").status_code == 400
    act(http, 1, "save", "good")
    raw = (tmp_path / "good").read_bytes()
    for i, damaged in enumerate((raw[: len(raw) // 2], raw[:-1], b"", raw[:40] + bytes(40) + raw[80:], raw + b"x")):
        (tmp_path / f"bad {i}").write_bytes(damaged)
        reply = act(http, 1, "restore", f"bad {i}")
        assert reply.status_code == 400, reply.text
        assert http.get("/slots").json() == before
    again = ask(http, STORY, id_slot=0)
    assert (again["content"], n_computed(again) <= 64) == (alone, True)
    assert act(http, 1, "restore", "empty").json()["n_restored"] == 0
    assert ask(http, STORY, id_slot=1)["content"] == alone


def test_40_a_link_that_leads_out_of_the_folder_is_not_followed(serve: SimServer, tmp_path: Path) -> None:
    """llama.cpp#26315: neither read nor written through."""
    inside, outside = tmp_path / "slots", tmp_path / "secret"
    inside.mkdir()
    http = serve(files(inside), n_slots=1)
    ask(http, STORY)
    assert act(http, 0, "save", "good").status_code == 200
    (inside / "good").rename(outside)
    kept = outside.read_bytes()
    (inside / "link").symlink_to(outside)
    (inside / "way").symlink_to(tmp_path)
    for action in ("restore", "save"):
        assert act(http, 0, action, "way/secret").status_code == 400
    assert act(http, 0, "restore", "link").status_code == 400
    act(http, 0, "save", "link")
    assert outside.read_bytes() == kept


# --- priorities ------------------------------------------------------------------------------------------------------


def test_43_priorities_take_turns_and_nobody_is_sent_back_and_forth(serve: SimServer) -> None:
    """vllm-project/vllm#41951, vllm-project/vllm#45561, vllm-project/vllm#40004: all slots are full.

    The urgent one takes a slot, equal ones do not; the one that made way goes on before younger equals, computes
    nothing twice, and all end with what they would say alone.
    """
    http = serve(ServerConfig(port=0, endpoint_metrics=True), n_slots=1, n_ctx=4096)
    prompts = {name: f"{name}: {STORY}" for name in ("first", "equal", "urgent")}
    alone = {name: cold(http, prompt, n_predict=300) for name, prompt in prompts.items()}
    ended: list[str] = []
    n_before = metric(http, "llamacpp:prompt_tokens_total")

    def run(name: str, priority: int) -> None:
        assert ask(http, prompts[name], n_predict=300, priority=priority)["content"] == alone[name]
        ended.append(name)

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(run, "first", 0)]
        until(lambda: not is_idle(http), "the first runs")
        jobs.append(pool.submit(run, "equal", 0))
        until(lambda: metric(http, "llamacpp:requests_deferred") >= 1, "its equal waits")
        jobs.append(pool.submit(run, "urgent", 1))
        for job in jobs:
            job.result(60)
    assert ended == ["urgent", "first", "equal"]
    assert metric(http, "corral:preemptions_total") == 1
    assert metric(http, "llamacpp:prompt_tokens_total") - n_before <= sum(len(p) + 1 for p in prompts.values())


# --- budgets ---------------------------------------------------------------------------------------------------------


@KINDS
@MEMORIES
@pytest.mark.parametrize("limit", [300, 6000])
def test_45_the_budget_of_ram_holds_for_checkpoints_and_for_what_is_larger_than_all_of_it(
    serve: SimServer, kind: Kind, unified: bool, limit: int
) -> None:
    """llama.cpp#23561, llama.cpp#20509, ikawrakow/ik_llama.cpp#2320: not counted, or one entry over the limit kept."""
    http = serve(
        ServerConfig(port=0, endpoint_metrics=True),
        n_slots=2,
        n_ctx=1600,
        kind=kind,
        unified=unified,
        cache_ram_bytes=limit,
        checkpoint_min_step=64,
    )
    most = 0.0
    for i in range(12):
        reply = ask(http, f"{i % 5} {STORY}", n_predict=2)
        assert reply["content"] == cold(http, f"{i % 5} {STORY}", n_predict=2)
        most = max(most, metric(http, "corral:snapshot_bytes"))
        assert most <= limit
    assert most > 0 or limit < 8 * len(STORY), "nothing was ever kept"


def test_what_ram_holds_is_told(serve: SimServer) -> None:
    """llama.cpp#25740, llama.cpp#27725: a cache that nobody can see is taken for a leak."""
    http = serve(ServerConfig(port=0, endpoint_metrics=True), n_slots=1, n_ctx=400)
    for i in range(4):
        ask(http, f"{i} {STORY}")
    listed = http.get("/cache").json()
    in_ram = [kept for kept in listed["prefixes"] if kept["kept"] == "ram"]
    assert sum(kept["n_bytes"] for kept in in_ram) == metric(http, "corral:snapshot_bytes") > 0
    assert len(in_ram) == metric(http, "corral:snapshots") > 0
