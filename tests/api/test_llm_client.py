"""The unmodified ``llm`` works, set up with a model in ``extra-openai-models.yaml``: library and command."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from click.testing import CliRunner
from tests.api.canned import CALL, SERVER, TEMPLATE, CannedEngine, canned_runtime, says
from tests.api.conftest import SimServer
from tests.api.live import client

from corral.config import ApiKey
from corral.events import Event, StopReason
from corral.tasks import Task

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

SCHEMA: Any = {
    "type": "object",
    "properties": {"name": {"enum": ["llama", "alpaca"]}, "legs": {"enum": [2, 4]}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}
KEY = "sesame"


def models(base_url: httpx.URL) -> list[dict[str, Any]]:
    """The same server through chat, Responses and text completions; JSON is YAML."""
    common = {"model_name": "any", "api_base": f"{str(base_url).rstrip('/')}/v1", "api_key_name": "corral"}
    able = {"supports_schema": True, "supports_tools": True}
    return [
        {"model_id": "chat", **common, **able},
        {"model_id": "responses", "responses": True, **common, **able},
        {"model_id": "text", "completion": True, **common},
    ]


@pytest.fixture(scope="module")
def server(engine: CannedEngine) -> Iterator[httpx.Client]:
    with client(canned_runtime(engine), replace(SERVER, chat_template=TEMPLATE, api_keys=(ApiKey(KEY),))) as http:
        yield http


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of settings. Plugins that happen to be installed do not count."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("LLM_LOAD_PLUGINS", "")
    (tmp_path / "keys.json").write_text(json.dumps({"corral": KEY}))
    yield tmp_path
    gc.collect()  # it leaves its connections open


@pytest.fixture
def llm(engine: CannedEngine, server: httpx.Client, home: Path) -> ModuleType:
    import llm

    (home / "extra-openai-models.yaml").write_text(json.dumps(models(server.base_url)))
    engine.start_again()
    return llm


@pytest.mark.parametrize("name", ["chat", "responses", "text"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt(llm: ModuleType, engine: CannedEngine, name: str, stream: bool) -> None:
    engine.script = says("Hello é")
    reply = llm.get_model(name).prompt("Who?", stream=stream)
    pieces = list(reply)
    assert "".join(pieces) == "Hello é" == reply.text()
    assert len(pieces) >= 6 if stream else len(pieces) == 1
    assert "Who?" in engine.last_prompt
    if name != "text":
        assert (reply.usage().input, reply.usage().output) == (len(engine.tasks[0].prompt), len("Hello é".encode()))


@pytest.mark.parametrize("name", ["chat", "responses"])
def test_a_conversation_with_a_system_prompt_and_options(llm: ModuleType, engine: CannedEngine, name: str) -> None:
    talk = llm.get_model(name).conversation()
    assert talk.prompt("one", system="Be brief.").text() == "hi"
    assert talk.prompt("two", temperature=0.25, max_tokens=9).text() == "hi"
    told = engine.last_prompt
    assert told.index("Be brief.") < told.index("one") < told.index("hi") < told.index("two")
    assert (engine.tasks[-1].sampling.temperature, engine.tasks[-1].limits.n_predict) == (0.25, 9)


def calls_then_says(text: str) -> Any:
    """A call for a city until the prompt holds a result."""

    def script(task: Task) -> list[Event]:
        is_answered = b"sunny" in bytes(token for token in task.prompt if token < 256)
        return says(text if is_answered else f"<think>Hm.</think>I look.\n{CALL}")(task)

    return script


@pytest.mark.parametrize("name", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_and_their_results_come_back(
    llm: ModuleType, engine: CannedEngine, name: str, stream: bool
) -> None:
    asked: list[str] = []

    def weather(city: str) -> str:
        """The weather"""
        asked.append(city)
        return f"sunny in {city}"

    engine.script = calls_then_says("Go out.")
    chain = llm.get_model(name).chain("How is Rome?", tools=[weather], stream=stream)
    assert chain.text().endswith("Go out.")
    assert asked == ["Rome"]
    assert "sunny in Rome" in engine.last_prompt and '"name": "weather"' in engine.last_prompt


@pytest.mark.parametrize("name", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_holds_the_text(serve_sim: SimServer, llm: ModuleType, home: Path, name: str, stream: bool) -> None:
    http = serve_sim()
    (home / "extra-openai-models.yaml").write_text(json.dumps(models(http.base_url)))
    reply = llm.get_model(name).prompt("An animal", schema=SCHEMA, stream=stream)
    jsonschema.validate(json.loads(reply.text()), SCHEMA)


def test_a_cut_answer_and_an_error(llm: ModuleType, engine: CannedEngine) -> None:
    engine.script = says("Hel", StopReason.LIMIT)
    reply = llm.get_model("chat").prompt("x", stream=False)
    assert reply.text() == "Hel" and reply.response_json["choices"][0]["finish_reason"] == "length"
    with pytest.raises(openai.BadRequestError, match="99999 is not in the vocabulary"):
        llm.get_model("chat").prompt("x", logit_bias={"99999": 1}, stream=False).text()


def command(*arguments: str) -> str:
    """What the command prints."""
    from llm.cli import cli

    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("llm")
def test_the_command_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "chat", "-s", "Be brief.", "Who?"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout == "hi\n"


@pytest.mark.usefixtures("llm")
def test_the_command_streams_and_goes_on(engine: CannedEngine) -> None:
    assert command("-m", "responses", "--no-stream", "Who?") == "hi\n"
    assert command("-c", "And you?") == "hi\n"
    assert engine.last_prompt.count("Who?") == 1 and "And you?" in engine.last_prompt


@pytest.mark.usefixtures("llm")
def test_the_command_calls_tools(engine: CannedEngine) -> None:
    engine.script = calls_then_says("Go out.")
    function = "def weather(city: str) -> str:\n    'The weather'\n    return 'sunny in ' + city"
    assert command("-m", "chat", "How is Rome?", "--functions", function).endswith("Go out.\n")


def test_the_command_holds_to_a_schema_and_lists_models(serve_sim: SimServer, home: Path) -> None:
    http = serve_sim()
    (home / "extra-openai-models.yaml").write_text(json.dumps(models(http.base_url)))
    shown = json.loads(command("-m", "chat", "An animal", "--schema", json.dumps(SCHEMA)))
    jsonschema.validate(shown, SCHEMA)
    assert "sim" in command("openai", "endpoint", f"{str(http.base_url).rstrip('/')}/v1", "--models")
