"""The documentation names only what exists: links, files, tests; and each mechanism of the mission has its test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.api.openapi import ROUTES
from corral.cli.absent import is_absent

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MISSION = ROOT / "docs" / "mission.md"

ROWS = {f"S{i}" for i in range(1, 31)} | {f"N{i}" for i in range(1, 15)} | {"Orca", "vLLM", "SGLang"}

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:src|tests|docs|scripts)/[\w./-]+)`")
_TEST = re.compile(r"`(tests/[\w./-]+\.py)::(\w+)`")


def _prose(page: Path) -> str:
    """The page without fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """Names of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(_prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    missing = [name for name in _PATH.findall(_prose(page)) if not (ROOT / name).exists()]
    assert not missing


LLAMA_SERVERS = """
/health /v1/health /metrics /props /models /v1/models /completion /completions /v1/completions /chat/completions
/v1/chat/completions /v1/chat/completions/control /responses /v1/responses /audio/transcriptions
/v1/audio/transcriptions /v1/messages /infill /embedding /embeddings /v1/embeddings /rerank /reranking /v1/rerank
/v1/reranking /v1/systemone /tokenize /detokenize /apply-template /chat/completions/input_tokens
/v1/chat/completions/input_tokens /responses/input_tokens /v1/responses/input_tokens /v1/messages/count_tokens
/lora-adapters /slots /slots/{id_slot} /v1/stream /v1/streams/lookup /cors-proxy /tools /
"""


def test_the_differences_name_exactly_the_routes_that_are_our_own() -> None:
    page = _prose(ROOT / "docs" / "differences.md").split("\n## Routes\n\n")[1].split("\n\n")[0]
    own = {f"{route.method} {path}" for route in ROUTES for path in route.paths if path not in LLAMA_SERVERS.split()}
    assert set(re.findall(r"`([A-Z]+ /[^`]*)`", page)) == own


ABSENT = {
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "infill": "/infill",
    "images": "--mmproj",
    "audio": "/v1/audio/transcriptions",
    "speculative decoding": "--spec-type",
    "several models": "--models-dir",
    "unloading when idle": "--sleep-idle-seconds",
    "downloads": "--hf-repo",
    "tools and mcp servers": "/tools",
    "a chat page": "/",
}
"""What the README says is not there, and the route or flag that would bring it."""


def test_what_the_readme_says_is_missing_is_missing_and_all_of_it_is_said() -> None:
    section = " ".join((ROOT / "README.md").read_text().split("\n## Not there yet\n")[1].split(". Flags")[0].split())
    named = {name.strip().lower() for name in section.split(",")}
    paths = {path for route in ROUTES for path in route.paths}
    missing = {n for n, by in ABSENT.items() if (is_absent(by) if by.startswith("--") else by not in paths)}
    assert named == missing


def _table(title: str) -> Iterator[list[str]]:
    """Cells of each row of the tables under a heading of the mission."""
    section = _prose(MISSION).split(f"\n## {title}\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] != "row" and not cells[0].startswith("---"):
            yield cells


def _names(cell: str) -> list[str]:
    return [name.strip() for name in cell.split(",")]


def test_each_mechanism_of_the_mission_stands_in_one_table() -> None:
    named = [name for title in ("Works", "Not yet") for cells in _table(title) for name in _names(cells[0])]
    assert sorted(named) == sorted(ROWS)


def test_each_mechanism_that_works_has_a_room_and_a_test() -> None:
    for cells in _table("Works"):
        assert _PATH.findall(cells[2]), f"{cells[0]} has no room"
        assert _TEST.findall(cells[3]), f"{cells[0]} has no test"


def test_the_tests_of_the_mission_exist() -> None:
    missing = [
        f"{file}::{name}"
        for file, name in _TEST.findall(MISSION.read_text(encoding="utf-8"))
        if not _defines(ROOT / file, name)
    ]
    assert not missing


def _defines(file: Path, name: str) -> bool:
    pattern = rf"^\s*(?:async def|def|class) {name}\b|^{name} = "
    return file.is_file() and bool(re.search(pattern, file.read_text(encoding="utf-8"), flags=re.MULTILINE))
