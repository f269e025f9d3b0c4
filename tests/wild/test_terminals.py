"""Terminals that can do nothing but print get the plain program."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RUN = """
import sys
from app.commands import demo, plain
from app.commands.cli import main
from app.process import process
process.is_terminal = lambda stream: True
plain.run = lambda settings, **options: print("plain", options["each"]) or 0
demo.run = lambda settings: print("plain demo") or 0
demo.show_crowd = lambda options: print("screen") or 0
main()
"""


@pytest.mark.parametrize(
    ("term", "arguments", "told"),
    [
        ("dumb", [], "plain False\n"),
        ("dumb", ["--each"], "plain True\n"),
        ("dumb", ["--demo"], "plain demo\n"),
        ("xterm", ["--demo"], "screen\n"),
    ],
)
def test_a_dumb_terminal_has_no_screen(
    own_process: object, term: str, arguments: list[str], told: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": term},
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == (told, "", 0)
