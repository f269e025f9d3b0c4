"""The command and the machine above a benchmark's figures."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from benchmarks.heading import command


@pytest.fixture
def _run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m benchmarks.policies --parts A` has it."""
    spec = SimpleNamespace(name="benchmarks.policies.__main__")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", "--parts", "A", "--svg", "a b"])
    monkeypatch.delenv("BATCHDECK_KERNELS", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")


@pytest.mark.usefixtures("_run")
def test_the_command_can_be_given_again() -> None:
    assert command() == "python -m benchmarks.policies --parts A --svg 'a b'"


@pytest.mark.usefixtures("_run")
def test_what_of_the_environment_changes_figures_is_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCHDECK_KERNELS", "off")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    expected = "BATCHDECK_KERNELS=off OMP_WAIT_POLICY=ACTIVE python -m benchmarks.policies "
    assert command().startswith(expected)
