"""Escape stops a reply, or closes something else first."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import OptionList

from engine.api.lifecycle import FinishReason
from tests.app.screens.stage import REPLIES, Stage, staged


async def _streaming(stage: Stage) -> None:
    await stage.send("long")
    await stage.turn(3)


def _goes_on(stage: Stage) -> bool:
    return stage.sessions.current.chat.is_busy


async def test_an_escape_more_than_it_takes_to_leave_stops_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _streaming(stage)
        for opened in ("ctrl+p", "f1", "f3"):
            await stage.press(opened, "escape")
            assert stage.app.screen is stage.deck, opened
            await stage.bar("esc", shown=False)
            await stage.press("escape")
            await stage.turn(1)
            assert _goes_on(stage), opened
            await stage.bar("esc Stop")
        await stage.press("escape")
        await stage.turn(1)
        assert not _goes_on(stage), "it is meant now"


async def test_an_escape_more_than_it_takes_to_leave_a_panel_stops_nothing(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await _streaming(stage)
        await stage.press("f2", "6", "escape", "escape")
        await stage.turn(1)
        assert _goes_on(stage)
        assert stage.deck.chat.prompt.area.has_focus


@pytest.mark.parametrize("size", [(120, 40), (160, 48)])
async def test_escape_goes_back_to_the_table_that_brought_the_chat(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with staged(tmp_path, REPLIES, size=size) as stage:
        await _streaming(stage)
        await stage.press("f2", "1", "home", "enter")
        await stage.turn(1)
        assert stage.deck.chat.prompt.area.has_focus
        await stage.bar("esc Back")
        await stage.press("escape")
        assert stage.deck.panels.table.has_focus
        assert _goes_on(stage)
        await stage.press("enter", "a")
        await stage.turn(1)
        await stage.press("escape")
        await stage.turn(1)
        assert not _goes_on(stage), "who writes in the chat has come to stay"


async def test_the_key_bar_names_escape_where_it_does_something(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.bar("esc", shown=False)
        await _streaming(stage)
        await stage.bar("esc Stop")
        await stage.finish()
        await stage.bar("esc", shown=False)


async def test_the_palette_stops_a_reply_and_says_where_there_is_none(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _streaming(stage)
        stage.deck.action_run("chat.stop")
        await stage.turn(1)
        assert not _goes_on(stage)
        stage.deck.action_run("chat.stop")
        await stage.turn()
        assert stage.toasts == ["There is no reply to stop."]


async def test_the_reply_of_a_closed_chat_goes_on_and_is_kept(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _streaming(stage)
        key = stage.sessions.current.key
        await stage.press("ctrl+w")
        assert stage.toasts == [
            "Closed “long”; its reply continues, f12 undoes, f3 finds it again."
        ]
        assert stage.sessions.current.title == "new chat"
        assert not stage.store.conversations(open_only=True)
        await stage.turn(2)
        await stage.press("f3")
        await stage.turn()
        (line,) = stage.app.screen.query_one(OptionList).options
        assert "runs" in str(line.prompt)
        await stage.press("escape")
        await stage.finish()
        reply = stage.store.messages(key)[1]
        assert reply.finish_reason is FinishReason.STOP
        assert len(reply.content.split()) == 400
        assert not stage.sessions.closed
        assert stage.toasts[-1] == "The reply in “long” is there; f3 finds the chat."


async def test_a_closed_chat_is_opened_in_the_midst_of_its_reply(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _streaming(stage)
        key = stage.sessions.current.key
        await stage.press("ctrl+w")
        await stage.turn(2)
        stage.deck.chats.open(key)
        await stage.turn(1)
        assert _goes_on(stage)
        assert "streaming · 6 tok" in stage.transcript
        assert [c.id for c in stage.store.conversations(open_only=True)] == [key]


async def test_a_closed_chat_that_is_deleted_ends(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _streaming(stage)
        await stage.press("f8")
        await stage.turn(1)
        assert not stage.sessions.num_busy
        assert stage.store.conversations() == []
        snapshot = stage.engine.snapshot()
        assert snapshot is not None
        assert [r.finish_reason for r in snapshot.requests] == [FinishReason.ABORT]


async def test_who_quits_is_told_of_the_replies_that_end(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _streaming(stage)
        closed = stage.sessions.current.key
        await stage.press("ctrl+w")
        await _streaming(stage)
        open_one = stage.sessions.current.key
        await stage.app.action_quit()
        await stage.app.workers.wait_for_complete()
        assert (
            stage.toasts[-1] == "Stopping 2 replies; their text so far is kept. Ending the engine…"
        )
        for key in (closed, open_one):
            reply = stage.store.messages(key)[1]
            assert reply.finish_reason is FinishReason.ABORT
            assert reply.content.startswith("word word word")
