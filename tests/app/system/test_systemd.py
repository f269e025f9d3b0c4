from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

import pytest

from app.system import systemd


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_supervisor_is_told(
    is_abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = uuid.uuid4().hex
    shown = f"@{name}" if is_abstract else str(tmp_path / name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(f"\0{name}" if is_abstract else shown)
        supervisor.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", shown)
        systemd.notify("READY=1", "STATUS=well")
        assert supervisor.recv(100) == b"READY=1\nSTATUS=well"


def test_without_one_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.notify("READY=1")
    assert caplog.messages == []
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nothere"))
    systemd.notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/" + "x" * 200)
    systemd.notify("READY=1")
    assert caplog.messages == [
        "systemd cannot be notified of READY=1: No such file or directory",
        "systemd cannot be notified of READY=1: AF_UNIX path too long",
    ]


@pytest.mark.parametrize(
    ("wanted", "process", "seconds"),
    [
        (None, None, None),
        ("30000000", None, 30.0),
        ("30000000", "ours", 30.0),
        ("30000000", "1", None),
        ("soon", None, None),
        ("0", None, None),
    ],
)
def test_how_often_the_watchdog_is_to_hear_of_us(
    wanted: str | None, process: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if process == "ours":
        process = str(os.getpid())
    for name, value in (("WATCHDOG_USEC", wanted), ("WATCHDOG_PID", process)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert systemd.watchdog_seconds() == seconds
