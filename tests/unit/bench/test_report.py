"""Figures, tables and files."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from corral.bench.load import Stream
from corral.bench.report import higher_is_better, markdown, percentile, result_path, summarise, table, write_json


def stream(*stamps_s: float, n_tokens: int | None = None) -> Stream:
    return Stream(0.0, stamps_s, stamps_s[-1], len(stamps_s) if n_tokens is None else n_tokens, "", 10, 4)


def test_percentiles_are_values_that_were_seen():
    values = range(1, 101)
    assert percentile(values, 50) == 51
    assert percentile(values, 99) == 100
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 50) is None


def test_figures_of_two_streams():
    figures = summarise([stream(1.0, 1.1, 1.3), stream(2.0, 2.1, 2.2)], wall_s=2.0, slots_busy=0)
    assert figures["requests"] == 2
    assert figures["gen_tok_s"] == 3.0
    assert figures["ttft_p50_ms"] == 2000.0
    assert figures["itl_p50_ms"] == pytest.approx(100.0, abs=0.1)
    assert figures["itl_max_ms"] == pytest.approx(200.0, abs=0.1)
    assert figures["slots_busy"] == 0


def test_vllm_names_say_the_same():
    figures = summarise([stream(1.0, 1.1, 1.3), stream(2.0, 2.1, 2.2)], wall_s=2.0)
    assert figures["output_throughput"] == figures["gen_tok_s"]
    assert figures["total_input_tokens"] == 20
    assert figures["total_cached_tokens"] == 8
    assert figures["mean_ttft_ms"] == 1500.0
    assert figures["p99_itl_ms"] == figures["itl_p99_ms"]
    assert figures["mean_e2el_ms"] == pytest.approx(1750.0)


def test_figures_that_do_not_exist_are_left_out():
    figures = summarise([stream(1.0)], wall_s=1.0)
    assert "itl_p99_ms" not in figures
    assert "mean_tpot_ms" not in figures


@pytest.mark.parametrize("figure", ["gen_tok_s", "aged_ratio", "goodput_req_s", "good_share", "output_throughput"])
def test_more_of_these_is_better(figure):
    assert higher_is_better(figure)


@pytest.mark.parametrize("figure", ["wall_s", "ttft_p50_ms", "itl_max_ms", "failed", "slots_busy"])
def test_less_of_these_is_better(figure):
    assert not higher_is_better(figure)


def test_tables_are_aligned():
    assert table(["a", "bb"], [["xyz", 1.5], ["y", 10]]).splitlines() == ["a     bb", "xyz  1.5", "y     10"]
    assert markdown(["a", "b"], [["x", 2]]).splitlines() == ["| a | b |", "| --- | ---: |", "| x | 2 |"]


def test_results_are_saved_by_date(tmp_path):
    path = result_path(tmp_path / "new", "decode@4", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    write_json(path, {"gen_tok_s": 1.5})
    assert path.name == "20260102-030405-decode@4.json"
    assert json.loads(path.read_text()) == {"gen_tok_s": 1.5}
