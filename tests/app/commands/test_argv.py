from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.commands.argv import KEY_VARIABLE, VARIABLE, without_secrets
from app.gateway.mqtt.transport.address import BrokerAddress
from app.settings.layers import load_settings

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("arguments", "shown", "password"),
    [
        (["--mqtt", "mqtt://a:p%2Fq@h:1"], ["--mqtt", "mqtt://a@h:1"], "p/q"),
        (["ask", "--mqtt=wss://a:p@h/x", "b"], ["ask", "--mqtt=wss://a@h/x", "b"], "p"),
        (["--mqtt", "mqtt://a@h"], ["--mqtt", "mqtt://a@h"], None),
        (["--mqtt"], ["--mqtt"], None),
        # The last one counts, and no other broker gets another's password.
        (
            ["--mqtt", "mqtt://a:p@h", "--mqtt=mqtt://b:q@i"],
            ["--mqtt", "mqtt://a@h", "--mqtt=mqtt://b@i"],
            "q",
        ),
        (
            ["--mqtt", "mqtt://a:p@h", "--mqtt=mqtt://b@i"],
            ["--mqtt", "mqtt://a@h", "--mqtt=mqtt://b@i"],
            None,
        ),
        (["ask", "mail a:b@c", "mqtt://a:p@h"], ["ask", "mail a:b@c", "mqtt://a:p@h"], None),
    ],
)
def test_the_password_goes_to_the_environment(
    arguments: list[str], shown: list[str], password: str | None
) -> None:
    environment: dict[str, str] = {}
    assert without_secrets(arguments, environment) == shown
    assert environment.get(VARIABLE) == password


@pytest.mark.parametrize(
    ("arguments", "shown", "key"),
    [
        (["serve", "--api-key", "k 1"], ["serve", "--api-key", "-"], "k 1"),
        (["--api-key=a", "--api-key=b"], ["--api-key=-", "--api-key=-"], "b"),
        (["--api-key", "-"], ["--api-key", "-"], None),
        (["--api-key"], ["--api-key"], None),
        (["ask", "api-key", "x"], ["ask", "api-key", "x"], None),
    ],
)
def test_a_key_goes_there_too(arguments: list[str], shown: list[str], key: str | None) -> None:
    environment = {"TUI_CONFIG": os.devnull}
    assert without_secrets(arguments, environment) == shown
    assert environment.get(KEY_VARIABLE) == key
    own = load_settings({"api_key": "-"}, env=environment).http.api_key
    assert (own.get_secret_value() if own else None) == key


@pytest.mark.parametrize(
    "stated",
    [
        {"TUI_MQTT": f"mqtt://other:{SECRET}@elsewhere"},
        {"TUI_MQTT_PASSWORD": SECRET},
        {"TUI_MQTT_PASSWORD_FILE": "/nothere"},
    ],
)
def test_it_goes_before_what_the_environment_has(stated: dict[str, str]) -> None:
    environment = dict(stated)
    _, url = without_secrets(["--mqtt", "mqtt://a:p@h"], environment)
    settings = load_settings({"mqtt": url}, env=environment | {"TUI_CONFIG": os.devnull})
    assert settings.mqtt.address() == BrokerAddress.parse("mqtt://a:p@h")


def test_no_process_has_the_password_in_its_command_line(tmp_path: Path) -> None:
    """A real `tui`, whose reading of the configuration file waits until we have looked."""
    pipe = tmp_path / "config.toml"
    os.mkfifo(pipe)
    command = [sys.executable, "-X", "utf8", "-c", "from app.commands.cli import main; main()"]
    command += ["serve", "--config", str(pipe)]
    command += ["--mqtt", f"mqtt://alice:{SECRET}@127.0.0.1:1", "--pool", "a b"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            place = Path(f"/proc/{process.pid}")
            deadline = time.monotonic() + 20
            while SECRET in (line := (place / "cmdline").read_text()) or "serve" not in line:
                assert time.monotonic() < deadline, line
                time.sleep(0.01)
            assert line.split("\0")[1:3] == ["-X", "utf8"]
            assert "mqtt://alice@127.0.0.1:1" in line.split("\0")
            assert f"{VARIABLE}={SECRET}" in (place / "environ").read_text().split("\0")
            pipe.write_text("")
            _, told = process.communicate(timeout=20)
        finally:
            process.kill()
    # It went on from there: this is the first that is wrong.
    assert told.startswith("tui: --pool: mqtt.pool is 'a b'")
