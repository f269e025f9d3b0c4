"""The table of commands, and the palette that is made from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import pytest
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.command import CommandList
from textual.widgets import Input

from app.screens import tui
from app.screens.deck import commands
from app.screens.deck.commands import COMMANDS
from app.screens.deck.deck import Deck
from app.screens.keys.help import HelpScreen
from tests.app.screens.stage import staged
from tests.support.linked import until


@pytest.mark.parametrize("is_on", [False, True])
async def test_pause_and_drain_are_found_by_both_words_in_both_states(
    tmp_path: Path, is_on: bool
) -> None:
    async with staged(tmp_path) as stage:
        stage.engine.set_knobs({"paused": is_on, "draining": is_on}, "somebody")
        await stage.turn()
        await stage.press("ctrl+p")
        palette = stage.app.screen
        found = palette.query_one(CommandList)

        def titles() -> str:
            return "\n".join(str(one.prompt) for one in found.options)

        for word, title, other in (
            ("pause", "Pause or resume", "Drain or stop draining"),
            ("stop drain", "Drain or stop draining", "Pause or resume"),
            ("resume", "Pause or resume", "Drain or stop draining"),
            ("drain", "Drain or stop draining", "Pause or resume"),
        ):
            palette.query_one(Input).value = word
            await until(
                lambda title=title, other=other: title in titles() and other not in titles()
            )


async def test_a_command_has_its_key_and_says_what_the_key_says(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"chat.new": "f20"}) as stage:
        offered = list(stage.app.get_system_commands(stage.deck))
        told = {command.title: command.help for command in offered}
        assert all(told.values())
        keys = {title: does.partition(" · ")[0] for title, does in told.items() if " · " in does}
        expected = {
            "New chat": "f20",
            "Settings of the chat…": "f5",
            "Saved prompts…": "alt+p",
            "Previous branch": "alt+←",
            "Next branch": "alt+→",
            "Copy code": "y",
            "Copy message": "c",
            "Settings…": "f9",
            "Panel: Batch": "2",
        }
        assert expected.items() <= keys.items()
        assert not {"Theme…", "Copy chat", "Policy: orca"} & keys.keys()
        assert told["New chat"] == "f20 · Open an empty chat"


async def test_a_new_entry_is_key_help_palette_and_line_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(tui.__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^```python command\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    whistle = eval(recipe, vars(commands))
    monkeypatch.setattr(commands, "COMMANDS", (*COMMANDS, whistle))
    monkeypatch.setitem(commands.BY_NAME, "chat.whistle", whistle)

    class Whistling(Deck):
        BINDINGS: ClassVar[list[BindingType]] = [*commands.bindings()]

    monkeypatch.setattr("app.screens.tui.Deck", Whistling)
    async with staged(tmp_path) as stage:
        await stage.press("f20")
        await stage.bar("f20 Whistle")
        offered = {one.title: one for one in stage.app.get_system_commands(stage.deck)}
        assert offered["Whistle a tune…"].help == "f20 · Whistle a tune"
        offered["Whistle a tune…"].callback()
        for line in ("/whistle", "/whistle Daisy", "/whistle-a-tune"):
            stage.deck.slash.run(line)
        await stage.settle()
        assert stage.toasts == ["Which tune?"] * 3 + ["Daisy", "Which tune?"]
        await stage.press("f1")
        assert isinstance(stage.app.screen, HelpScreen)
        keys = [key for section in stage.app.screen.sections for key in section.keys]
        assert ("f20", "Whistle a tune", "chat.whistle") in keys


async def test_each_command_is_enabled_or_not_before_the_screen_has_its_panes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textual handles a key that comes that early, from a user who types ahead."""
    enabled: list[bool] = []

    class Asked(Deck):
        def compose(self) -> ComposeResult:
            enabled.extend(command.when(self) for command in COMMANDS)
            yield from super().compose()

    monkeypatch.setattr("app.screens.tui.Deck", Asked)
    async with staged(tmp_path):
        assert len(enabled) == len(COMMANDS)


def test_no_two_commands_have_the_same_name() -> None:
    assert len(commands.BY_NAME) == len(COMMANDS)
    titles = [one.offer.title for one in COMMANDS if one.offer is not None]
    lines = [one.typed.name for one in COMMANDS if one.typed is not None]
    assert len(set(titles)) == len(titles)
    assert len(set(lines)) == len(lines)
