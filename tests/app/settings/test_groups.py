from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer import Option
from typer.testing import CliRunner

from app.settings.groups import spread, stated


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: Annotated[int, Option(help="A number.")] = 3
    texts: Annotated[list[str], Option("--text")] = field(default_factory=lambda: ["none"])


@dataclass(frozen=True, kw_only=True)
class Outer:
    first: Annotated[str | None, Option()] = None
    inner: Inner
    last: Annotated[bool, Option("--end")] = False


def called(*arguments: str) -> tuple[Outer, int]:
    calls = []

    @spread
    def command(*, outer: Outer, own: Annotated[int, Option()] = 7) -> None:
        """The action of a command."""
        calls.append((outer, own))

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return calls[0] if calls else pytest.fail(result.output)


def test_a_command_gets_its_groups() -> None:
    outer, own = called("--text", "a", "--number", "0", "--text", "b", "--end", "--own", "8")
    assert outer == Outer(inner=Inner(number=0, texts=["a", "b"]), last=True)
    assert own == 8


def test_what_is_not_stated_is_as_the_group_has_it() -> None:
    assert called() == (Outer(inner=Inner()), 7)


def test_options_stand_in_the_order_of_the_fields() -> None:
    @spread
    def command(*, outer: Outer, own: Annotated[int, Option()] = 7) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(command)
    names = [parameter.name for parameter in typer.main.get_command(app).params]
    assert names == ["first", "number", "texts", "last", "own"]


def test_what_groups_state_by_name() -> None:
    assert stated(Outer(first="x", inner=Inner(texts=[]))) == {
        "first": "x",
        "number": 3,
        "texts": [],
        "last": False,
    }
