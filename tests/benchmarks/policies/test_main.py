"""The command line."""

from __future__ import annotations

import sys

import pytest

from benchmarks.policies.__main__ import main


def test_an_unknown_part_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["policies", "--parts", "D,F"])
    with pytest.raises(SystemExit):
        main()
    output = capsys.readouterr()
    assert "'F' is no part; it must be of A, B, C, D, E" in output.err
    assert not output.out
