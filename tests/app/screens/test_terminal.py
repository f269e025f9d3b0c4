"""The driver's file, when its terminal is gone."""

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
