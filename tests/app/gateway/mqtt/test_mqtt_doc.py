"""docs/mqtt.md says what the protocol is, and its examples run as they stand."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from app.gateway.control import ControlMessage
from app.gateway.mqtt.protocol.cards import Metrics, NodeCard
from app.gateway.mqtt.protocol.replies import Accepted, DeltaReply, ErrorReply, Final
from app.gateway.mqtt.protocol.requests import ChatRequest
from app.gateway.mqtt.protocol.topics import PREFIX, Caller, Topics
from app.gateway.quotas import Quota
from tests.support.brokers import EXAMPLE, Mosquitto
from tests.support.mqtt_peer import peer
from tests.support.mqtt_serving import TIMEOUT, Serving, serving

DOCS = Path(__file__).parents[4] / "docs"
DOC = (DOCS / "mqtt.md").read_text(encoding="utf-8")
SCHEMA_TEXT = (DOCS / "mqtt.schema.json").read_text(encoding="utf-8")
SCHEMA = json.loads(SCHEMA_TEXT)

MESSAGES = re.findall(r"```json (\w+)\n(.*?)```", DOC, re.DOTALL)
EXAMPLES = dict(re.findall(r"```(?:sh|python)\n# example: (\S+)\n(.*?)```", DOC, re.DOTALL))
MODELS: dict[str, type[BaseModel]] = {"ControlMessage": ControlMessage} | {
    model.__name__: model
    for model in (ChatRequest, Accepted, DeltaReply, Final, ErrorReply, NodeCard, Metrics)
}


def rows(heading: str) -> list[list[str]]:
    """Cells of the rows of the table with this head."""
    table = DOC.split(f"\n{heading}\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]


def test_the_schema_is_what_the_command_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "app.gateway.mqtt.protocol"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (printed.stdout, printed.stderr) == (SCHEMA_TEXT, "")


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert MODELS.keys() <= SCHEMA["$defs"].keys()


def fits(name: str, message: object) -> bool:
    part = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    return bool(jsonschema.Draft202012Validator(part).is_valid(message))


@pytest.mark.parametrize(("name", "text"), MESSAGES, ids=[name for name, _ in MESSAGES])
def test_a_message_shown_is_one(name: str, text: str) -> None:
    message = MODELS[name].model_validate_json(text)
    # Of what the server sends all is shown; of requests what one may state.
    asked = name in ("ChatRequest", "ControlMessage")
    told = json.loads(message.model_dump_json(exclude_none=asked))
    shown = json.loads(text)
    assert fits(name, shown)
    assert {key: told[key] for key in shown} == shown if asked else told == shown


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "function", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": ["f"]},
        {"messages": [{"role": "user", "content": "x"}], "temprature": 1},
        {"messages": [{"role": "user", "content": "x"}], "session_id": "a/b"},
        {"messages": [{"role": "user", "content": "x"}], "stop": [1]},
        {"messages": [{"role": "user", "content": "x"}], "delta_qos": 2},
        {},
    ],
)
def test_the_schema_refuses_what_the_server_refuses(fields: dict[str, Any]) -> None:
    assert not fits("ChatRequest", fields)
    with pytest.raises(ValueError, match="validation error"):
        ChatRequest.model_validate_json(json.dumps(fields))


TOOLS = [
    json.loads(text)
    for text in re.findall(r"```json\n(.*?)```", DOC.split("### Tools")[1], re.DOTALL)
]


def test_the_tools_shown_are_taken_and_told() -> None:
    asked, told, answered = TOOLS
    for request in (asked, answered):
        assert fits("ChatRequest", request)
        ChatRequest.model_validate_json(json.dumps(request))
    (call,) = told["tool_calls"]
    assert fits("ReplyCall", call)
    assert answered["messages"][1]["tool_calls"] == [
        {"type": "function", "function": call["function"]}
    ]


FIELDS = {row[0].strip("`"): row[1:] for row in rows("| field | allowed | default | meaning |")}


def test_each_field_has_its_row() -> None:
    assert list(FIELDS) == list(ChatRequest.model_fields)


def test_each_topic_has_its_row() -> None:
    caller = Caller("{pool}", "{user}", "{client}", "{request_id}")
    topics = Topics("{pool}", "{node}")
    assert [row[0].strip("`") for row in rows("| topic | QoS, retained | from | what |")] == [
        caller.request_topic,
        caller.reply_topic,
        caller.cancel_topic,
        topics.status,
        topics.metrics,
        topics.knobs,
        topics.knobs_set,
        topics.knobs_result,
    ]


def test_the_access_list_is_that_of_the_example() -> None:
    shown = re.findall(rf"^pattern \w+ {PREFIX}/.*", DOC, re.MULTILINE)
    assert len(shown) == 4
    assert re.findall(r"^pattern .*", (EXAMPLE / "acl").read_text(), re.MULTILINE) == shown


# The examples, against a broker and a server.


class Watch:
    """A command that runs on; what it prints."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._limit = threading.Timer(TIMEOUT, self._process.kill)
        self._limit.start()

    def line(self, part: str) -> str:
        """The next line with this in it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if part in line:
                return line
        raise AssertionError(f"it ended before a line with {part!r}")

    def close(self) -> None:
        self._limit.cancel()
        self._process.terminate()
        self._process.communicate()


class Shell:
    """Runs examples as they stand, but for the port of the broker."""

    def __init__(self, port: int) -> None:
        self._port = port

    def command(self, name: str) -> list[str]:
        script = EXAMPLES[name]
        assert " -h localhost " in script
        script = script.replace(" -h localhost ", f" -h localhost -p {self._port} ")
        return ["bash", "-euc", script]

    def run(self, name: str) -> list[dict[str, Any]]:
        """The printed JSON objects, one a line."""
        done = subprocess.run(
            self.command(name), capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def shell(broker: Mosquitto) -> Shell:
    return Shell(broker.port)


@pytest.mark.parametrize("name", ["ask", "ask-311"])
def test_ask(served: Serving, shell: Shell, name: str) -> None:
    with served.running():
        [final] = shell.run(name)
    assert (final["type"], final["attempt"]) == ("final", 1)
    assert final["text"] == "You said: Why is the sky blue?"
    [submission] = served.engine.submissions
    assert submission.origin.user == "alice"


def test_session(served: Serving, shell: Shell) -> None:
    with served.running():
        first, second = shell.run("session")
    assert (first["type"], second["type"]) == ("final", "final")
    _, submission = served.engine.submissions
    assert [message.content for message in submission.messages] == [
        "Be brief.",
        "My name is Anna.",
        "You said: My name is Anna.",
        "What is my name?",
    ]


def test_watch_publish_and_cancel(served: Serving, shell: Shell) -> None:
    watch = Watch(["bash", "-euc", f"exec {shell.command('watch')[2].strip()}"])
    try:
        assert '"state":"online"' in watch.line("llm/v1/default/node/box/status")
        assert shell.run("publish") == []
        assert '"type":"accepted"' in watch.line("llm/v1/default/rep/alice/shell/q3 ")
        served.accepted(1)
        for _ in range(3):
            served.engine.advance()
        assert '"type":"delta"' in watch.line("llm/v1/default/rep/alice/shell/q3 ")
        assert shell.run("cancel") == []
        served.until(lambda: not served.gateway.view().running)
        assert '"code":499' in watch.line('"type":"error"')
    finally:
        watch.close()
    served.check_idle()


def test_knobs(served: Serving, shell: Shell) -> None:
    with served.running():
        [answer] = shell.run("knobs")
    assert (answer["v"], answer["ok"]) == (1, True)
    assert answer["knobs"]["order"]["requested"] == "fair"
    assert answer["history"][-1]["who"] == "anna"


def test_the_client_prints_the_reply_as_it_comes(
    served: Serving, broker: Mosquitto, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask() -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT):
            return await client()("Hello there", port=broker.port)

    with served.running():
        final = asyncio.run(ask())
    assert final["text"] == "You said: Hello there"
    assert capsys.readouterr().out == "You said: Hello there\n"


def test_the_client_asks_again_where_it_is_told_to(broker: Mosquitto, tmp_path: Path) -> None:
    with (
        serving(broker.port, tmp_path, quota=Quota(requests=1)) as served,
        peer(broker.port) as other,
    ):
        other.ask("1")  # as the same user
        served.accepted(1)

        async def ask() -> dict[str, Any]:
            async with asyncio.timeout(TIMEOUT):
                task = asyncio.create_task(client()("Hello there", port=broker.port))
                while not served.gateway.view().rejected:
                    await asyncio.sleep(0.005)
                with served.running():
                    return await task

        assert asyncio.run(ask())["text"] == "You said: Hello there"
        assert [r.code for r in served.gateway.view().rejected] == [429]


def client() -> Any:
    """`ask` of the program."""
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLES["client.py"], "client.py", "exec"), namespace)
    return namespace["ask"]
