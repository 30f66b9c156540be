"""The command line of ``corral bench``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import shlex
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from corral.bench import offline, peer, simulate
from corral.bench.compare import Pair, Side, comparison_table, ratios, run_pair
from corral.bench.load import BenchError, connect
from corral.bench.registry import WORKLOADS, Workload
from corral.bench.report import SHOWN, Figures, result_path, short_table, table, write_json
from corral.bench.wire import WIRES
from corral.bench.workloads import Load, Options
from corral.errors import CorralError

OURS = (sys.executable, "-c", "from corral.cli.main import main; raise SystemExit(main())", "serve")


def main(argv: Sequence[str]) -> int:
    """Run ``corral bench`` with these arguments. 0, or 1 if a measurement could not be made."""
    args = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(args))
    except (BenchError, CorralError) as error:
        print(f"corral bench: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("corral bench: interrupted", file=sys.stderr)
        return 130


async def _run(args: argparse.Namespace) -> int:
    """The command, cancelled by SIGTERM as by Ctrl-C, so that servers it started do not outlive it."""
    task = asyncio.ensure_future(args.run(args))
    # Not every platform's loop has signal handlers, and no thread but the main one.
    with contextlib.suppress(NotImplementedError, RuntimeError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    result: int = await task
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("corral bench", description="Measure this server, any other, or both in turn.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for workload in WORKLOADS.values():
        _add_workload(commands.add_parser(workload.name, help=workload.help))
    _add_peer(commands.add_parser("peer", help="our server and another one, started here, in alternation"))
    _add_engine(commands.add_parser("engine", help="the engine alone: what a step costs besides the forward pass"))
    _add_sim(commands.add_parser("sim", help="the scheduler alone, in simulated time"))
    return parser


def _add_workload(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_workload)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--against", metavar="URL", help="measure this server too, in alternation")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--save", nargs="?", const="bench-results", type=Path, metavar="FOLDER")
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--api", choices=list(WIRES), help="native, or chat for workloads of messages, unless given")
    parser.add_argument("--seed", type=int, help="of the prompts; a new one each time unless given")
    parser.add_argument("--pairs", type=int, default=4, help="an even number; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    usual = Options()
    group = parser.add_argument_group("poisson")
    group.add_argument("--rate", type=float, default=usual.rate_s, help="arrivals a second")
    group.add_argument("--requests", type=int, default=usual.n_requests, help="0: eight for each user")
    group.add_argument("--prefix-share", type=float, default=usual.prefix_share, help="0 to 1")
    group.add_argument("--ttft-limit-ms", type=float, default=usual.ttft_limit_ms)
    group.add_argument("--itl-limit-ms", type=float, default=usual.itl_limit_ms)


def _add_peer(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_peer)
    parser.add_argument("--server", required=True, help="the other server's command, as llama-server")
    parser.add_argument("--server-flags", default="", help="more flags for it")
    parser.add_argument("--ours", help="our command; this installation unless given")
    parser.add_argument("--ours-flags", default="", help="more flags for it")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--scenarios", default=peer.SCENARIOS, help="NAME@USERS[/SLOTS], separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx-per-slot", type=int, default=2048)
    parser.add_argument("--keep", action="store_true", help="keep servers between scenarios of as many slots")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), metavar="FOLDER")
    _add_common(parser)


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_engine)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=16, help="streams at once")
    parser.add_argument("--steps", type=int, default=200, help="tokens of each")
    parser.add_argument("--prompt-words", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx-per-row", type=int, default=2048)
    parser.add_argument("--kv-unified", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--json-schema", metavar="FILE", type=Path, help="streams obey it; it must not end soon")
    parser.add_argument("--sampled", action="store_true", help="temperature 0.8, top-k, top-p, min-p; else greedy")
    parser.add_argument("--seed", type=int, help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE")


def _add_sim(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_sim)
    parser.add_argument("--trace", choices=list(simulate.TRACES), default="mixed")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--ctx-per-slot", type=int, default=2048)
    parser.add_argument("--kv-unified", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument(
        "--itl-target-ms", type=_numbers, default="100,250,1000", help="one or more, separated by commas"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _options(args: argparse.Namespace) -> Options:
    return Options(args.rate, args.requests, args.prefix_share, args.ttft_limit_ms, args.itl_limit_ms)


def _seed(args: argparse.Namespace) -> int:
    seed: int = args.seed if args.seed is not None else secrets.randbelow(1_000_000)
    return seed


async def _workload(args: argparse.Namespace) -> int:
    if args.users < 1:
        raise BenchError("--users must be at least 1")
    workload, seed = WORKLOADS[args.command], _seed(args)
    name = f"{workload.name}@{args.users}"
    head = {"workload": name, "date": datetime.now(UTC).isoformat(timespec="seconds"), "api": args.api or workload.api}
    if args.against:
        pairs = await _against(args, workload, seed)
        print(f"{name}, {len(pairs)} pairs, A {args.url}, B {args.against}")
        print(comparison_table(pairs, tuple(dict.fromkeys((*workload.headline, *SHOWN)))))
        _save(args, name, {**head, "a": args.url, "b": args.against, "pairs": pairs, "ratios": ratios(pairs)})
    else:
        figures = await _once(args, workload, args.url, seed)
        print(short_table(name, figures, workload.headline))
        _save(args, name, {**head, "url": args.url, "seed": seed, **figures})
    return 0


async def _once(args: argparse.Namespace, workload: Workload, url: str, seed: int) -> Figures:
    async with connect(url, args.api or workload.api, args.api_key, args.timeout_s) as client:
        figures = await workload.run(Load(client, args.users, seed, _options(args)))
        await client.settle()
        return figures


async def _against(args: argparse.Namespace, workload: Workload, seed: int) -> list[Pair]:
    if args.pairs < 1:
        raise BenchError("--pairs must be at least 1")
    urls: dict[Side, str] = {"a": args.url, "b": args.against}

    async def measure(side: Side, seed: int) -> Figures:
        return await _once(args, workload, urls[side], seed)

    return [await run_pair(measure, number, seed) for number in range(args.pairs)]


def _save(args: argparse.Namespace, name: str, result: dict[str, object]) -> None:
    if args.json:
        write_json(args.json, result)
    if args.save:
        write_json(result_path(args.save, name, datetime.now(UTC)), result)


async def _peer(args: argparse.Namespace) -> int:
    if args.pairs < 1:
        raise BenchError("--pairs must be at least 1")
    config = peer.PeerConfig(
        ours=tuple(shlex.split(args.ours)) if args.ours else OURS,
        theirs=tuple(shlex.split(args.server)),
        model=args.model,
        folder=args.out,
        ours_more=tuple(shlex.split(args.ours_flags)),
        theirs_more=tuple(shlex.split(args.server_flags)),
        n_pairs=args.pairs,
        seed=_seed(args),
        n_threads=args.threads,
        n_ctx_slot=args.ctx_per_slot,
        keep=args.keep,
        api=args.api,
        timeout_s=args.timeout_s,
        options=_options(args),
    )
    results = []
    async for scenario, pairs in peer.compare_peers(config, peer.parse_scenarios(args.scenarios)):
        results.append((scenario, pairs))
        print(peer.to_markdown([(scenario, pairs)]).splitlines()[-1], flush=True)
        write_json(args.json or args.out / "peer.json", peer.to_json(config, results))
    (args.out / "peer.md").write_text(peer.to_markdown(results) + "\n")
    print(f"\n{peer.to_markdown(results)}")
    return 0


async def _engine(args: argparse.Namespace) -> int:
    config = offline.OfflineConfig(
        args.model,
        args.rows,
        args.steps,
        args.prompt_words,
        args.threads,
        args.ctx_per_row,
        args.kv_unified,
        args.sampled,
        _seed(args),
        args.json_schema.read_text() if args.json_schema else "",
    )
    figures = await asyncio.to_thread(offline.measure, config)
    print(short_table(f"engine@{args.rows}", figures, tuple(figures)))
    if args.json:
        write_json(args.json, {"workload": f"engine@{args.rows}", "model": args.model.name, **figures})
    return 0


async def _sim(args: argparse.Namespace) -> int:
    results = {}
    for target in args.itl_target_ms:
        config = simulate.SimConfig(
            args.trace, args.users, args.slots, args.ctx_per_slot, args.kv_unified, target, args.seed
        )
        results[f"{args.trace}@{args.users} itl {target:g}"] = simulate.simulate(config)
    shown = [figure for figure in (*SHOWN, "n_decode") if all(figure in figures for figures in results.values())]
    print(table(["trace", *shown], [[name, *(figures[f] for f in shown)] for name, figures in results.items()]))
    if args.json:
        write_json(args.json, results)
    return 0
