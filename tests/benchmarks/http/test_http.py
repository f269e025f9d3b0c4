"""The benchmark of chat over HTTP: its parts on a paced model."""

from __future__ import annotations

import sys

import pytest

from benchmarks.http import __main__ as command


def test_streams_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "LEAD_SECONDS", 0.2)
    monkeypatch.setattr(sys, "argv", ["http", "--parts=A", "--seconds=0.5", "--streams=3"])
    command.main()
    lines = capsys.readouterr().out.splitlines()
    whole = next(line for line in lines if "streams that are whole" in line)
    assert whole.split()[5:8] == ["3", "=", "3"]


def test_what_is_no_part_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["http", "--parts=Z"])
    with pytest.raises(SystemExit):
        command.main()
    assert "--parts: 'Z' is no part; it must be of A, B, C, D" in capsys.readouterr().err
