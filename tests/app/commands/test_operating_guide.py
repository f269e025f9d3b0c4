"""docs/operating.md names all that can be set and all that the program can end with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from app.commands.cli import app
from app.gateway.http.settings import HttpSettings
from app.gateway.mqtt.settings import MqttSettings
from app.process.exits import ExitCode
from app.settings.settings import NAMES, SAMPLING_NAMES, TABLES
from engine.api.knobs import KNOB_SPECS
from engine.simulation.devices import DEVICES
from engine.simulation.shapes import SHAPES

GUIDE = (Path(__file__).parents[3] / "docs" / "operating.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[str]:
    """The first cells of the first table below a heading."""
    table = re.split(r"\|---[-|]*\|\n", GUIDE.split(heading)[1])[1].split("\n\n")[0]
    return [re.split(r"(?<!\\)\|", row)[1].strip(" `") for row in table.splitlines()]


def options(*command: str) -> list[str]:
    found = typer.main.get_command(app)
    for name in command:
        assert isinstance(found, typer.core.TyperGroup)
        found = found.commands[name]
    return [o for p in found.params if p.name != "_version" for o in p.opts if o[:2] == "--"]


def test_each_setting_has_its_row() -> None:
    for name in (*NAMES, *SAMPLING_NAMES):
        shown = f"[{name}]" if name in TABLES else name
        assert f"\n| `{shown}` |" in GUIDE, name


def test_tables_have_the_settings_and_knobs_that_there_are() -> None:
    shown = {"quota": "[mqtt.quota]", "users": "[mqtt.users.NAME]"}
    assert {*rows("### MQTT\n")} == {shown.get(name, name) for name in MqttSettings.model_fields}
    shown = {"quota": "[http.quota]", "keys": "[http.keys.NAME]"}
    assert {*rows("### HTTP\n")} == {shown.get(name, name) for name in HttpSettings.model_fields}
    knobs = GUIDE.split("| knob | meaning |")[1].split("\n\n")[0].splitlines()[2:]
    assert [row.split("|")[1].strip(" `") for row in knobs] == [spec.name for spec in KNOB_SPECS]


def test_the_devices_and_the_shapes_are_those_of_the_simulator() -> None:
    text = " ".join(GUIDE.split("### The simulator")[1].split("\n### ")[0].split())
    for begin, names in (("`--device` is one of ", DEVICES), ("weights: one of ", SHAPES)):
        listed = text.split(begin)[1].split("`. ")[0].split("`. -")[0] + "`"
        assert re.findall(r"`([^`]+)`", listed) == list(names)


@pytest.mark.parametrize(
    "command", ["serve", "ask", "bench", "simulate", "models", "doctor", "demo"]
)
def test_each_command_has_its_row(command: str) -> None:
    assert f"\n| `tui {command}` |" in GUIDE


@pytest.mark.parametrize("command", [(), ("serve",), ("simulate",), ("ask",)])
def test_each_flag_is_in_it(command: tuple[str, ...]) -> None:
    assert [one for one in options(*command) if not re.search(f"[`(]{one}", GUIDE)] == []


@pytest.mark.parametrize("code", ExitCode, ids=lambda code: code.name)
def test_each_exit_code_has_its_row(code: ExitCode) -> None:
    assert f"\n| {code.value} |" in GUIDE
