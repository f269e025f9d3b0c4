"""Presets: settings of a chat under a name."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from app.screens.chats.chat_settings import ChatSettings
from app.screens.dialogs.dialog import Confirm, PickPreset
from app.store.database import StoreError
from engine.api.preset import Preset
from tests.app.screens.stage import Stage, staged

PIRATE = ChatSettings("You are a pirate.", {"temperature": 0.25})


def settings(stage: Stage) -> ChatSettings:
    return stage.sessions.current.settings


async def save(stage: Stage, name: str) -> None:
    stage.deck.action_run("save-settings-as-preset")
    await stage.settle()
    await stage.press(*name, "enter")


async def test_settings_are_saved_and_applied_to_another_chat(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.settings.configure(PIRATE)
        await save(stage, "pirate")
        await stage.press("ctrl+n", "alt+s")
        assert isinstance(stage.app.screen, PickPreset)
        screen = await stage.screen()
        assert "temperature 0.25 · system: You are a pirate." in screen
        assert "terse · models.toml" in screen
        await stage.press("enter")
        assert settings(stage) == PIRATE
        assert stage.toasts[-1] == "The preset pirate holds from the next turn."
        stage.deck.settings.configure(ChatSettings())
        assert stage.store.presets.all() == [Preset("pirate", PIRATE.system, PIRATE.sampling)]


async def test_one_of_the_model_is_applied_and_not_changed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press("alt+s", "d")
        await stage.turn()
        assert stage.toasts[-1].startswith("terse is one of models.toml")
        await stage.press("alt+s", "enter")
        assert settings(stage) == ChatSettings("Be brief.", {"temperature": 0.2})


async def test_another_under_the_same_name_is_asked_for(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await save(stage, "mine")
        stage.deck.settings.configure(PIRATE)
        await save(stage, "mine")
        assert isinstance(stage.app.screen, Confirm)
        await stage.press("escape")
        assert stage.store.presets.all() == [Preset("mine")]
        await save(stage, "mine")
        await stage.press("enter")
        assert stage.store.presets.all()[0].system == PIRATE.system


async def test_one_is_renamed_and_deleted(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for name in ("a", "b"):
            stage.store.presets.save(Preset(name, name))
        await stage.press("alt+s", "r", "ctrl+u", "c", "enter")
        assert [preset.name for preset in stage.store.presets.all()] == ["b", "c"]
        await stage.press("alt+s", "r", "ctrl+u", "c", "enter")
        assert isinstance(stage.app.screen, Confirm)
        await stage.press("enter")
        assert stage.store.presets.all() == [Preset("c", "b")]
        await stage.press("alt+s", "d")
        assert "Delete the preset c for good?" in await stage.screen()
        assert "New chats begin with it" not in await stage.screen()
        await stage.press("enter")
        assert stage.store.presets.all() == []


async def test_that_new_chats_begin_with_it_is_said_before_one_is_deleted(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.store.presets.save(Preset("a", "a"))
        stage.store.presets.set_default("a")
        await stage.press("alt+s", "d")
        screen = " ".join((await stage.screen()).split())
        assert "Delete the preset a for good? New chats begin with it." in screen


async def test_new_chats_begin_with_the_one_that_was_chosen(tmp_path: Path) -> None:
    async with staged(tmp_path, system="Be kind.") as stage:
        stage.store.presets.save(Preset("pirate", PIRATE.system, PIRATE.sampling))
        await stage.send("one")
        await stage.finish()
        assert settings(stage) == ChatSettings("Be kind.")
        await stage.press("alt+s", "n", "ctrl+n")
        assert settings(stage) == PIRATE
        assert "temp 0.25" in await stage.screen()
        await stage.send("two")
        await stage.finish()
        await stage.press("alt+s", "n", "ctrl+n")
        assert settings(stage) == ChatSettings("Be kind.")


async def test_a_preset_is_applied_by_a_line(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.deck.slash.run("/preset nope")
        await stage.turn()
        assert stage.toasts == ["There is no preset 'nope'; there are terse."]
        assert stage.prompt == "/preset nope"
        stage.deck.slash.run("/preset terse")
        assert settings(stage).system == "Be brief."
        stage.deck.slash.run("/preset")
        await stage.settle()
        assert isinstance(stage.app.screen, PickPreset)


async def test_one_that_is_not_kept_is_not_told_to_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        monkeypatch.setattr(stage.store, "save_settings", Mock(side_effect=StoreError("full")))
        assert stage.deck.settings.apply_preset("terse")
        await stage.turn()
        assert stage.toasts == ["full"]


async def test_without_a_preset_it_is_told_where_one_is_made(tmp_path: Path) -> None:
    async with staged(tmp_path, ready=False) as stage:
        await stage.press("alt+s")
        await stage.turn()
        way = "“Save settings as preset…” in the palette keeps these settings."
        assert stage.toasts == [f"There is no preset yet; {way}"]
