"""The driver, when its terminal is gone."""

from __future__ import annotations

import errno
import os
import signal
from typing import Any
from unittest.mock import Mock

import pytest

from app.screens.terminal import TerminalDriver


@pytest.mark.parametrize(
    ("number", "sent"), [(errno.EIO, [(os.getpid(), signal.SIGHUP)]), (errno.EAGAIN, [])]
)
async def test_a_terminal_that_is_gone_hangs_up_once(
    number: int, sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below `make run` nobody else says so: make outlives the hang-up, and waits for its child."""
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append((pid, number)))
    fails = Mock(side_effect=OSError(number, "no"))
    monkeypatch.setattr("sys.__stdout__", Mock(write=fails, flush=fails, fileno=lambda: 1))
    driver: Any = TerminalDriver(Mock())
    for _ in range(2):
        driver._file.write("x")
        driver._file.flush()
    assert kills == sent


@pytest.mark.parametrize("end", [b"", errno.EIO])
async def test_the_end_of_input_hangs_up_and_ends_the_thread(
    end: bytes | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textual's thread would look for more without end, or show a traceback."""
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append((pid, number)))
    monkeypatch.setattr("sys.__stdout__", Mock(fileno=lambda: 1))
    got, given = os.pipe()
    driver: Any = TerminalDriver(Mock())
    driver.fileno = got
    heard: list[str] = []
    monkeypatch.setattr(driver, "process_message", lambda event: heard.append(event.key))
    if isinstance(end, int):
        answers = iter([b"x", OSError(end, "no")])

        def read(*_: object) -> bytes:
            answer = next(answers)
            if isinstance(answer, OSError):
                raise answer
            return answer

        monkeypatch.setattr("app.screens.terminal.os.read", read)
    os.write(given, b"x")
    os.close(given)
    driver.run_input_thread()
    os.close(got)
    assert heard == ["x"]
    assert kills == [(os.getpid(), signal.SIGHUP)]
