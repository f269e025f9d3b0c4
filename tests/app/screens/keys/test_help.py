"""F1: it opens everywhere, and is about where one is."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.widgets import Static

from app.screens.dialogs.dialog import AskText
from app.screens.dialogs.find_chat import FindChat
from app.screens.keys.help import HelpScreen
from engine.api.glossary import GLOSSES
from engine.api.preset import Preset
from tests.app.screens.stage import REPLIES, Stage, staged
from widgets.panels.kv_map import KvMap


async def headings(stage: Stage) -> list[str]:
    """The headings of the help that is open, in order."""
    assert isinstance(stage.app.screen, HelpScreen)
    return [section.heading for section in stage.app.screen.sections]


async def test_it_lists_the_keys_as_they_are_now(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"chat.new": "f20"}, size=(120, 160)) as stage:
        await stage.press("f20", "f1")
        assert isinstance(stage.app.screen, HelpScreen)
        text = await stage.screen()
        assert "f20" in text
        assert "^n" not in text
        await stage.press("escape")
        assert stage.app.screen is stage.deck


async def test_the_palettes_key_is_among_them_and_can_be_another(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"app.palette": "f20"}, size=(120, 60)) as stage:
        await stage.press("f1")
        line = next(one for one in (await stage.screen()).splitlines() if "app.palette" in one)
        assert "f20" in line
        await stage.press("escape", "f20")
        assert isinstance(stage.app.screen, CommandPalette)


async def test_its_sentences_tell_keys_as_they_are_now(tmp_path: Path) -> None:
    keys = {
        "app.help": "f13",
        "panel.next": "f14",
        "view.leave": "f15",
        "chat.copy_selection": "f16",
        "app.settings": "f17",
        "dialog.cancel": "f18",
    }
    async with staged(tmp_path, keys=keys) as stage:
        await stage.press("f13")
        assert "f18 closes" in await stage.screen()
        notes = str(stage.app.screen.query_one(Static).content).splitlines()[-4:]
        assert notes[0].startswith("f13 shows first the keys of the focused place")
        assert notes[1].endswith("f14 leaves it, f15 returns.")
        assert notes[2].endswith("f16 copies a selection.")
        assert "the settings (f17)" in notes[3]


async def test_what_a_key_does_keeps_to_its_column(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 100)) as stage:
        await stage.press("f1")
        lines = (await stage.screen()).splitlines()
        at, line = next((at, line) for at, line in enumerate(lines) if "Undo closing" in line)
        column = line.index("Undo closing")
        assert line.index("chat.undo") == column + 28
        assert lines[at + 1][column:].startswith(("archiving", "deleting", "or deleting"))
        for name in ("chat.copy_selection", "app.suspend"):
            assert next(line for line in lines if name in line).index(name) == column + 28


async def test_it_opens_about_the_panel_that_has_the_focus(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        for keys, first in (
            ((), "Prompt"),
            (("f2", "1"), "Chats"),
            (("3",), "KV"),
            (("6",), "Knobs"),
        ):
            await stage.press(*keys, "f1")
            names = await headings(stage)
            assert names[0] == first
            assert "Everywhere" in names, first
            await stage.press("f1")


async def test_it_says_what_the_words_of_a_panel_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvMap, "GLOSS", {"zebra": "a block with stripes"})
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press("f2", "3", "f1")
        assert "zebra  a block with stripes" in await stage.screen()


async def test_it_opens_over_a_dialog_which_then_goes_on(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press("f3", "a", "f1")
        assert (await headings(stage))[0] == "Find chat"
        await stage.press("f1")
        assert isinstance(stage.app.screen, FindChat)
        await stage.press("escape")
        assert stage.app.screen is stage.deck


async def test_it_lists_the_keys_of_a_list_of_names_which_can_be_others(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"presets.rename": "f20"}) as stage:
        stage.store.presets.save(Preset("mine"))
        await stage.press("alt+s")
        assert "esc Close · d Delete · n New chats · f20 Rename" in await stage.screen()
        await stage.press("f1")
        assert (await headings(stage))[0] == "Pick preset"
        line = next(one for one in (await stage.screen()).splitlines() if "presets.rename" in one)
        assert "f20" in line
        await stage.press("f1", "f20")
        assert isinstance(stage.app.screen, AskText)


async def test_the_palette_does_not_open_over_a_dialog(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press("f3", "ctrl+p")
        assert isinstance(stage.app.screen, FindChat)


async def test_it_opens_over_the_palette(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press("ctrl+p", "f1")
        assert (await headings(stage))[0] == "Command palette"
        assert "letters  find a command by letters of its name" in await stage.screen()
        await stage.press("escape")
        assert isinstance(stage.app.screen, CommandPalette)


async def test_it_says_what_the_words_of_each_panel_mean(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(120, 40)) as stage:
        await stage.press("f2")
        for panel, words in (
            ("2", ("budget", "padding", "ended")),
            ("3", ("waste",)),
            ("4", ("TTFT", "TPOT", "ITL", "p99", "good", "preempted")),
            ("5", ("CPU", "RAM", "RSS", "lag")),
            ("8", ("live", "no token", "unacked")),
        ):
            await stage.press(panel, "f1")
            assert isinstance(stage.app.screen, HelpScreen), panel
            said = stage.app.screen.sections[0].words
            assert {word: said[word] for word in words} == {word: GLOSSES[word] for word in words}
            await stage.press("f1")


@pytest.mark.parametrize("size", [(80, 24), (60, 16)])
async def test_what_a_key_does_never_runs_into_its_name(
    size: tuple[int, int], tmp_path: Path
) -> None:
    async with staged(tmp_path, REPLIES, size=size) as stage:
        await stage.press("f1")
        assert isinstance(stage.app.screen, HelpScreen)
        lines = str(stage.app.screen.query_one(Static).content).splitlines()
        for section in stage.app.screen.sections:
            for _, _, name in section.keys:
                (line,) = [one for one in lines if one.endswith(f" {name}")]
                assert len(line) <= size[0] - 6


async def test_it_tells_of_commands_and_of_each_key_once(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 60)) as stage:
        await stage.press("f1")
        assert "/  a command or a saved prompt" in await stage.screen()
        assert isinstance(stage.app.screen, HelpScreen)
        keys = [key for section in stage.app.screen.sections for key, _, _ in section.keys]
        assert "+, +" not in keys


async def test_a_key_that_stands_for_a_group_on_the_bar_is_told_alone(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press("f2", "3", "f1")
        assert isinstance(stage.app.screen, HelpScreen)
        keys = {name: (key, does) for key, does, name in stage.app.screen.sections[0].keys}
        assert keys["kv.down"] == ("↓", "Block below")
