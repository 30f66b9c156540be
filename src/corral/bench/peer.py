"""Our server and another one, both started here and measured in alternation, scenario by scenario."""

from __future__ import annotations

import itertools
import os
import platform
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from corral.bench.compare import Measure, Pair, Side, ratios, rows, run_pair
from corral.bench.load import BenchError, Client, connect
from corral.bench.registry import WORKLOADS, Workload
from corral.bench.report import Figures, markdown
from corral.bench.servers import serve
from corral.bench.workloads import Load, Options

SCENARIOS = "decode@4,decode@16,sampled@4,aged@4,shared@4,shared@16,turns@8,mixed@2,schema@4,busy@1"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload, its users, and the slots of the servers."""

    workload: Workload
    users: int
    n_slots: int

    @property
    def name(self) -> str:
        return f"{self.workload.name}@{self.users}"


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """``ours`` and ``theirs`` are commands that take llama-server's flags; ``ours_more`` and ``theirs_more`` end them.

    ``n_ctx_slot``: tokens of context for each slot. ``keep``: scenarios in a row that need the same number of slots
    share one start of the servers. ``api``: over which wire, if not the workload's own.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    model: Path
    folder: Path
    ours_more: tuple[str, ...] = ()
    theirs_more: tuple[str, ...] = ()
    n_pairs: int = 3
    seed: int = 1
    n_threads: int = 2
    n_ctx_slot: int = 2048
    keep: bool = False
    api: str | None = None
    timeout_s: float = 600.0
    options: Options = field(default_factory=Options)


def parse_scenarios(text: str) -> list[Scenario]:
    """``NAME@USERS`` or ``NAME@USERS/SLOTS``, separated by commas. Raises BenchError."""
    return [_scenario(part.strip()) for part in text.split(",") if part.strip()]


def _scenario(text: str) -> Scenario:
    name, _, numbers = text.partition("@")
    users, _, slots = numbers.partition("/")
    if name not in WORKLOADS:
        raise BenchError(f"no workload {name!r}; there are {', '.join(WORKLOADS)}")
    try:
        n_users, n_slots = int(users or 4), int(slots or 0)
    except ValueError:
        raise BenchError(f"{text!r} is not NAME@USERS or NAME@USERS/SLOTS") from None
    if n_users < 1 or n_slots < 0:
        raise BenchError(f"{text!r}: there must be users")
    return Scenario(WORKLOADS[name], n_users, n_slots or WORKLOADS[name].n_slots(n_users))


def sittings(scenarios: Sequence[Scenario], n_pairs: int, keep: bool) -> Iterator[list[tuple[Scenario, int]]]:
    """(scenario, number of the pair) to be run between one start of the servers and its end.

    Pairs with even and with odd numbers have a start each: whichever server is started first is slower all its life.
    """
    by_slots = itertools.groupby(scenarios, lambda scenario: (scenario.n_slots, scenario.workload.fresh))
    for group in [list(group) for _, group in by_slots] if keep else [[scenario] for scenario in scenarios]:
        if group[0].workload.fresh:
            yield from ([(scenario, number)] for scenario in group for number in range(n_pairs))
            continue
        for first in range(min(2, n_pairs)):
            yield [(scenario, number) for scenario in group for number in range(first, n_pairs, 2)]


async def compare_peers(
    config: PeerConfig, scenarios: Sequence[Scenario]
) -> AsyncIterator[tuple[Scenario, list[Pair]]]:
    """Measure; gives each scenario when its last pair is done. Raises BenchError."""
    config.folder.mkdir(parents=True, exist_ok=True)
    found: defaultdict[int, list[Pair]] = defaultdict(list)
    for runs in sittings(scenarios, config.n_pairs, config.keep):
        first: Side = "b" if runs[0][1] % 2 else "a"
        async with _both(config, runs[0][0].n_slots, first) as clients:
            for scenario, number in runs:
                pairs = found[id(scenario)]
                pairs.append(await run_pair(_measure(clients, scenario, config), number, config.seed))
                if len(pairs) == config.n_pairs:
                    yield scenario, pairs


@asynccontextmanager
async def _both(config: PeerConfig, n_slots: int, first: Side) -> AsyncIterator[dict[Side, Client]]:
    """Both servers, ``first`` started before the other."""
    flags = ["-m", str(config.model), "-np", str(n_slots), "-c", str(config.n_ctx_slot * n_slots)]
    flags += ["-t", str(config.n_threads), "-tb", str(config.n_threads)]
    commands: dict[Side, list[str]] = {
        "a": [*config.ours, *flags, *config.ours_more],
        "b": [*config.theirs, *flags, *config.theirs_more],
    }
    async with AsyncExitStack() as stack:
        clients: dict[Side, Client] = {}
        for side in sorted(commands, key=lambda side: side != first):
            command = commands[side]
            url = await stack.enter_async_context(serve(command, config.folder / f"server-{side}.log"))
            clients[side] = await stack.enter_async_context(connect(url, timeout_s=config.timeout_s))
            await clients[side].stream("Once upon a time", 8)  # Pages of the model are read in at the first use.
        yield clients


def _measure(clients: dict[Side, Client], scenario: Scenario, config: PeerConfig) -> Measure:
    async def measure(side: Side, seed: int) -> Figures:
        client = clients[side].over(config.api or scenario.workload.api)
        figures = await scenario.workload.run(Load(client, scenario.users, seed, config.options))
        await client.settle()
        return figures

    return measure


def to_json(config: PeerConfig, results: Sequence[tuple[Scenario, list[Pair]]]) -> dict[str, object]:
    """Everything needed to repeat and to check: the machine, the commands, every run and the ratios."""
    return {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg(),
        },
        "a": [*config.ours, *config.ours_more],
        "b": [*config.theirs, *config.theirs_more],
        "model": config.model.name,
        "threads": config.n_threads,
        "ctx_per_slot": config.n_ctx_slot,
        "scenarios": [
            {"scenario": scenario.name, "slots": scenario.n_slots, "pairs": pairs, "ratios": ratios(pairs)}
            for scenario, pairs in results
        ],
    }


def to_markdown(results: Sequence[tuple[Scenario, list[Pair]]]) -> str:
    """A table with a row for each figure that counts."""
    headings = ["scenario", "slots", "figure", "corral", "peer", "corral / peer", "min..max", "pairs"]
    body = [
        [scenario.name, scenario.n_slots, *row, len(pairs)]
        for scenario, pairs in results
        for row in rows(pairs, scenario.workload.headline)
    ]
    return markdown(headings, body)
