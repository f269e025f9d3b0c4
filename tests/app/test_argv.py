from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.argv import VARIABLE, without_password

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("arguments", "shown", "password"),
    [
        (["--mqtt", "mqtt://a:p%2Fq@h:1"], ["--mqtt", "mqtt://a@h:1"], "p/q"),
        (["ask", "--mqtt=wss://a:p@h/x", "b"], ["ask", "--mqtt=wss://a@h/x", "b"], "p"),
        (["--mqtt", "mqtt://a@h"], ["--mqtt", "mqtt://a@h"], None),
        (["--mqtt"], ["--mqtt"], None),
        (["ask", "mail a:b@c", "mqtt://a:p@h"], ["ask", "mail a:b@c", "mqtt://a:p@h"], None),
    ],
)
def test_the_password_goes_to_the_environment(
    arguments: list[str], shown: list[str], password: str | None
) -> None:
    environment: dict[str, str] = {}
    assert without_password(arguments, environment) == shown
    assert environment.get(VARIABLE) == password


def test_no_process_has_the_password_in_its_command_line(tmp_path: Path) -> None:
    """A real `tui`, whose reading of the configuration file waits until we have looked."""
    pipe = tmp_path / "config.toml"
    os.mkfifo(pipe)
    command = [sys.executable, "-X", "utf8", "-c", "from app.cli import main; main()"]
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
