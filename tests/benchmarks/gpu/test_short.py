"""The script for a quarter of an hour: its plan, its limits, and all of it on tiny models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import short
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.short import NEEDED, PART_LIMITS, STEPS, Step

# Packages of tests, screens, gateways and figures; what transformers brings is in an image.
ABSENT = (
    *("pytest", "_pytest", "pytest_asyncio", "hypothesis", "jsonschema", "xdist", "openai"),
    *("textual", "matplotlib", "plotext", "aiomqtt", "paho", "starlette"),
    *("uvicorn", "prometheus_client", "markdown_it", "pynvml", "anthropic", "amqtt"),
)
IMPORTING = """
import sys

sys.modules.update(dict.fromkeys({absent}))  # an import of None fails, and nothing finds it
import benchmarks.gpu.steps, benchmarks.gpu.whole, benchmarks.gpu.sampling
import engine.model.loading.loader, tests.support.checkpoints
"""


def test_a_dry_run_prints_the_plan_and_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--short", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        *("start", "correct", "sampler", "attention", "tiles", "load", "small", "experts")
    ]
    assert [line for line in lines if not line.startswith("  ")] == [
        "part 1: at most 420 s of 420",
        "part 2: at most 350 s of 360",
    ]
    assert main(["--short", "--part", "2", "--dry-run"]) == 0
    assert "correct" not in capsys.readouterr().out


def test_the_limits_of_a_part_s_steps_fit_into_it() -> None:
    for part, limit in PART_LIMITS.items():
        assert 0 < sum(step.limit for step in STEPS if step.part == part) <= limit
    assert [step.part for step in STEPS] == sorted(step.part for step in STEPS)


def test_it_needs_nothing_that_an_image_lacks_but_what_it_names() -> None:
    assert not set(ABSENT) & set(NEEDED)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING.format(absent=ABSENT)],
        capture_output=True,
        text=True,
        env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-800:]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The program that the steps' processes run in place of Python."""
    file = tmp_path / "python"
    monkeypatch.setattr(short.sys, "executable", str(file))
    return file


def write(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_a_step_that_hangs_is_ended_and_the_next_one_runs(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(program, "case $* in *hanging*) echo begun; sleep 100;; *) echo $*; exit 3;; esac")
    steps = (Step("hanging", 1, 0, "hangs", 2), Step("ending", 1, 60, "ends"))
    monkeypatch.setattr(short, "STEPS", steps)
    assert main(["--short"]) == 1
    said = [line[8:] for line in capsys.readouterr().out.splitlines()]
    assert "hanging: 2 of 2 had not ended after 0 s" in said
    told = "  -u -m benchmarks.gpu --short --step ending --device cuda:0 --share 0/1"
    assert told in said
    assert said[-2:] == ["ending: ended with 3", "all of this; failed: hanging, ending"]


def test_a_step_is_shared_by_its_processes(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(program, 'for last in "$@"; do :; done; echo "share $last"')
    monkeypatch.setattr(short, "STEPS", (Step("shared", 1, 60, "is shared", 3),))
    assert main(["--short"]) == 0
    said = capsys.readouterr().out
    assert all(f"share {share}/3" in said for share in range(3))


@pytest.mark.long
def test_the_whole_of_it_on_tiny_models(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--short", "--device", "cpu"])
    said = capsys.readouterr().out
    assert code == 0, said[-2000:]
    assert said.rstrip().endswith("all of this; failed: nothing")
    for step in STEPS:
        assert f"{step.name}: {step.what}" in said
    assert said.count(" ok") >= 3 + 3 + 1
    assert "another model loaded and closed" in said
    assert "3 of 3" in said
    assert "aten::mm" in said
