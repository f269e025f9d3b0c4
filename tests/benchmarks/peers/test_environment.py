"""What setting peers up tells, and what it says when it fails. Nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import environment
from benchmarks.peers.environment import Environment, PeerMissingError, follow
from benchmarks.peers.level import LEVELS
from benchmarks.peers.peers import PEERS, contenders, held


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
    interpreter, model = contenders(["generate"], ["bf16"])["generate bf16"].set_up(
        tmp_path, tmp_path / "checkpoint", LEVELS["avx2"], print
    )
    assert (interpreter, model) == (Path(sys.executable), tmp_path / "checkpoint")


def test_llama_cpp_is_built_for_the_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def note(command: list[str], log: Path, name: str, say: object, *variables: Any) -> None:
        built.extend(f"{name}: {given['CMAKE_ARGS']}" for given in variables)

    monkeypatch.setattr(environment, "follow", note)
    make = PEERS["llama.cpp"].environment
    assert make is not None
    for level in ("avx2", "avx512"):
        make(LEVELS[level]).python(tmp_path, print)
    common = "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DGGML_LLAMAFILE=ON"
    assert built == [
        f"llama-avx2: pip: {common}",
        f"llama-avx512: pip: {common} -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON "
        "-DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON",
    ]


def test_peers_are_told_with_what_holds_them() -> None:
    found = contenders(["generate", "continuous", "llama.cpp"], ["bf16", "int4"])
    assert held(found.values(), LEVELS["amx"]).splitlines() == [
        "held to amx by",
        "  generate, continuous: ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX and ATEN_CPU_CAPABILITY=avx512",
        "  llama.cpp: its build",
    ]
