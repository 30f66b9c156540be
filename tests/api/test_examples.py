"""docs/api.md: it lists every route, and each of its examples works on a server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.conftest import simulated
from tests.api.live import client

from corral.api.app import routes_of
from corral.api.openapi import ROUTES
from corral.api.schemas.defaults import Defaults
from corral.config import ServerConfig
from corral.tasks import Sampling

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "api.md"
_BLOCK = re.compile(r"^```(http|json)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass
class Example:
    method: str
    path: str
    headers: dict[str, str]
    body: str
    reply: object = field(default=None)


def examples(page: Path = PAGE) -> list[Example]:
    """In the order of the page, each with the reply that is shown behind it, if any."""
    found: list[Example] = []
    for language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "http":
            found.append(_request(text))
        else:
            found[-1].reply = json.loads(text)
    return found


def _request(text: str) -> Example:
    head, _, body = text.partition("\n\n")
    first, *rest = head.strip().splitlines()
    method, path = first.split(" ")
    return Example(method, path, dict(line.split(": ") for line in rest), body.strip())


def _headed_routes() -> set[tuple[str, str]]:
    headings = re.findall(r"^### ([A-Z]+) (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {(method, path) for method, paths in headings for path in paths.split(", ")}


def _served_routes() -> set[tuple[str, str]]:
    """All that the application answers; HEAD goes with GET."""
    routes: Any = routes_of("").routes
    served = {(method, route.path_format) for route in routes for method in route.methods}
    heads = {(method, path) for method, path in served if method == "HEAD"}
    assert {("GET", path) for _, path in heads} <= served
    return served - heads


def test_the_page_lists_every_route_of_the_application_and_no_other() -> None:
    assert _headed_routes() == _served_routes()
    assert {(route.method, path) for route in ROUTES for path in route.paths} < _served_routes()


def test_every_route_has_an_example() -> None:
    sent = [(example.method, example.path.partition("?")[0]) for example in examples()]
    headings = re.findall(r"^### ([A-Z]+) (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for method, paths in headings:
        pattern = re.sub(r"\{\w+\}", "[^/]+", paths.split(", ")[0])
        assert any(method == sent_method and re.fullmatch(pattern, path) for sent_method, path in sent), paths


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("slots")
    server = ServerConfig(
        port=0,
        alias=("m",),
        endpoint_metrics=True,
        endpoint_props=True,
        slot_save_path=folder,
        responses_store=folder / "responses.db",
    )
    with simulated(n_slots=1) as runtime, client(runtime, server, Defaults(sampling=Sampling(seed=7))) as served:
        yield served


def test_every_example_works(http: httpx.Client) -> None:
    last: dict[str, object] = {}
    for example in examples():
        path, body = _filled(example.path, last), _filled(example.body, last)
        reply = http.request(example.method, path, headers=example.headers, content=body)
        assert reply.is_success, f"{example.method} {path}: {reply.text}"
        if example.reply is not None:
            compare(example.reply, reply.json(), f"{example.method} {path}")
        if reply.headers.get("content-type", "").startswith("application/json") and isinstance(reply.json(), dict):
            last = reply.json()


def _filled(text: str, last: dict[str, object]) -> str:
    return re.sub(r"\$(\w+)", lambda match: str(last[match[1]]), text)


def compare(shown: object, got: object, where: str) -> None:
    """Every member that is shown is there, and of the same type."""
    numbers = isinstance(shown, int | float) and isinstance(got, int | float)
    assert numbers or type(shown) is type(got) or shown is None or got is None, f"{where}: {shown!r} but {got!r}"
    if isinstance(shown, dict) and isinstance(got, dict):
        for key, value in shown.items():
            assert key in got, f"{where}: no {key}"
            compare(value, got[key], f"{where}: {key}")
    if isinstance(shown, list) and isinstance(got, list) and shown:
        assert got, f"{where}: empty"
        compare(shown[0], got[0], where)
