"""docs/operating.md names all that can be set and all that the program can end with."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from app.cli import app
from app.exits import ExitCode
from app.settings import NAMES, SAMPLING_NAMES, TABLES

GUIDE = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*NAMES, *SAMPLING_NAMES])
def test_each_setting_has_its_row(name: str) -> None:
    shown = f"[{name}]" if name in TABLES else name
    assert f"\n| `{shown}` |" in GUIDE


def test_each_flag_is_in_it() -> None:
    parameters = typer.main.get_command(app).params
    options = [o for p in parameters if p.name != "_version" for o in p.opts if o[:2] == "--"]
    assert len(options) > 15
    assert [option for option in options if f"`{option}" not in GUIDE] == []


@pytest.mark.parametrize("code", ExitCode, ids=lambda code: code.name)
def test_each_exit_code_has_its_row(code: ExitCode) -> None:
    assert f"\n| {code.value} |" in GUIDE
