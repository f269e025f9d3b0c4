"""The settings of a chat: the line above the prompt, and the dialog that changes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from textual.widgets import Label

from app.screens.dialogs.edit_settings import EditSettings
from engine.api.client import LoadRequest
from engine.api.sampling import SAMPLING_SPECS
from tests.app.screens.stage import Stage, staged
from tests.support.linked import until
from tests.support.scripted_core import BASE
from tests.widgets.hosting import burst, screen
from widgets.chat.prompt_head import PromptHead


async def dialog_of(stage: Stage) -> EditSettings:
    await stage.press("f5")
    dialog = stage.app.screen
    assert isinstance(dialog, EditSettings)
    return dialog


def faults(dialog: EditSettings) -> list[str]:
    shown = dialog.query(".fault.-shown").results(Label)
    return [str(label.content) for label in shown]


async def head(stage: Stage) -> str:
    return next(row for row in (await stage.screen()).splitlines() if "temp" in row)


async def test_the_command_line_s_settings_are_on_screen(tmp_path: Path) -> None:
    """Finding 6."""
    settings = {"system": "You are a pirate.", "sampling": {"temperature": 0.2}}
    async with staged(tmp_path, **settings) as stage:
        assert "scripted · temp 0.2 (config) · system: You are a pirate. ─" in await head(stage)


async def test_defaults_of_chats_are_on_screen_with_their_source(tmp_path: Path) -> None:
    async with staged(tmp_path, load=LoadRequest(BASE)) as stage:
        shown = "base · completion · temp 0.7, top_p 0.95, min_p 0.05 (batch…"
        assert shown in await stage.screen()
        await dialog_of(stage)
        screen = await stage.screen()
        assert "default 0.95 · batchdeck's, for chats" in screen
        assert "default 0 · the engine's" in screen


async def test_changed_settings_count_from_the_next_turn_and_are_kept(tmp_path: Path) -> None:
    async with staged(tmp_path, {"one": "The first reply."}) as stage:
        await stage.send("one")
        await stage.finish()
        dialog = await dialog_of(stage)
        dialog.system.load_text("Be brief.")
        dialog.fields["temperature"].value = "0.25"
        dialog.fields["top_k"].value = "3"
        dialog.fields["enable_thinking"].value = "off"
        await stage.press("enter")
        assert "temp 0.25, thinking off, top_k 3 (this chat)" in await head(stage)
        await stage.send("two")
        await stage.finish()
        first, second = stage.engine.submissions
        assert (first.sampling, first.messages[0].role) == ({}, "user")
        assert second.sampling == {
            "temperature": 0.25,
            "top_k": 3,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        assert (second.messages[0].content, second.context) == ("Be brief.", None)
    async with staged(tmp_path, size=(140, 40)) as stage:
        assert "temp 0.25, thinking off, top_k 3 (this chat) · system: Be br…" in await head(stage)
        dialog = await dialog_of(stage)
        assert dialog.system.text == "Be brief."
        assert dialog.fields["temperature"].value == "0.25"
        assert dialog.fields["enable_thinking"].value == "off"
        assert dialog.fields["chat_template_kwargs"].value == ""


WRONG = [
    ("temperature", "hot", "temperature is 'hot'; it must be a number from 0 to 100"),
    ("top_k", "-2", "top_k is -2; it must be an integer from 0 to 2147483647"),
    ("enable_thinking", "maybe", "thinking is 'maybe'; it must be on or off"),
    ("ignore_eos", "1", "ignore_eos is 1; it must be true or false"),
    ("stop_token_ids", "x", "stop_token_ids is 'x'; it must be a list of token ids"),
    ("min_tokens", "9", "min_tokens is 9; it must be at most max_tokens (5)"),
]


async def test_a_wrong_value_is_said_beside_it_and_nothing_is_lost(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        dialog = await dialog_of(stage)
        dialog.fields["seed"].value = "7"
        dialog.fields["max_tokens"].value = "5"
        for name, value, sentence in WRONG:
            dialog.fields[name].value = value
            await stage.press("ctrl+s")
            assert faults(dialog) == [f"! {sentence}"]
            assert stage.app.focused is dialog.fields[name], name
            assert dialog.fields["seed"].value == "7", name
            assert stage.sessions.current.settings.sampling == {}, name
            dialog.fields[name].value = ""
        await stage.press("ctrl+s")
        assert stage.sessions.current.settings.sampling == {"seed": 7, "max_tokens": 5}


async def test_the_system_prompt_has_as_many_lines_while_it_is_written(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        dialog = await dialog_of(stage)
        lines = dialog.system.content_size.height
        dialog.system.focus()
        await stage.screen()
        assert dialog.system.content_size.height == lines == 4


async def test_the_field_that_is_written_in_is_on_view(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(80, 24)) as stage:
        dialog = await dialog_of(stage)
        assert "tools " not in await stage.screen()
        dialog.fields["tools"].focus()
        await until(lambda: "tools " in "\n".join(screen(stage.app)))


async def test_the_field_that_is_written_in_says_what_it_means_and_so_does_help(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, size=(80, 40)) as stage:
        dialog = await dialog_of(stage)
        assert SAMPLING_SPECS["temperature"].meaning in await stage.screen()
        await stage.press("down")
        assert SAMPLING_SPECS["top_k"].meaning in await stage.screen()
        await stage.press("f1")
        assert "seed  start value of the random numbers" in await stage.screen()
        await stage.press("f1", "up", "up")
        assert stage.app.focused is dialog.fields["enable_thinking"]
        assert "whether the model thinks before it answers" in await stage.screen()


async def test_up_and_down_go_between_the_system_prompt_and_the_fields(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        dialog = await dialog_of(stage)
        dialog.system.load_text("one\ntwo")
        await stage.press("up", "up")
        assert stage.app.focused is dialog.system
        assert "what the model reads before all messages" in await stage.screen()
        await stage.press("down", "down")
        assert stage.app.focused is dialog.system
        await stage.press("down")
        assert stage.app.focused is dialog.fields["enable_thinking"]
        for _ in dialog.fields:
            await stage.press("down")
        assert stage.app.focused is dialog.fields["enable_thinking"]


async def test_reset_takes_the_complaints_away_too(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        dialog = await dialog_of(stage)
        dialog.fields["top_p"].value = "2"
        await stage.press("ctrl+s")
        assert len(faults(dialog)) == 1
        await stage.press("ctrl+r")
        assert faults(dialog) == []


async def test_reset_goes_back_to_the_defaults_and_escape_to_what_was(tmp_path: Path) -> None:
    async with staged(tmp_path, system="Be kind.", sampling={"top_p": 0.5}) as stage:
        dialog = await dialog_of(stage)
        text = await stage.screen()
        assert "default 0.7 · models.toml" in text
        assert "default 0.5 · command line or config" in text
        dialog.system.load_text("Be brief.")
        dialog.fields["top_p"].value = "0.9"
        await stage.press("ctrl+r")
        assert (dialog.system.text, dialog.fields["top_p"].value) == ("Be kind.", "")
        dialog.fields["top_p"].value = "0.9"
        await stage.press("escape")
        assert stage.sessions.current.settings.sampling == {}


async def test_thinking_is_greyed_where_the_template_has_no_switch(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        card = stage.deck.engine.card
        assert card is not None
        assert not (await dialog_of(stage)).fields["enable_thinking"].disabled
        await stage.press("escape")
        defaults = stage.sessions.defaults(replace(card, switches_thinking=False))
        dialog = EditSettings(stage.sessions.current.settings, defaults, "")
        await stage.app.push_screen(dialog)
        assert dialog.fields["enable_thinking"].disabled
        assert "the chat template has no such switch" in await stage.screen()


async def test_a_click_on_the_line_opens_the_dialog(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.pilot.click(PromptHead)
        assert isinstance(stage.app.screen, EditSettings)


async def test_what_is_typed_right_after_the_key_is_typed_into_the_dialog(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await burst(stage.app, "f5", *"0.7", "enter")
        assert stage.sessions.current.settings.sampling == {"temperature": 0.7}
        assert (stage.prompt, stage.engine.submissions) == ("", [])


async def test_its_keys_are_told_as_they_are_bound(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"settings.apply": "f20", "dialog.cancel": "f19"}) as stage:
        await dialog_of(stage)
        told = "Enter or f20 applies · ^r resets all · f19 changes nothing"
        assert told in await stage.screen()
