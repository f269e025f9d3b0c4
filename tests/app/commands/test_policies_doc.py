"""docs/policies.md shows what the policies really plan, and a policy that really runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.commands import plain
from app.commands.cli import app
from app.process.exits import ExitCode
from app.settings.knobs import find_policy
from app.settings.settings import Settings
from engine.scheduling.policies import POLICIES
from tests.support.figure import Chat, draw
from tests.support.harness import CoreHarness

DOCS = Path(__file__).parents[3] / "docs"
DOC = (DOCS / "policies.md").read_text(encoding="utf-8")
EXAMPLES = DOCS / "examples"

CHATS = (Chat("A", 0, 4, 7), Chat("B", 0, 6, 2), Chat("C", 1, 20, 3), Chat("D", 3, 3, 2))
FIGURES = {
    "static": draw(CHATS, policy="static", static_batch_size=2, max_num_batched_tokens=40),
    "dynamic": draw(
        CHATS,
        policy="dynamic",
        static_batch_size=4,
        batch_window_ms=20.0,
        max_num_batched_tokens=40,
    ),
    "orca": draw(CHATS, policy="orca", max_num_batched_tokens=40),
    "prefill_first": draw(
        CHATS, policy="prefill_first", waiting_served_ratio=0.0, max_num_batched_tokens=40
    ),
    "stall_free": draw(CHATS, policy="stall_free", max_num_batched_tokens=8),
    "preemption": draw(
        (Chat("A", 0, 6, 10), Chat("B", 0, 7, 5)),
        num_blocks=5,
        policy="stall_free",
        max_num_batched_tokens=16,
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_what_the_policy_plans(name: str) -> None:
    assert f"```\n{FIGURES[name]}\n```" in DOC


def test_there_are_no_other_figures() -> None:
    shown = [block for block in re.findall(r"```\n(.*?)\n```", DOC, re.DOTALL) if block[:2] == "ms"]
    assert sorted(shown) == sorted(FIGURES.values())


@pytest.mark.parametrize("name", POLICIES)
def test_the_knobs_of_each_policy_are_told_in_its_part(name: str) -> None:
    part = re.search(rf"\n## [^\n]*`{name}`.*?(?=\n## |\Z)", DOC, re.DOTALL)
    assert part is not None
    for knob in POLICIES[name].uses:
        assert f"`{knob}`" in part[0]


@pytest.fixture
def last_come(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How the example is named on the command line in its folder; the registry is restored."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield "last_come:LastCome"
    sys.modules.pop("last_come", None)
    POLICIES.pop("last_come", None)


def test_the_example_is_the_file() -> None:
    code = (EXAMPLES / "last_come.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```" in DOC


def test_the_example_is_loaded_by_the_command_line(
    last_come: str, own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Settings] = []

    def run(settings: Settings, **_: bool) -> int:
        seen.append(settings)
        return ExitCode.OK

    monkeypatch.setattr(plain, "run", run)
    result = CliRunner().invoke(app, ["--policy", last_come], prog_name="tui")
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    assert seen[0].load_request().knobs == {"policy": "last_come"}


@pytest.mark.parametrize("depth", [1, 2])
def test_the_example_serves_the_newest_of_a_crowd_and_loses_nobody(
    last_come: str, depth: int
) -> None:
    harness = CoreHarness(policy=find_policy(last_come), max_num_seqs=2, depth=depth)
    names = [f"r{number}" for number in range(20)]
    for number, name in enumerate(names):
        harness.submit(name, [number + 1] * 5, max_tokens=3)
    harness.finish()
    admitted = [name for record in harness.records for name in record.admitted]
    assert admitted == ["r19", "r18", "r17", "r16", *names[:16]]
    assert {record.policy for record in harness.records} == {"last_come"}
