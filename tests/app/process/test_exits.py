"""A signal ends the program while its model loads, whatever the loader is doing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A process that does not end takes as long as this.
PATIENCE = 60.0
CODE = "from tests.support import stuck; stuck.run(lambda: print('loading', flush=True))"
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("command", ["", "serve --embedded-broker"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_the_model_loads(
    command: str, number: signal.Signals, own_process: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CODE, *command.split()],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "loading\n"
            process.send_signal(number)
            _, told = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert "Traceback" not in told
