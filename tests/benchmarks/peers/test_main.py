"""The whole command, with workers that compute nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import comparison, loading, options
from benchmarks.peers.environment import PeerMissingError
from benchmarks.peers.floor import Machine
from benchmarks.peers.level import LEVELS, Level
from benchmarks.peers.peers import Form, Peer
from benchmarks.peers.reference import Agreement
from benchmarks.peers.width import WIDTHS, Weights, Width
from benchmarks.peers.workload import Workload
from engine import native
from engine.simulation.shapes import SHAPES


@dataclass(frozen=True)
class FakeContender:
    peer: Peer
    form: Form
    behaviour: str

    def variables(self, level: Level) -> dict[str, str]:
        return {}

    def set_up(self, cache: Path, checkpoint: Path, level: Level, say: object) -> tuple[Path, Path]:
        if self.behaviour == "absent":
            raise PeerMissingError("no compiler")
        return Path(sys.executable), checkpoint

    def command(self, python: Path) -> list[str]:
        return [str(python), "-m", "tests.benchmarks.peers.fake", self.behaviour]


def contender(peer: str, behaviour: str, width: str = "bf16") -> FakeContender:
    form = Form(width, WIDTHS[width], f"{peer} quantizes")
    return FakeContender(Peer(peer, "", "{level.name} itself"), form, behaviour)


class FakeReference:
    def __init__(self, checkpoint: Path, workload: Workload) -> None:
        pass

    def compare(self, tokens: list[int], width: Width) -> Agreement:
        return Agreement(True, True, len(tokens), len(tokens))


@pytest.fixture
def report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The output of a quick run with a peer of each kind."""
    contenders = {
        f"{one.peer.name} {one.form.name}": one
        for one in (
            *(contender("batchdeck", ""), contender("static", "batch")),
            *(contender("refusing", "refuse"), contender("absent", "absent")),
            *(contender("ending", "end-later"), contender("static", "batch", "int4")),
        )
    }
    monkeypatch.setattr(options, "contenders", lambda peers, widths: contenders)
    monkeypatch.setattr(Weights, "of", lambda checkpoint, width: Weights(width, width.bits * 10**6))
    monkeypatch.setattr(command, "checkpoint", lambda model, cache, say: cache / model)
    monkeypatch.setattr(command, "model_shape", lambda checkpoint: SHAPES["387m"])
    monkeypatch.setattr(loading, "Reference", FakeReference)
    monkeypatch.setattr(Machine, "measure", lambda dtype: Machine(2.5e12, 5e12))
    monkeypatch.setattr(comparison, "read_bandwidth", lambda device: 25e9)
    for variable in LEVELS["avx2"].variables:
        monkeypatch.setenv(variable, "")  # so that they are as they were afterwards
    arguments = ["--quick", "--level=avx2", "--workloads=8x128,chat", f"--cache={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    command.main()
    return capsys.readouterr().out


def test_a_report_has_every_peer_or_why_it_is_missing(report: str) -> None:
    assert "multiplies float32 at 2.50 TFLOPS and int8 at 5.00 TOPS; rounds: 1\n" in report
    assert "the same first token as float32, 8 of 8 in a row" in report
    assert "absent bf16: left out. no compiler" in report
    assert "refusing bf16: left out. RuntimeError: no such model" in report
    assert "ending bf16: left out. it ended: out of luck" in report
    batch, chat, weights = report.split("\n\n")[1:]
    assert batch.startswith("8x128 of 387m: 8 sequences, 128 tokens in, 16 out\n")
    assert batch.splitlines()[1:3] == ["held to avx2 by", "  batchdeck, static: avx2 itself"]
    assert [line[:24].strip() for line in batch.splitlines()[5:]] == [
        *("batchdeck bf16", "static bf16", "static int4"),
    ]
    assert "256 of them shared, 16 out, " in chat
    assert "requests/s (Poisson)" in chat
    assert chat.splitlines()[-1].split() == ["static", "int4", "n/a"]
    assert weights.splitlines() == [
        "weights",
        *("batchdeck bf16: batchdeck quantizes", "  every matrix in dust"),
        *("static bf16: static quantizes", "  every matrix in dust"),
        *("ending bf16: ending quantizes", "  every matrix in dust"),
        *("static int4: static quantizes", "  every matrix in dust"),
        "floor of bf16: reads 16 MB of weights",
        "floor of int4: reads 4 MB of weights",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--workloads=2x128"], "--workloads: '2x128' is none; it must be of 1x128"),
        (["--peers=vllm"], "--peers: 'vllm' is none; it must be of batchdeck"),
        (["--models=gpt2"], "--models: 'gpt2' is none; it must be of 387m, qwen3-0.6b"),
        (["--weights=int2"], "--weights: 'int2' is none; it must be of bf16, int8, int4"),
        (["--weights=int8", "--peers=generate"], "--weights: none of generate serves them"),
        (["--level=sse"], "argument --level: invalid choice: 'sse'"),
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


@pytest.mark.parametrize("has", [("avx512", "avx2"), ()])
def test_a_level_is_one_that_the_processor_has(
    has: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = SimpleNamespace(levels=lambda: list(has), level=lambda: has[0]) if has else None
    monkeypatch.setattr(native, "kernels", lambda: kernels)
    monkeypatch.setattr(sys, "argv", ["peers", "--level=amx"])
    if has:
        with pytest.raises(SystemExit):
            options.options(None)
        assert "--level: this processor has no amx; it has avx512, avx2" in capsys.readouterr().err
    else:
        assert options.options(None).level is LEVELS["amx"]
    monkeypatch.setattr(sys, "argv", ["peers"])
    if has:
        assert options.options(None).level is LEVELS["avx512"]
    else:
        with pytest.raises(SystemExit):
            options.options(None)
        assert "--level is needed, for batchdeck has no kernels" in capsys.readouterr().err
