"""What setting peers up tells, and what it says when it fails. Nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers import environment
from benchmarks.peers.environment import Environment, PeerMissingError, follow
from benchmarks.peers.peers import PEERS


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_progress_is_told_from_what_pip_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_SAY_SECONDS", -1.0)
    lines = "Collecting torch>=2.11", "  [67/140] g++ -O3 ggml.c", "some noise"
    said: list[str] = []
    follow(python(f"print(*{lines!r}, sep=chr(10))"), tmp_path / "log", "pip", said.append)
    assert [line.split(" s, ")[1] for line in said] == [
        *("Collecting torch>=2.11", "compiling [67/140]", "compiling [67/140]"),
    ]
    assert (tmp_path / "log").read_text().splitlines() == list(lines)


def test_a_failure_says_the_line_that_tells_why(tmp_path: Path) -> None:
    code = "print('Collecting'); print('ERROR: no such package'); print('bye'); exit(1)"
    with pytest.raises(PeerMissingError, match="pip failed: ERROR: no such package"):
        follow(python(code), tmp_path / "log", "pip", print)


def test_variables_reach_the_command(tmp_path: Path) -> None:
    code = "import os; print(os.environ['CMAKE_ARGS'])"
    follow(python(code), tmp_path / "log", "pip", print, {"CMAKE_ARGS": "-DX=ON"})
    assert (tmp_path / "log").read_text() == "-DX=ON\n"


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
    interpreter, model = PEERS["generate"].set_up(tmp_path, tmp_path / "checkpoint", print)
    assert (interpreter, model) == (Path(sys.executable), tmp_path / "checkpoint")
