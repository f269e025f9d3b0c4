"""Chats on the screen are closed, archived, deleted and restored."""

from __future__ import annotations

from pathlib import Path

from engine.api.lifecycle import FinishReason
from tests.app.screens.stage import REPLIES, Stage, staged


def titles(stage: Stage) -> list[str]:
    return [session.title for session in stage.sessions.sessions]


async def chats(stage: Stage, *texts: str) -> None:
    """A chat of one turn for each text."""
    for text in texts:
        await stage.press("ctrl+n")
        await stage.send(text)
        await stage.finish()


async def test_what_was_done_to_chats_is_undone_one_by_one(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await chats(stage, "one", "two", "code")
        await stage.press("alt+1", "ctrl+w")
        await stage.press("alt+1", "f7")
        await stage.press("alt+1", "f8")
        assert titles(stage) == ["new chat"]
        assert [c.title for c in stage.store.conversations() if not c.is_archived] == ["one"]
        for title in ("code", "two", "one"):
            await stage.press("f12")
            assert stage.sessions.current.title == title
        kept = stage.store.conversations()
        assert [c.title for c in kept if c.is_open and not c.is_archived] == ["one", "two", "code"]
        stage.app.clear_notifications()
        await stage.press("f12")
        assert stage.toasts == ["There is no change of a chat to undo."]


async def test_a_chat_in_which_something_is_written_is_kept_as_others_are(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press(*"Dear", "f6")
        await stage.settle()
        stage.deck.drafts.store()
        await stage.press(*"Letter", "enter")
        assert [chat.title for chat in stage.store.conversations()] == ["Letter"]
        stage.deck.action_run("chat.close")
        await stage.turn()
        assert "Closed “Letter”" in stage.toasts[-1]
        await stage.press("f12")
        assert (stage.sessions.current.title, stage.prompt) == ("Letter", "Dear")


async def test_a_chat_keeps_its_number_when_its_deletion_is_undone(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await chats(stage, "one", "two")
        await stage.press("alt+1")
        number = stage.sessions.current.chat.conversation.number
        await stage.press("f8", "ctrl+n", "f12")
        assert stage.sessions.current.chat.conversation.number == number


async def test_deleting_stops_the_reply_and_says_so(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(5)
        await stage.press("f8")
        assert stage.toasts == ["“long” is deleted; its reply was stopped. f12 undoes."]
        await stage.press("f12")
        message = stage.sessions.current.chat.messages[-1]
        assert message.finish_reason is FinishReason.ABORT
        assert message.content.startswith("word word")


async def test_what_is_gone_for_good_is_said_to_be(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await chats(stage, "one")
        key = stage.sessions.current.key
        await stage.press("f8")
        stage.store.free_id(key)
        stage.app.clear_notifications()
        await stage.press("f12")
        assert stage.toasts == ["“one” is gone for good."]


async def test_an_archived_chat_is_out_of_the_way_until_it_is_taken_back(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await chats(stage, "one", "two")
        key = stage.sessions.current.key
        await stage.press("f7")
        assert titles(stage) == ["one"]
        assert stage.toasts == ["“two” is archived. f12 undoes."]
    async with staged(tmp_path, REPLIES) as stage:
        assert titles(stage) == ["one"]
        stage.deck.chats.open(key)
        await stage.press("f7")
        assert stage.toasts == ["“two” is back from the archive. f12 undoes."]
        assert titles(stage) == ["one", "two"]
        assert not any(c.is_archived for c in stage.store.conversations())
