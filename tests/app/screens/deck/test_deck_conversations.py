"""Many conversations on the deck at once: opened, closed, kept."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from app.screens.dialogs.find_chat import FindChat
from tests.app.screens.stage import REPLIES, Stage, staged
from tests.widgets.hosting import burst


def titles(stage: Stage) -> list[str]:
    return [session.title for session in stage.sessions.sessions]


async def test_many_sessions_stream_and_only_one_is_on_view(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.press("ctrl+n")
        await stage.send("two")
        await stage.turn(2)
        first, second = stage.sessions.sessions
        assert first.unread
        assert not second.unread
        assert "The second" in stage.transcript
        assert "The first" not in stage.transcript
        await stage.press("alt+1")
        assert "The first" in stage.transcript
        assert not first.unread
        await stage.finish()
        assert [s.chat.messages[1].content for s in (first, second)] == [
            "The first reply.",
            "The second reply.",
        ]


async def test_sessions_are_switched_by_keys_and_clicks_and_keep_their_drafts(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        for text in ("one", "two"):
            await stage.send(text)
            await stage.finish()
            await stage.press("ctrl+n")
        await stage.press(*"draft")
        await stage.press("ctrl+pageup")
        assert "The second reply." in stage.transcript
        assert stage.prompt == ""
        await stage.press("ctrl+pagedown")
        assert stage.prompt == "draft"
        await stage.press("f4")
        assert stage.sessions.current.title == "one"
        await stage.press("alt+2")
        assert stage.sessions.current.title == "two"
        await stage.pilot.click(stage.deck.chat.bar, offset=(3, 0))
        await stage.settle()
        assert stage.sessions.current.title == "one"
        await stage.press("alt+9")
        assert stage.sessions.current.title == "one"


async def test_an_empty_conversation_is_not_opened_twice(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.press("ctrl+n", "ctrl+n")
        assert len(stage.sessions.sessions) == 1


async def test_close_keeps_the_conversation_and_the_list_finds_it(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        for text in ("one", "two"):
            await stage.send(text)
            await stage.finish()
            await stage.press("ctrl+n")
        await stage.press("alt+1", "ctrl+w")
        assert titles(stage) == ["two", "new chat"]
        assert stage.toasts == ["Closed “one”; f12 undoes, f3 finds it again."]
        assert [c.title for c in stage.store.conversations()] == ["one", "two"]
        assert [c.title for c in stage.store.conversations(open_only=True)] == ["two"]

        await stage.press("f3")
        await stage.turn()
        screen = stage.app.screen
        assert isinstance(screen, FindChat)
        assert screen.query_one(OptionList).option_count == 2
        await stage.press(*"ON")
        await stage.turn()
        await stage.press("enter")
        assert titles(stage) == ["two", "new chat", "one"]
        assert "The first reply." in stage.transcript


async def test_ctrl_w_deletes_a_word_before_it_closes_a_session(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        await stage.press(*"two", "space", *"words")
        await stage.press("ctrl+w")
        assert stage.prompt == "two "
        assert titles(stage) == ["one"]
        await stage.press("ctrl+w", "ctrl+w")
        assert titles(stage) == ["new chat"]


async def test_rename_and_delete(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.action_run("chat.rename")
        await stage.settle()
        assert stage.app.screen.query_one(Input).value == "one"
        await stage.press(*"name", "enter")
        assert titles(stage) == ["name"]
        assert [c.title for c in stage.store.conversations()] == ["name"]
        await stage.press("f8")
        assert titles(stage) == ["new chat"]
        assert stage.store.conversations() == []
        assert stage.toasts == ["“name” is deleted. f12 undoes."]
        await stage.press("f12")
        assert stage.sessions.current.title == "name"
        assert "The first reply." in stage.transcript


async def test_export_writes_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.action_run("export-chat-as-markdown")
        await stage.turn()
        (written,) = tmp_path.glob("one-*.md")
        text = written.read_text(encoding="utf-8")
        assert text.startswith("# one\n")
        assert "The first reply." in text
        assert stage.toasts == [f"Written to {written}"]


async def test_a_restart_brings_the_conversations_back(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        for text in ("one", "two", "code"):
            await stage.send(text)
            await stage.finish()
            await stage.press("ctrl+n")
        await stage.press("alt+2", "ctrl+w", "alt+1")
        await stage.send("two")
        await stage.finish()
    async with staged(tmp_path, REPLIES) as stage:
        assert titles(stage) == ["one", "code"]
        assert stage.sessions.current.title == "one"
        assert "The first reply." in stage.transcript
        assert "The second reply." in stage.transcript
        await stage.press("up")
        assert stage.prompt == "two"
        await stage.press("enter")
        await stage.finish()
        usage = stage.sessions.current.chat.messages[-1].usage
        assert usage is not None
        assert stage.engine.submissions[-1].context is not None


async def test_one_that_is_damaged_is_told_at_the_start(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        for text in ("one", "two"):
            await stage.send(text)
            await stage.finish()
            await stage.press("ctrl+n")
    with closing(sqlite3.connect(tmp_path / "batchdeck.db")) as db, db:
        db.execute("UPDATE conversation SET sampling = '{' WHERE title = 'one'")
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        assert titles(stage) == ["two"]
        assert f"E app    {tmp_path}"[:20] in await stage.screen()
        await stage.press("f3")
        await stage.turn()
        assert stage.app.screen.query_one(OptionList).option_count == 1


async def test_words_typed_right_after_the_key_are_those_to_find(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await burst(stage.app, "f3", *"hello")
        assert isinstance(stage.app.screen, FindChat)
        assert (stage.app.screen.query_one(Input).value, stage.prompt) == ("hello", "")
