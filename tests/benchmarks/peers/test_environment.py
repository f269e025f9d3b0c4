"""The output of a set-up of peers, and of one that fails. Nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers import environment
from benchmarks.peers.environment import Environment, PeerMissingError, follow
from benchmarks.peers.level import LEVELS
from benchmarks.peers.peers import contenders


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_failure_says_the_line_that_tells_why(tmp_path: Path) -> None:
    code = "print('Collecting'); print('ERROR: no such package'); print('bye'); exit(1)"
    with pytest.raises(PeerMissingError, match="pip failed: ERROR: no such package"):
        follow(python(code), tmp_path / "log", "pip", print)


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PeerMissingError, match="venv cannot be run"):
        follow([str(tmp_path / "none")], tmp_path / "log", "venv", print)


def test_an_environment_is_made_once_and_again_for_other_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    monkeypatch.setattr(environment, "follow", lambda command, *_: commands.append(command[-1]))
    wanted = Environment("peer", ("one==1",), unwanted=("other",))
    venv = tmp_path / "peer" / "venv"
    for _ in range(2):
        assert wanted.python(tmp_path, print) == venv / "bin" / "python"
    assert commands == [str(venv), "one==1", "other"]
    Environment("peer", ("one==2",)).python(tmp_path, print)
    assert commands[3:] == [str(venv), "one==2"]


def test_what_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], *_: object) -> None:
        raise PeerMissingError("no network")

    wanted = Environment("peer", ("one==1",))
    monkeypatch.setattr(environment, "follow", fail)
    for _ in range(2):
        with pytest.raises(PeerMissingError, match="no network"):
            wanted.python(tmp_path, print)


def test_transformers_is_batchdecks_own(tmp_path: Path) -> None:
    interpreter, model = contenders(["generate"], ["bf16"])["generate bf16"].set_up(
        tmp_path, tmp_path / "checkpoint", LEVELS["avx2"], print
    )
    assert (interpreter, model) == (Path(sys.executable), tmp_path / "checkpoint")
