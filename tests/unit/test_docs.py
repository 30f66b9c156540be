"""The documentation names only what exists: links, files, tests; and each mechanism of the mission has its test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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
