"""Two servers started, measured in turn, and stopped."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from corral.bench import main, peer
from corral.bench.load import BenchError
from corral.bench.peer import PeerConfig, compare_peers, parse_scenarios, sittings, to_json, to_markdown
from corral.bench.servers import serve

SERVER = (sys.executable, str(Path(__file__).with_name("conftest.py")))


def test_scenarios_have_the_slots_they_need_unless_told():
    found = parse_scenarios("decode@16, turns@8,mixed@4,busy@1,turns@8/3")
    assert [(s.name, s.n_slots) for s in found] == [
        ("decode@16", 16),
        ("turns@8", 4),
        ("mixed@4", 6),
        ("busy@1", 4),
        ("turns@8", 3),
    ]


@pytest.mark.parametrize("text", ["nothing@4", "decode@x", "decode@0", "decode@4/x"])
def test_bad_scenarios_are_refused(text):
    with pytest.raises(BenchError):
        parse_scenarios(text)


def test_each_scenario_has_fresh_servers_unless_kept():
    scenarios = parse_scenarios("decode@4,shared@4,decode@16")
    assert [len(runs) for runs in sittings(scenarios, 4, keep=False)] == [2, 2, 2, 2, 2, 2]
    assert [len(runs) for runs in sittings(scenarios, 3, keep=True)] == [4, 2, 2, 1]
    assert [len(runs) for runs in sittings(scenarios, 1, keep=False)] == [1, 1, 1]


def test_scenarios_that_need_a_fresh_server_get_one_for_each_pair():
    (aged, decode) = parse_scenarios("aged@4,decode@4")
    runs = list(sittings([aged, decode], 2, keep=True))
    assert runs == [[(aged, 0)], [(aged, 1)], [(decode, 0)], [(decode, 1)]]


def test_both_servers_get_the_same_flags_and_their_own(tmp_path):
    config = PeerConfig(SERVER, SERVER, Path("m.gguf"), tmp_path, theirs_more=("--extra",), n_pairs=3)

    async def run():
        return [result async for result in compare_peers(config, parse_scenarios("decode@2"))]

    ((_, pairs),) = results = asyncio.run(run())
    assert [pair.order for pair in pairs] == [("a", "b"), ("a", "b"), ("b", "a")]
    flags = "flags -m m.gguf -np 4 -c 8192 -t 2 -tb 2"
    assert (tmp_path / "server-a.log").read_text().splitlines() == [flags] * 2
    assert (tmp_path / "server-b.log").read_text().splitlines() == [f"{flags} --extra"] * 2
    row = to_markdown(results).splitlines()[2]
    assert row.startswith("| decode@2 | 4 | gen_tok_s (more is better) |")
    assert to_json(config, results)["scenarios"][0]["ratios"]["gen_tok_s"].median > 0


def test_each_server_is_started_first_in_half_of_the_pairs(tmp_path, monkeypatch):
    started = []

    @asynccontextmanager
    async def record(command, log, **_):
        started.append(log.stem[-1])
        async with serve(command, log) as url:
            yield url

    monkeypatch.setattr(peer, "serve", record)
    config = PeerConfig(SERVER, SERVER, Path("m.gguf"), tmp_path, n_pairs=2, keep=True)

    async def run():
        return [result async for result in compare_peers(config, parse_scenarios("decode@2,fork@2"))]

    results = asyncio.run(run())
    assert [(scenario.name, len(pairs)) for scenario, pairs in results] == [("decode@2", 2), ("fork@2", 2)]
    assert started == ["a", "b", "b", "a"]


def test_peer_command_writes_json_and_markdown(tmp_path, capsys):
    server = f"{SERVER[0]} {SERVER[1]}"
    argv = ["peer", "--server", server, "--ours", server, "-m", "m.gguf", "--out", str(tmp_path), "--pairs", "1"]
    assert main([*argv, "--scenarios", "decode@2"]) == 0
    saved = json.loads((tmp_path / "peer.json").read_text())
    assert saved["scenarios"][0]["pairs"][0]["order"] == ["a", "b"]
    assert (tmp_path / "peer.md").read_text() in capsys.readouterr().out


def test_a_server_is_there_during_the_block_only(tmp_path):
    async def run() -> None:
        async with (
            serve(SERVER, tmp_path / "log") as url,
            aiohttp.ClientSession() as session,
            session.get(url + "/health") as reply,
        ):
            assert reply.status == 200
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(url + "/health")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("command", "message"),
    [((sys.executable, "-c", "raise SystemExit(3)"), "ended with 3"), (("/no/such/program",), "cannot start")],
)
def test_a_server_that_cannot_start_is_an_error(tmp_path, command, message):
    async def run() -> None:
        async with serve(command, tmp_path / "log"):
            pass

    with pytest.raises(BenchError, match=message):
        asyncio.run(run())
