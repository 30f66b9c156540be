"""What comes before the routes: loading, keys, cross-origin headers, prefix, unknown paths."""

from __future__ import annotations

import httpx
import pytest
from tests.api.canned import SERVER, CannedEngine, canned_runtime, says
from tests.api.live import client, listening

from corral.api.app import create_app
from corral.api.openapi import ROUTES
from corral.api.schemas.defaults import Defaults
from corral.config import ApiKey, ServerConfig


def test_until_the_model_is_loaded_every_path_is_503() -> None:
    server = ServerConfig(port=0, api_keys=(ApiKey("k"),))
    app = create_app(None, server, Defaults())
    with listening(app, server) as url, httpx.Client(base_url=url) as http:
        for path in ("/health", "/v1/models", "/nowhere"):
            response = http.get(path)
            assert response.status_code == 503, "before the key check"
            assert response.json()["error"] == {
                "message": "Loading model",
                "type": "unavailable_error",
                "code": 503,
            }
        assert http.options("/v1/models").status_code == 200
        app.ready(canned_runtime(CannedEngine(says("hi"))))
        assert http.get("/health").status_code == 200
        assert http.get("/v1/models").status_code == 401


def test_without_a_key_only_the_state_of_health_is_told() -> None:
    server = ServerConfig(port=0, api_keys=(ApiKey("k"),))
    with client(canned_runtime(CannedEngine(says("hi"))), server) as http:
        paths = {(route.method, path) for route in ROUTES for path in route.paths}
        paths |= {("GET", path) for path in ("/docs", "/openapi.json", "/nowhere")}
        open_to_all = {(method, path) for method, path in paths if http.request(method, path).status_code != 401}
    assert open_to_all == {("GET", "/health"), ("GET", "/v1/health")}


def test_unknown_paths_and_wrong_verbs_are_the_same_404() -> None:
    with client(canned_runtime(CannedEngine(says("hi"))), SERVER) as http:
        answers = [http.get("/nowhere"), http.get("/completion"), http.post("/health"), http.delete("/slots")]
        assert {answer.status_code for answer in answers} == {404}
        body = {"message": "File Not Found", "type": "not_found_error", "code": 404}
        assert all(answer.json()["error"] == body for answer in answers)


def test_api_prefix() -> None:
    server = ServerConfig(port=0, api_prefix="/llm", api_keys=(ApiKey("k"),))
    with client(canned_runtime(CannedEngine(says("hi"))), server) as http:
        assert http.get("/llm/health").status_code == 200
        assert http.get("/health").status_code == 401
        assert http.get("/health", headers={"X-Api-Key": "k"}).status_code == 404


@pytest.mark.parametrize(
    ("origins", "credentials", "allowed"),
    [
        ("*", True, "https://a.example"),
        ("*", False, "*"),
        ("https://b.example", True, "https://b.example"),
        ("https://b.example, https://a.example", True, "https://a.example"),
        ("https://b.example,https://c.example", True, None),
    ],
)
def test_origins(origins: str, credentials: bool, allowed: str | None) -> None:
    server = ServerConfig(port=0, cors_origins=origins, cors_credentials=credentials)
    with client(canned_runtime(CannedEngine(says("hi"))), server) as http:
        answer = http.get("/health", headers={"Origin": "https://a.example"})
        assert answer.headers.get("access-control-allow-origin") == allowed


def test_each_key_has_prefixes_of_its_own() -> None:
    engine = CannedEngine(says("hi"))
    server = ServerConfig(port=0, api_keys=(ApiKey("a"), ApiKey("b")))
    with client(canned_runtime(engine), server) as http:
        for key in ("a", "b", "a"):
            http.post("/completion", json={"prompt": "x"}, headers={"X-Api-Key": key})
        first, second, third = (task.cache_key for task in engine.tasks)
        assert first == third != second
        assert first != "a", "the key itself is not kept"


def test_n5_a_request_has_the_weight_and_priority_of_its_key() -> None:
    engine = CannedEngine(says("hi"))
    server = ServerConfig(port=0, api_keys=(ApiKey("ann", 3.0, 2), ApiKey("bob")))
    bodies: dict[str, dict[str, object]] = {
        "/completion": {"prompt": "x"},
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    }
    with client(canned_runtime(engine), server) as http:
        for path, body in bodies.items():
            http.post(path, json=body, headers={"X-Api-Key": "ann"})
            http.post(path, json={**body, "priority": -7, "n": 1}, headers={"X-Api-Key": "ann"})
            http.post(path, json={**body, "priority": None}, headers={"X-Api-Key": "bob"})
    assert [(t.weight, t.priority) for t in engine.tasks] == 3 * [(3.0, 2), (3.0, -7), (1.0, 0)]
    assert len({t.tenant for t in engine.tasks}) == 2
    assert not {"ann", "bob"} & {t.tenant for t in engine.tasks}, "the key itself is not kept"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (101, "Field 'priority': Value must be between -100 <= value <= 100, but got 101"),
        (-101, "Field 'priority': Value must be between -100 <= value <= 100, but got -101"),
        ("high", "Field 'priority': type must be number, but is string"),
        (True, "Field 'priority': type must be number, but is boolean"),
    ],
)
def test_n5_a_priority_out_of_range_is_a_400(value: object, message: str) -> None:
    with client(canned_runtime(CannedEngine(says("hi"))), SERVER) as http:
        answer = http.post("/completion", json={"prompt": "x", "priority": value})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


def test_n7_keys_share_prefixes_if_told_to_and_salts_still_part_them() -> None:
    engine = CannedEngine(says("hi"))
    server = ServerConfig(port=0, api_keys=(ApiKey("a"), ApiKey("b")), shared_cache=True)
    with client(canned_runtime(engine), server) as http:
        for key, salt in (("a", ""), ("b", ""), ("a", "s"), ("b", "s")):
            http.post("/completion", json={"prompt": "x", "cache_salt": salt}, headers={"X-Api-Key": key})
    assert [task.cache_key for task in engine.tasks] == ["", "", ":s", ":s"]
    assert engine.tasks[0].tenant != engine.tasks[1].tenant, "shares are still those of each key"


def test_head_is_get_without_the_body() -> None:
    with client(canned_runtime(CannedEngine(says("hi"))), SERVER) as http:
        answer = http.head("/health")
        assert (answer.status_code, answer.text) == (200, "")
        assert http.head("/completion").status_code == 404
