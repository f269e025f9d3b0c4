"""Slash commands and saved prompts, as the user types them."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input

from app.screens.dialogs.dialog import AskText, Confirm, PickNamed, PickPrompt
from app.screens.keys.help import HelpScreen
from engine.api.client import LoadRequest
from tests.app.screens.stage import Stage, staged
from tests.widgets.hosting import burst, settle


def offered(stage: Stage) -> bool:
    """Whether completions are offered for what is written."""
    return stage.deck.chat.prompt.area.offer() is not None


async def say(stage: Stage, text: str) -> None:
    """Write a line and press Enter, with the list of completions closed."""
    stage.deck.chat.prompt.area.load_text(text)
    await stage.turn()
    if offered(stage):
        await stage.press("escape")
    await stage.press("enter")
    await stage.turn()


async def test_each_command_of_the_palette_is_one_with_a_slash(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        names = {slash.name for slash in stage.deck.slash.all()}
        assert {
            "new-chat",
            "export-chat-as-markdown",
            "help",
            "load-model",
            "chat-or-engine",
        } <= names
        await stage.send("one")
        await stage.finish()
        await say(stage, "/new")
        assert len(stage.sessions.sessions) == 2
        assert stage.prompt == ""
        await say(stage, "/help")
        assert isinstance(stage.app.screen, HelpScreen)


async def test_settings_are_changed_by_a_line(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for line in ("/temperature 0.2", "/system Be brief.", "/thinking off", "/stop END"):
            await say(stage, line)
        settings = stage.sessions.current.settings
        assert settings.system == "Be brief."
        assert settings.sampling == {
            "temperature": 0.2,
            "chat_template_kwargs": {"enable_thinking": False},
            "stop": ["END"],
        }
        for line in ("/temperature", "/system", "/thinking", "/stop"):
            await say(stage, line)
        settings = stage.sessions.current.settings
        assert (settings.system, settings.sampling) == ("", {"chat_template_kwargs": {}})
        assert stage.toasts == []


WRONG = [
    ("/temperature hot", "temperature is 'hot'; it must be a number from 0 to 100"),
    ("/thinking maybe", "thinking is 'maybe'; it must be on or off"),
    ("/exprt", "/exprt is neither a command nor a saved prompt; close to it are /export-"),
    (
        "/tempo 1",
        "/tempo is neither a command nor a saved prompt; close to it are /temperature",
    ),
    ("/import /none", "/none is not a file; chats are imported from JSON."),
    ("/new-chat now", "/new-chat takes no text after it."),
    ("/attach /none", "/none is not a file; a text file can be attached"),
    ("/model", "/model needs a name, a folder, a file or a hub id."),
    ("/save", "A prompt cannot be called '': a name has up to 40 letters"),
    ("/save new-chat x", "/new-chat is a command; choose another name."),
    ("/save mine", "There is no text to save yet."),
]


async def test_what_is_wrong_is_said_and_the_line_stays(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for line, sentence in WRONG:
            await say(stage, line)
            (toast,) = stage.toasts
            assert toast.startswith(sentence)
            assert stage.prompt == line
            assert stage.engine.submissions == [], line
            stage.app.clear_notifications()


async def test_the_line_is_back_where_a_file_is_none_of_chats(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    async with staged(tmp_path) as stage:
        await say(stage, f"/import {tmp_path}/a.json")
        await stage.turn()
        (toast,) = stage.toasts
        assert "it is not a file of chats" in toast
        assert stage.prompt == f"/import {tmp_path}/a.json"


async def test_attach_asks_for_a_path_that_is_not_there(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await say(stage, "/attach")
        assert isinstance(stage.app.screen, AskText)
        assert stage.toasts == []


async def test_enter_runs_a_name_that_is_written_whole(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for line in ("/import", "/attach", "/rename"):
            await stage.press(*line)
            assert offered(stage), line
            await stage.press("enter")
            assert isinstance(stage.app.screen, AskText), line
            assert stage.prompt == "", line
            await stage.press("escape")


async def test_enter_takes_another_that_is_gone_to(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press(*"/export-chat-as-", "down", "enter")
        await stage.turn()
        assert stage.prompt == ""
        assert stage.toasts == ["This chat has no message to copy yet."]


async def test_a_path_is_completed_until_it_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.md").write_text("One.")
    (tmp_path / "nothing.md").touch()
    async with staged(tmp_path) as stage:
        await stage.press(*"/attach ")
        assert not offered(stage)
        await stage.press(*"no", "enter")
        assert (stage.prompt, offered(stage)) == ("/attach notes/", True)
        await stage.press("enter")
        assert stage.prompt == ""
        assert [one.text for one in stage.deck.chat.composer.attachments] == ["One."]
        await stage.press(*"/import notes/one.md")
        assert not offered(stage)


async def test_two_slashes_write_one(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await say(stage, "//etc/hosts is what?")
        await stage.finish()
        assert stage.engine.submissions[0].messages[0].content == "/etc/hosts is what?"
        await stage.press("up")
        assert stage.prompt == "//etc/hosts is what?"
        stage.deck.chat.prompt.area.load_text("")
        stage.deck.action_run("chat.edit")
        assert stage.prompt == "//etc/hosts is what?"


async def test_a_prompt_is_saved_inserted_edited_and_deleted(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await say(stage, "/save review\nReview this:\nline by line")
        await say(stage, "/review")
        assert stage.prompt == "Review this:\nline by line"
        assert stage.engine.submissions == []
        stage.deck.chat.prompt.area.load_text("")
        await stage.press("alt+p")
        assert isinstance(stage.app.screen, PickPrompt)
        await stage.press("e")
        assert stage.prompt == "/save review\nReview this:\nline by line"
        await say(stage, "/save review Review it.")
        assert isinstance(stage.app.screen, Confirm)
        assert stage.store.prompts.all() == {"review": "Review this:\nline by line"}
        await stage.press("escape")
        assert stage.prompt == "/save review\nReview it."
        await say(stage, stage.prompt)
        await stage.press("enter")
        assert stage.store.prompts.all() == {"review": "Review it."}
        await stage.press("alt+p", "enter")
        assert stage.prompt == "Review it."
        await stage.press("alt+p", "d", "enter")
        assert stage.store.prompts.all() == {}
        app_toasts = stage.toasts
        await stage.press("alt+p")
        await stage.turn()
        assert stage.toasts != app_toasts
        assert stage.toasts[-1].startswith("No prompt is saved")


async def test_without_a_text_the_last_message_is_saved(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.send("Sum it up.")
        await stage.finish()
        await say(stage, "/save sum")
        assert stage.store.prompts.all() == {"sum": "Sum it up."}


async def test_what_is_written_is_saved_from_the_palette(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.deck.chat.prompt.area.load_text("Sum it up.")
        stage.deck.action_run("save-prompt-as")
        await stage.settle()
        await stage.press(*"sum", "enter")
        assert stage.store.prompts.all() == {"sum": "Sum it up."}
        assert stage.prompt == "Sum it up."


async def test_what_slashes_do_is_read_to_its_end_beside_the_engine(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        await stage.press("slash")
        screen = await stage.screen()
        first = stage.deck.slash.all()[:6]
        assert [slash.does for slash in first if f" {slash.does} " not in screen] == []


async def test_a_slash_is_completed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press("/", *"tem")
        assert "▸ /temperature VALUE" in await stage.screen()
        await stage.press("tab")
        assert stage.prompt == "/temperature "
        assert not offered(stage)
        await stage.press(*"0.5", "enter")
        assert stage.sessions.current.settings.sampling == {"temperature": 0.5}
        await stage.press("/", *"top", "down", "enter")
        assert stage.prompt == "/top_p "


async def test_enter_runs_what_takes_nothing_and_escape_leaves_the_text(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.send("one")
        await stage.finish()
        await stage.press("/", *"ne", "escape")
        assert (stage.prompt, offered(stage)) == ("/ne", False)
        await stage.press("w", "enter")
        await stage.turn()
        assert len(stage.sessions.sessions) == 2
        assert stage.prompt == ""


async def test_a_model_and_a_search_are_asked_for_by_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.system.machine.kernels", object)  # there are some
    async with staged(tmp_path) as stage:
        await say(stage, "/model nope")
        assert "nope" in stage.toasts[-1]
        await say(stage, "/model qwen3-0.6b")
        assert stage.engine.loads[-1].model == "qwen3-0.6b"
        await say(stage, "/model qwen3-0.6b int8")
        assert stage.engine.loads[-1] == LoadRequest("qwen3-0.6b", quantize="int8")
        await say(stage, "/quantize-weights-int4")
        assert stage.engine.loads[-1] == LoadRequest("qwen3-0.6b", quantize="int4")
        await say(stage, "/search kafka essay")
        await stage.settle()
        assert stage.app.screen.query_one(Input).value == "kafka essay"


async def test_keys_that_come_faster_than_what_they_offer_keep_their_order(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await burst(stage.app, "slash", *"tem", "tab", *"0.5", "enter")
        assert stage.sessions.current.settings.sampling == {"temperature": 0.5}
        await burst(stage.app, "slash", *"te", *"mperature", "space", *"0.25", "enter")
        assert stage.sessions.current.settings.sampling == {"temperature": 0.25}


async def test_a_click_takes_a_completion(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press("/", *"top")
        await stage.screen()
        await stage.pilot.click(stage.deck.chat.prompt.completions, offset=(4, 1))
        assert stage.prompt == "/top_p "


async def test_alt_with_a_letter_is_no_letter_of_the_prompt(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.store.prompts.save("sum", "Sum it up.")
        for key, letter in (("alt+p", "p"), ("alt+s", "s")):
            stage.app.post_message(events.Key(key, letter))  # as a terminal sends it
            await settle(stage.app)
            assert isinstance(stage.app.screen, PickNamed)
            await stage.press("escape")
        assert stage.prompt == ""


async def test_prompts_are_read_once_for_a_slash_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path) as stage:
        prompts, reads = stage.store.prompts, list[str]()
        prompts.save("haiku", "Write a haiku.")
        read = prompts.all
        monkeypatch.setattr(prompts, "all", lambda: reads.append(stage.prompt) or read())
        await stage.press(*"/hai")
        assert offered(stage)
        assert reads == ["/"]
        await stage.press(*4 * ["backspace"])
        await stage.press("/")
        assert reads == ["/", "/"]


async def test_what_is_told_of_a_mistake_goes_with_the_next_thing_that_is_sent(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path) as stage:
        await say(stage, "/nothing")
        await say(stage, "/temperature hot")
        (told,) = stage.toasts
        assert "temperature" in told
        await say(stage, "/temperature 0.5")
        assert stage.toasts == []
