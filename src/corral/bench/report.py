"""Figures of a measurement: how they are computed, printed and saved."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import orjson

from corral.bench.load import Stream

Figures = dict[str, float | int | str]

SHOWN = ("wall_s", "gen_tok_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "itl_max_ms")
"""The figures of the short table, besides a workload's own."""

_HIGHER = ("_tok_s", "_req_s", "_ratio", "_share", "throughput", "parsed", "completed")


def percentile(values: Iterable[float], p: float) -> float | None:
    """The value at rank ``p`` per cent (0 <= p <= 100) without interpolation; None of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))] if ordered else None


def higher_is_better(figure: str) -> bool:
    """Whether more of it is good, told by the ending of its name; times and failures are not."""
    return figure.endswith(_HIGHER)


def summarise(streams: Sequence[Stream], wall_s: float, **extra: float | int | None) -> Figures:
    """All figures of a run. Those that do not exist (a gap when no stream had two pieces) are left out."""
    gaps = [gap for stream in streams for gap in stream.gaps_ms]
    n_out = sum(stream.n_tokens for stream in streams)
    ttft = [stream.ttft_ms for stream in streams]
    figures: dict[str, float | int | None] = {
        "requests": len(streams),
        "wall_s": _digits(wall_s, 3),
        "gen_tok_s": _digits(n_out / wall_s, 1),
        "ttft_p50_ms": _digits(percentile(ttft, 50), 1),
        "ttft_p99_ms": _digits(percentile(ttft, 99), 1),
        "itl_p50_ms": _digits(percentile(gaps, 50), 1),
        "itl_p99_ms": _digits(percentile(gaps, 99), 1),
        "itl_max_ms": _digits(max(gaps, default=None), 1),
        **{name: _digits(value, 3) for name, value in extra.items()},
        **_vllm(streams, wall_s, ttft, gaps, n_out),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _vllm(
    streams: Sequence[Stream], wall_s: float, ttft: list[float], gaps: list[float], n_out: int
) -> dict[str, float | int | None]:
    """The same under the names of vLLM's ``bench serve`` results, for tools that read those."""
    tpot = [stream.tpot_ms for stream in streams if stream.tpot_ms is not None]
    series = {"ttft": ttft, "tpot": tpot, "itl": gaps, "e2el": [stream.total_ms for stream in streams]}
    figures: dict[str, float | int | None] = {
        "completed": len(streams),
        "duration": _digits(wall_s, 3),
        "total_input_tokens": sum(stream.n_prompt for stream in streams),
        "total_cached_tokens": sum(stream.n_cached for stream in streams),
        "total_output_tokens": n_out,
        "request_throughput": _digits(len(streams) / wall_s, 3),
        "output_throughput": _digits(n_out / wall_s, 1),
    }
    for name, values in series.items():
        figures[f"mean_{name}_ms"] = _digits(statistics.fmean(values) if values else None, 1)
        figures[f"median_{name}_ms"] = _digits(statistics.median(values) if values else None, 1)
        figures[f"p99_{name}_ms"] = _digits(percentile(values, 99), 1)
    return figures


def _digits(value: float | int | None, n: int) -> float | int | None:
    return round(value, n) if isinstance(value, float) else value


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Plain text columns, the first to the left, the others to the right."""
    cells = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    lines = (
        [row[0].ljust(widths[0]), *(value.rjust(width) for value, width in zip(row[1:], widths[1:], strict=True))]
        for row in cells
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def markdown(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with numbers to the right."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(_cell(value) for value in row)} |" for row in [headings, rule, *rows])


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def short_table(name: str, figures: Mapping[str, float | int | str], headline: Sequence[str]) -> str:
    """One row: the workload's own figures first, then the usual ones."""
    shown = [figure for figure in dict.fromkeys((*headline, *SHOWN)) if figure in figures]
    return table(["workload", *shown], [[name, *(figures[figure] for figure in shown)]])


def write_json(path: Path, value: object) -> None:
    """Write ``value``, making the folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def result_path(folder: Path, name: str, now: datetime) -> Path:
    """Where a result is saved: its date and workload are its name, so results sort by age."""
    return folder / f"{now:%Y%m%d-%H%M%S}-{name}.json"
