"""What the palette offers, and the keys beside it."""

from __future__ import annotations

from pathlib import Path

from tests.app.screens.stage import staged


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
