"""The plain program as a process of its own, over a scripted engine: pipes, files and signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from app.process.exits import ExitCode

# The engine tells when it was closed: what runs must not outlive the command.
PROGRAM = """
import os
import sys
from contextlib import contextmanager
from app.commands import plain
from app.commands.cli import main
from tests.support.scripted_engine import ScriptedEngine

@contextmanager
def serving(request, terminal):
    assert terminal is None
    says = {"hi": "Hello you", "rude": "a\\x1b[2J b\\u202e\\tc"}
    engine = ScriptedEngine(says, drives_itself=True, off_kernels=os.environ.get("OFF_KERNELS", ""))
    try:
        yield engine
    finally:
        pins = [f"with {pin.name} pinned" for pin in engine.snapshot().pins]
        print("closed", *pins, file=sys.stderr)

plain.serving = serving
main()
"""


def tui(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    chosen = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), **options}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, **chosen)  # type: ignore[call-overload,no-any-return]


def ask(*arguments: str) -> tuple[subprocess.Popen[bytes], BinaryIO, BinaryIO, BinaryIO]:
    """A process that has answered a line and waits for the next, and its streams."""
    # A shell that runs the tests in the background has children ignore SIGINT.
    process = tui(*arguments, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(b"hi\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"Hello you\n"
    return process, process.stdin, process.stdout, process.stderr


@pytest.mark.parametrize(
    ("number", "code", "flags"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED, ["--each"]),
        (signal.SIGTERM, ExitCode.TERMINATED, []),
    ],
)
def test_a_signal_ends_it_cleanly(
    number: signal.Signals, code: ExitCode, flags: list[str], own_process: Path
) -> None:
    process, _, stdout, stderr = ask(*flags)
    process.send_signal(number)
    assert process.wait(20) == code
    assert stdout.read() == b""
    assert stderr.read() == b"closed\n"


def test_a_closed_pipe_ends_it_quietly(own_process: Path) -> None:
    process, stdin, stdout, stderr = ask("--each")
    stdout.close()
    stdin.write(b"hi\n")
    stdin.flush()
    assert process.wait(20) == ExitCode.CLOSED_PIPE
    assert stderr.read() == b"closed\n"


def test_a_model_off_the_fast_path_is_told_once(
    own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFF_KERNELS", "sin in Layer is not read")
    replies, told = tui("--each").communicate(b"hi\nhi\n", 20)
    assert replies == b"Hello you\nHello you\n"
    assert told.count(b"fast path") == 1
    assert told.startswith(
        b"tui: scripted is not wholly on the fast path: it runs module by module"
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told(own_process: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = tui(stdout=full)
        _, told = process.communicate(b"hi\n", 20)
    assert process.returncode == ExitCode.NO_FILE
    message = b"tui: standard input or output failed: No space left on device\n"
    assert told == b"closed\n" + message


def test_streams_that_are_closed(own_process: Path) -> None:
    process = tui(preexec_fn=lambda: os.close(0))
    assert process.communicate(timeout=20) == (b"", b"closed\n")
    assert process.returncode == ExitCode.OK
    process = tui(preexec_fn=lambda: os.close(1))
    assert process.communicate(b"hi\n", 20)[1].startswith(b"tui: standard output is closed")
    assert process.returncode == ExitCode.NO_FILE


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_reply_steers_no_terminal_and_a_pipe_gets_it_as_it_is(
    flags: tuple[str, ...], own_process: Path
) -> None:
    ours, theirs = pty.openpty()
    process = tui(*flags, stdout=theirs)
    os.close(theirs)
    process.communicate(b"rude\n", 20)
    shown = os.read(ours, 1000).decode()
    os.close(ours)
    # JSON escapes the first of them itself.
    assert (r"a\u001b[2J b\u202e\tc" if flags else "a\\x1b[2J b\\u202e\tc\r\n") in shown
    out, _ = tui(*flags).communicate(b"rude\n", 20)
    assert "\u202e" in out.decode()
    assert flags or out == "a\x1b[2J b\u202e\tc\n".encode()


def test_refused_lines_are_told_apart_from_replies(own_process: Path) -> None:
    process = tui("--system", "Be brief.")
    out, told = process.communicate(b"hi\n\nhi\n", 20)
    assert out == b"Hello you\nHello you\n"
    assert told == b"tui: line 2: the prompt is empty; it must have some text\nclosed\n"
    assert process.returncode == ExitCode.FAILED


def test_the_system_prompt_is_pinned(own_process: Path) -> None:
    longer_than_a_block = "Be brief. " * 8
    process = tui("--system", longer_than_a_block, "--pin-system")
    assert process.communicate(b"hi\n", 20) == (b"Hello you\n", b"closed with system pinned\n")
