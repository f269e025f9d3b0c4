"""docs/operating.md names all that can be set and all that the program can end with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from app.commands.cli import app
from app.gateway.http.settings import HttpSettings
from app.gateway.mqtt.settings import MqttSettings
from app.process.exits import ExitCode
from app.settings.settings import NAMES, SAMPLING_NAMES, TABLES
from engine.api.config import EngineConfig
from engine.api.knob_spec import KnobSpec
from engine.api.knobs import KNOB_SPECS
from engine.api.sampling import SAMPLING_SPECS
from engine.api.sampling_spec import NumberRange
from engine.scheduling.composer import Policy
from engine.scheduling.orders import ORDERS
from engine.scheduling.policies import POLICIES
from engine.scheduling.queue import WaitingQueue
from engine.simulation.devices import DEVICES
from engine.simulation.shapes import SHAPES

GUIDE = (Path(__file__).parents[3] / "docs" / "operating.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*NAMES, *SAMPLING_NAMES])
def test_each_setting_has_its_row(name: str) -> None:
    shown = f"[{name}]" if name in TABLES else name
    assert f"\n| `{shown}` |" in GUIDE


@pytest.mark.parametrize("name", SAMPLING_NAMES)
def test_each_sampling_parameter_has_its_range_and_its_meaning(name: str) -> None:
    spec = SAMPLING_SPECS[name]
    ((allowed, meaning),) = re.findall(rf"\n\| `{name}` \| [^|]*\| ([^|]*) \| (.*) \|", GUIDE)
    assert meaning == spec.meaning
    if isinstance(spec.allowed, NumberRange):
        assert allowed == _span(spec.allowed, spec.default)


def _span(allowed: NumberRange, default: object) -> str:
    """A range as the table has it; integers beyond 32 bits have no limit for users."""
    if allowed.high >= 2**31 - 1:
        instead = "none" if default is None else default
        return f"{allowed.low} and up" + f"; -1 is {instead}" * allowed.of_minus_one
    return (
        f"above {allowed.low:g}, to {allowed.high:g}"
        if allowed.above
        else f"{allowed.low:g} to {allowed.high:g}"
    )


MQTT = GUIDE.split("### Chat over MQTT")[1].split("\n### ")[0]
SIMULATOR = GUIDE.split("### The simulator")[1].split("\n### ")[0]


def test_it_lists_the_devices_and_the_shapes() -> None:
    text = " ".join(SIMULATOR.split())
    for begin, names in (("`--device` is one of ", DEVICES), ("weights: one of ", SHAPES)):
        listed = text.split(begin)[1].split("`. ")[0].split("`. -")[0] + "`"
        assert re.findall(r"`([^`]+)`", listed) == list(names)


@pytest.mark.parametrize(
    "command", ["serve", "ask", "bench", "simulate", "models", "doctor", "demo"]
)
def test_each_command_has_its_row(command: str) -> None:
    assert f"\n| `tui {command}` |" in GUIDE


@pytest.mark.parametrize(
    ("command", "text", "count"), [("simulate", SIMULATOR, 10), ("ask", MQTT, 15)]
)
def test_each_flag_of_a_command_is_in_its_section(command: str, text: str, count: int) -> None:
    options = _options(command)
    assert len(options) > count
    common = ("--log-level", "--config")  # of every command
    assert [o for o in options if o not in common and not re.search(f"[`(]{o}", text)] == []


def test_each_flag_of_the_server_is_in_it() -> None:
    options = _options("serve")
    assert len(options) > 15
    assert [option for option in options if f"`{option}" not in GUIDE] == []


def _options(command: str) -> list[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return [o for p in group.commands[command].params for o in p.opts if o[:2] == "--"]


SHOWN = {"quota": "[mqtt.quota]", "users": "[mqtt.users.NAME]"}
MQTT_ROWS = {
    name.strip(" `"): [cell.strip() for cell in cells]
    for name, *cells in (
        row.strip("|").split("|")
        for row in GUIDE.split("### MQTT\n")[1].split("|---|---|---|---|\n")[1].splitlines()
        if row.startswith("|")
    )
}


@pytest.mark.parametrize("name", MqttSettings.model_fields)
def test_each_setting_of_mqtt_has_its_row(name: str) -> None:
    flag, default, _ = MQTT_ROWS[SHOWN.get(name, name)]
    value = getattr(MqttSettings(), name)
    told = {None: ("none", "those of the system", "in `cert_file`"), False: ("`false`",)}
    if name == "node":
        assert default == "name of the machine"
    elif name not in SHOWN:
        own = (f"{value:g}",) if type(value) in (int, float) else (f"`{value}`",)
        assert default in told.get(value, own)
    option = "--mqtt" if name == "url" else f"--{name.replace('_', '-')}"
    otherwise = "in the URL" if name == "password" else ""
    assert flag == (f"`{option}`" if option in _options("serve") else otherwise)


HTTP_ROWS = {
    name.strip(" `"): [cell.strip() for cell in cells]
    for name, *cells in (
        row.strip("|").split("|")
        for row in GUIDE.split("### HTTP\n")[1].split("|---|---|---|---|\n")[1].splitlines()
        if row.startswith("|")
    )
}
HTTP_SHOWN = {"quota": "[http.quota]", "keys": "[http.keys.NAME]"}


@pytest.mark.parametrize("name", HttpSettings.model_fields)
def test_each_setting_of_http_has_its_row(name: str) -> None:
    flag, default, _ = HTTP_ROWS[HTTP_SHOWN.get(name, name)]
    value = getattr(HttpSettings(), name)
    told = {None: ("none", "in `cert_file`"), (): ("`[]`",), False: ("`false`",)}
    own = (f"{value:g}", str(value)) if type(value) in (int, float) else (f"`{value}`",)
    if name not in HTTP_SHOWN:
        assert default in told.get(value, own)
    option = {"listen": "--http", "api_key": "--api-key"}.get(name, "")
    assert flag == (f"`{option}`" if option else "")


def test_each_flag_is_in_it() -> None:
    parameters = typer.main.get_command(app).params
    options = [o for p in parameters if p.name != "_version" for o in p.opts if o[:2] == "--"]
    assert len(options) > 15
    assert [option for option in options if f"`{option}" not in GUIDE] == []


@pytest.mark.parametrize("code", ExitCode, ids=lambda code: code.name)
def test_each_exit_code_has_its_row(code: ExitCode) -> None:
    assert f"\n| {code.value} |" in GUIDE


ROWS = GUIDE.split("| knob | meaning |")[1].split("\n\n")[0].splitlines()[2:]
KNOBS = {
    name.strip(" `"): [cell.strip() for cell in cells]
    for name, *cells in (row.strip("|").split("|") for row in ROWS)
}


def test_each_knob_has_its_row() -> None:
    assert list(KNOBS) == [spec.name for spec in KNOB_SPECS]


@pytest.mark.parametrize("spec", KNOB_SPECS, ids=lambda spec: spec.name)
def test_a_row_of_a_knob_says_what_is_so(spec: KnobSpec) -> None:
    meaning, unit, default, allowed, acts = KNOBS[spec.name]
    assert (meaning, unit) == (spec.meaning, spec.unit)
    assert default.strip("`") == _show(spec.default)
    assert _allows(allowed, spec)
    owners: dict[str, Mapping[str, type[Policy] | type[WaitingQueue]]]
    owners = {"policy": POLICIES, "order": ORDERS}
    users = [name for name, owner in owners.get(spec.acts, {}).items() if spec.name in owner.uses]
    assert acts == (", ".join(f"`{name}`" for name in users) if spec.acts != "always" else "all")


def _show(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,.7g}" if isinstance(value, (int, float)) else str(value) or "none"


def _allows(cell: str, spec: KnobSpec) -> bool:
    """Whether a cell says what a knob may be; the bounds of some are of the envelope."""
    wide = EngineConfig(num_blocks=1, max_model_len=1)
    narrow = replace(wide, max_num_seqs=1, max_num_batched_tokens=1)
    allowed = spec.range(wide, tuple(POLICIES))
    if allowed.choices or allowed.form:
        return cell == (allowed.form or ", ".join(f"`{_show(c)}`" for c in allowed.choices))
    if allowed != spec.range(narrow, ()):
        return cell.startswith(f"{_show(allowed.low)} to the setting")
    return cell == f"{_show(allowed.low)} to {_show(allowed.high)}"
