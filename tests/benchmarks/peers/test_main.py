"""The whole command, with workers that compute nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import loading, options
from benchmarks.peers.environment import PeerMissingError
from benchmarks.peers.floor import Machine
from benchmarks.peers.reference import Agreement
from benchmarks.peers.workload import Workload
from engine.simulation.shapes import SHAPES


@dataclass(frozen=True)
class FakePeer:
    behaviour: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    def set_up(self, cache: Path, checkpoint: Path, say: object) -> tuple[Path, Path]:
        if self.behaviour == "absent":
            raise PeerMissingError("no compiler")
        return Path(sys.executable), checkpoint

    def command(self, python: Path) -> list[str]:
        return [str(python), "-m", "tests.benchmarks.peers.fake", self.behaviour]


class FakeReference:
    def __init__(self, checkpoint: Path, workload: Workload) -> None:
        pass

    def compare(self, tokens: list[int]) -> Agreement:
        return Agreement(True, True, len(tokens), len(tokens))


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What a quick run prints with a peer of each kind."""
    peers = {
        name: FakePeer(behaviour)
        for name, behaviour in (
            *(("batchdeck", ""), ("static", "batch"), ("refusing", "refuse")),
            *(("absent", "absent"), ("ending", "end-later")),
        )
    }
    for module in (loading, options):
        monkeypatch.setattr(module, "PEERS", peers)
    monkeypatch.setattr(command, "checkpoint", lambda model, cache, say: cache / model)
    monkeypatch.setattr(command, "model_shape", lambda checkpoint: SHAPES["387m"])
    monkeypatch.setattr(loading, "Reference", FakeReference)
    monkeypatch.setattr(Machine, "measure", lambda: Machine(25e9, 2.5e12))
    workloads = "--workloads=8x128,chat"
    monkeypatch.setattr(sys, "argv", ["peers", "--quick", workloads, f"--cache={tmp_path}"])
    command.main()
    return capsys.readouterr().out


def test_a_report_has_every_peer_or_why_it_is_missing(report: str) -> None:
    assert "reads 25.0 GB/s, multiplies bfloat16 at 2.50 TFLOPS; rounds: 1\n" in report
    assert "the same first token as float32, 8 of 8 in a row" in report
    assert "absent: left out. no compiler" in report
    assert "refusing: left out. RuntimeError: no such model" in report
    assert "ending: left out. it ended: out of luck" in report
    batch, chat = report.split("\n\n")[1:]
    assert batch.startswith("8x128 of 387m: 8 sequences, 128 tokens in, 16 out\n")
    assert [line.split()[0] for line in batch.splitlines()[3:]] == ["batchdeck", "static"]
    assert "256 of them shared, 16 out, " in chat
    assert "requests/s (Poisson)" in chat
    assert chat.splitlines()[-1].split() == ["static", "n/a"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workloads=2x128"], "--workloads: '2x128' is none; it must be of 1x128"),
        (["--peers=vllm"], "--peers: 'vllm' is none; it must be of batchdeck"),
        (["--models=gpt2"], "--models: 'gpt2' is none; it must be of 387m, qwen3-0.6b"),
        (["--rounds=0"], "--rounds: 0 is too few"),
        (["--peers=generate"], "--rate is needed for chat without batchdeck"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    with pytest.raises(SystemExit):
        command.main()
    assert complaint in capsys.readouterr().err
