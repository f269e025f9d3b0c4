"""What the palette offers, and the keys beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.command import CommandList
from textual.widgets import Input

from tests.app.screens.stage import staged
from tests.support.linked import until


@pytest.mark.parametrize("is_on", [False, True])
@pytest.mark.parametrize(
    ("word", "title"),
    [
        ("pause", "Pause or resume"),
        ("resume", "Pause or resume"),
        ("drain", "Drain or stop draining"),
        ("stop drain", "Drain or stop draining"),
    ],
)
async def test_pause_and_drain_are_found_by_both_words_in_both_states(
    tmp_path: Path, word: str, title: str, is_on: bool
) -> None:
    async with staged(tmp_path) as stage:
        stage.engine.set_knobs({"paused": is_on, "draining": is_on}, "somebody")
        await stage.turn()
        await stage.press("ctrl+p")
        palette = stage.app.screen
        palette.query_one(Input).value = word
        commands = palette.query_one(CommandList)
        await until(lambda: any(title in str(one.prompt) for one in commands.options))


async def test_a_command_has_its_key_and_says_what_the_key_says(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"chat.new": "f20"}) as stage:
        commands = list(stage.app.get_system_commands(stage.deck))
        told = {command.title: command.help for command in commands}
        assert all(told.values())
        keys = {title: does.partition(" · ")[0] for title, does in told.items() if " · " in does}
        expected = {
            "New chat": "f20",
            "Settings of the chat…": "f5",
            "Saved prompts…": "alt+p",
            "Branch before": "alt+←",
            "Next branch": "alt+→",
            "Copy code": "y",
            "Copy message": "c",
            "Settings…": "f9",
            "Panel: Batch": "2",
        }
        assert expected.items() <= keys.items()
        assert not {"Theme…", "Copy chat", "Policy: orca"} & keys.keys()
        assert told["New chat"] == "f20 · Open an empty chat"
