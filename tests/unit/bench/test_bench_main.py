"""The command line of the bench."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from corral.bench import main


def run(server: Any, *argv: str) -> int:
    """``main`` on another thread, beside the server it measures; ``URL`` stands for the server's."""

    async def both() -> int:
        async with server.serve() as url:
            return await asyncio.to_thread(main, [url if word == "URL" else word for word in argv])

    return asyncio.run(both())


def test_a_workload_prints_a_table_and_saves_all_figures(imitation, tmp_path, capsys):
    saved = tmp_path / "one.json"
    assert run(imitation, "decode", "--url", "URL", "--users", "2", "--seed", "5", "--json", str(saved)) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["workload", "gen_tok_s"]
    assert row.split()[0] == "decode@2"
    figures = json.loads(saved.read_text())
    assert figures.items() >= {"workload": "decode@2", "seed": 5, "requests": 2, "api": "native"}.items()
    assert figures["total_output_tokens"] == 6


@pytest.mark.parametrize("workload", ["chat", "system", "late"])
def test_conversations_are_asked_over_the_chat_route_unless_told(imitation, workload):
    assert run(imitation, workload, "--url", "URL", "--users", "1") == 0
    assert all("messages" in body for body in imitation.bodies)
    imitation.bodies.clear()
    assert run(imitation, workload, "--url", "URL", "--users", "1", "--api", "native") == 0
    assert all("prompt" in body for body in imitation.bodies)


def test_results_can_be_kept_in_a_folder(imitation, tmp_path):
    assert run(imitation, "fork", "--url", "URL", "--users", "2", "--save", str(tmp_path)) == 0
    (saved,) = tmp_path.iterdir()
    assert saved.name.endswith("-fork@2.json")


def test_two_urls_are_compared_in_pairs(imitation, tmp_path, capsys):
    saved = tmp_path / "pairs.json"
    argv = ["decode", "--url", "URL", "--against", "URL", "--users", "1", "--pairs", "2", "--seed", "1"]
    assert run(imitation, *argv, "--json", str(saved)) == 0
    result = json.loads(saved.read_text())
    assert [pair["seed"] for pair in result["pairs"]] == [1, 2]
    assert [pair["order"] for pair in result["pairs"]] == [["a", "b"], ["b", "a"]]
    assert result["ratios"]["total_output_tokens"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert "A/B" in capsys.readouterr().out


def test_seeds_differ_from_run_to_run_unless_given(imitation):
    run(imitation, "decode", "--url", "URL", "--users", "1")
    run(imitation, "decode", "--url", "URL", "--users", "1")
    first, second = (body["prompt"] for body in imitation.bodies)
    assert first != second


def test_a_server_that_is_not_there_is_one_line_and_code_1(capsys):
    assert main(["decode", "--url", "http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("corral bench: http://127.0.0.1:1")


@pytest.mark.parametrize("argv", [["decode", "--users", "0"], ["decode", "--against", "http://x", "--pairs", "0"]])
def test_nothing_to_measure_is_code_1(argv, capsys):
    assert main(argv) == 1
    assert "at least 1" in capsys.readouterr().err


def test_simulated_time_needs_no_server(tmp_path, capsys):
    saved = tmp_path / "sim.json"
    assert main(["sim", "--trace", "decode", "--users", "2", "--itl-target-ms", "50,500", "--json", str(saved)]) == 0
    assert [*json.loads(saved.read_text())] == ["decode@2 itl 50", "decode@2 itl 500"]
    assert len(capsys.readouterr().out.splitlines()) == 3
