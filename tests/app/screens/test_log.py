"""The log on the screen: it names chats as the screen does, and leads to them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from app.screens.feeds.alerts import Alert
from engine.api.client import ChatMessage, Submission
from engine.api.origin import Origin
from tests.app.screens.stage import staged
from widgets.panels.log_line import Level


async def test_lines_name_chats_and_enter_goes_there(tmp_path: Path) -> None:
    """Review, 8."""
    async with staged(tmp_path, size=(160, 48)) as stage:
        await stage.send("one")
        await stage.finish()
        await stage.press("ctrl+n")
        await stage.send("two")
        await stage.finish()
        screen = await stage.screen()
        assert "admit 1 one: " in screen
        assert "finish 2 two: 3 tok, stop" in screen
        await stage.press("f2", "7", "home")
        log = stage.deck.panels.log
        assert log.current is not None
        assert "admit 1 one" in log.current.text
        await stage.press("enter")
        assert stage.sessions.current.title == "one"
        assert stage.deck.chat.prompt.area.has_focus


async def test_requests_are_named_before_the_figures_tell_of_them(tmp_path: Path) -> None:
    async with staged(tmp_path, mqtt=True, size=(160, 48)) as stage:
        before = stage.engine.snapshot()
        with patch.object(stage.engine, "snapshot", lambda: before):
            await stage.send("one")
            stage.gateway.ask("alice", "", "long")
            await stage.turn(4)  # the first one has ended by then
        assert "admit 1 one, A @alice long: " in await stage.screen()


async def test_a_line_about_no_chat_leads_nowhere(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        stage.engine.set_knobs({"max_num_seqs": 4}, "somebody")
        await stage.turn()
        await stage.press("f2", "7", "up", "enter")
        assert stage.toasts[-1] == "This belongs to no chat on the screen."


async def test_an_alert_that_is_over_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        caplog.set_level("INFO", "app.screens.pump")
        alerts = [Alert("kv", "KV cache in use: 96%, limit 95%", is_over=o) for o in (False, True)]
        with patch.object(stage.deck.pump.alerts, "check", lambda *_: alerts):
            await stage.turn()
        await stage.turn()
        lines = stage.deck.panels.log.lines
        assert [(line.level, line.text.partition(":")[0]) for line in lines] == [
            (Level.WARNING, "alert"),
            (Level.INFO, "alert is over"),
        ]


async def test_a_refused_request_is_in_the_log(tmp_path: Path) -> None:
    """Review, 8: an over-long request left no line."""
    async with staged(tmp_path, size=(160, 48)) as stage:
        messages = (ChatMessage("user", "word " * 30_000),)
        mine = Origin(conversation=stage.sessions.current.key)
        stage.engine.submit(Submission(messages=messages, origin=mine))
        # One that comes from elsewhere is named by its id.
        stage.engine.submit(Submission(messages=messages, request_id="far"))
        await stage.turn()
        first, second = stage.deck.panels.log.lines
        assert first.text.startswith("refuse 1 new chat: the prompt is too long: 30")
        assert first.chat == mine.conversation
        assert second.text.startswith("refuse request far: the prompt is too long: 30")
        assert "W engine refuse 1 new chat: the prompt is" in await stage.screen()
