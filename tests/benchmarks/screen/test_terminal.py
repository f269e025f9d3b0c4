"""The terminal that the interface is given."""

from __future__ import annotations

import os
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals", allow_module_level=True)

from benchmarks.screen.terminal import Terminal


def test_the_terminal_has_the_size_and_tells_how_long_a_key_takes() -> None:
    # What is typed comes back from the terminal itself.
    script = "import os, sys; print(*os.get_terminal_size(), flush=True); sys.stdin.read()"
    terminal = Terminal([sys.executable, "-c", script], (160, 48), os.environ)
    try:
        with terminal._news:
            assert terminal._news.wait_for(lambda: b"160 48" in terminal._recent, 20.0)
        assert 0.0 < terminal.echo("ā", 20.0) < 20.0
    finally:
        terminal.close()
    assert terminal.painted >= len("160 48ā".encode())


def test_the_program_compiles_its_modules_as_an_installed_one_does() -> None:
    script = "import sys; print('kept', not sys.dont_write_bytecode, flush=True); sys.stdin.read()"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    terminal = Terminal([sys.executable, "-c", script], (160, 48), environment)
    try:
        terminal.seen_at("kept True", 20.0)
    finally:
        terminal.close()
