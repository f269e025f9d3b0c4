"""Sending, stopping, asking again and reading in a chat of the deck."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events

from engine.api.client import LoadRequest
from engine.api.lifecycle import FinishReason
from engine.api.status import OffPath
from engine.api.waiting import Cause, Wait
from tests.app.screens.stage import REPLIES, Stage, staged


def titles(stage: Stage) -> list[str]:
    return [session.title for session in stage.sessions.sessions]


async def test_a_message_is_answered(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press(*"one", "enter")
        assert stage.prompt == ""
        assert "queued" in stage.transcript
        await stage.turn(2)
        assert "The first▍" not in stage.transcript  # the cursor is drawn, and is no text
        assert "The first" in stage.transcript
        assert "streaming · 2 tok" in stage.transcript
        await stage.finish()
        assert "The first reply." in stage.transcript
        assert "3 tok · ttft 20ms · 50 tok/s" in stage.transcript
        assert stage.store.messages(stage.sessions.current.key)[1].content == "The first reply."


async def test_the_header_is_as_fresh_as_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        for _ in range(2):
            await stage.turn()
            before = stage.engine.snapshot()
            monkeypatch.setattr(stage.engine, "snapshot", lambda kept=before: kept)
            await stage.turn(1)
            monkeypatch.undo()
            said = stage.deck.chat.transcript.text
            (prompt,) = stage.engine.prompts.values()
            came = stage.sessions.current.chat.num_output_tokens
            assert f"streaming · {came} tok" in said
            assert f"ctx {len(prompt) + came}/" in await stage.screen()
            assert "1 ● one" in await stage.screen()


async def test_a_full_context_says_what_to_do(tmp_path: Path) -> None:
    advice = "a new chat (^n) begins afresh"
    async with staged(tmp_path, lambda _: "word " * 1100, size=(160, 48)) as stage:
        await stage.send("one")
        await stage.finish()
        screen = await stage.screen()
        assert "… cut off" in screen
        assert "✓ done" not in screen
        assert "ctx 1,024/1,024 · full ─" in screen
        assert f"The context is full: {advice}." in screen
        assert "alt+c" not in screen
        stage.deck.action_run("chat.resume")
        await stage.turn()
        assert stage.toasts == ["The context is full: ^n opens a new chat."]
        stage.app.clear_notifications()
        await stage.send("two")
        assert stage.toasts == [
            "This message is 1 token; the context holds 1,024, and 1,024 of them are taken:"
            " shorten it or begin a new chat (^n)."
        ]
    async with staged(tmp_path, ready=False) as stage:
        # Nobody can count before a model is there.
        await stage.send("two")
        stage.engine.ready()
        await stage.turn()
        assert "> 1023 allowed" in stage.transcript
        said = " ".join(stage.transcript.split())
        assert f"; ^↑ e edits your message, and {advice}" in said


async def test_a_first_message_that_is_too_long_is_not_sent_to_a_new_chat(tmp_path: Path) -> None:
    async with staged(tmp_path, ready=False) as stage:
        await stage.send("one " * 1100)
        stage.engine.ready()
        await stage.turn()
        assert "> 1023 allowed" in stage.transcript
        screen = " ".join((await stage.screen()).split())
        assert "; ^↑ e edits" in screen
        assert "begins afresh" not in screen


async def test_keys_that_come_faster_than_the_screen_keep_their_order(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        keys = [*"one", "enter", "ctrl+n", *"two", "enter", *"draft", "left", "left", "x"]
        for key in keys:
            stage.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await stage.settle()
        assert titles(stage) == ["one", "two"]
        assert stage.prompt == "draxft"


async def test_escape_stops_the_reply_and_keeps_what_came(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(5)
        await stage.press("escape")
        await stage.turn()
        assert "stopped · alt+c continues it · 5 tok" in stage.transcript
        reply = stage.sessions.current.chat.messages[1]
        assert reply.finish_reason is FinishReason.ABORT
        assert reply.content.split() == ["word"] * 5


async def test_regenerate_asks_again_and_shows_the_new_reply_only(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        stage.deck.action_run("chat.regenerate")
        await stage.settle()
        assert stage.toasts == ["there is no reply yet to regenerate"]
        await stage.send("one")
        await stage.finish()
        old = stage.sessions.current.chat.messages[1]
        await stage.press("ctrl+r")
        assert "The first" not in stage.transcript
        await stage.finish()
        assert stage.transcript.count("The first reply.") == 1
        new = stage.sessions.current.chat.messages[1]
        assert new.id != old.id
        assert new.parent_id == old.parent_id


async def test_regenerate_leaves_what_is_being_written(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.chat.prompt.area.load_text("a draft")
        await stage.press("ctrl+r")
        assert stage.sessions.current.chat.is_busy
        assert stage.prompt == "a draft"


async def test_the_last_message_is_edited_or_left_as_it_was(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.chat.prompt.area.load_text("a draft")
        await stage.press("shift+tab", "e")
        assert stage.prompt == "one"
        await stage.press("escape")
        assert stage.prompt == "a draft"
        stage.deck.action_run("chat.edit")
        await stage.send("two")
        await stage.finish()
        assert [m.content for m in stage.sessions.current.chat.messages] == [
            "two",
            "The second reply.",
        ]


async def test_the_prompt_comes_on_view_for_an_edit(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        await stage.press("f2")
        assert "❯" not in await stage.screen()
        stage.deck.action_run("chat.edit")
        assert "❯ one" in await stage.screen()
        assert stage.deck.chat.prompt.area.has_focus


async def test_a_message_during_a_reply_is_refused_and_not_lost(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(2)
        await stage.send("two")
        assert stage.prompt == "two"
        assert stage.toasts == ["a reply is being generated; stop it first"]


async def test_what_is_sent_while_the_model_loads_waits_and_says_so(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, ready=False) as stage:
        assert "is being loaded" in await stage.screen()
        await stage.send("one")
        stage.engine.progress(30, 120)
        await stage.turn()
        assert "queued: scripted is being loaded, 25%" in stage.transcript
        stage.engine.ready()
        await stage.finish()
        assert "The first reply." in stage.transcript


async def test_history_comes_back_with_up(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        for text in ("one", "two"):
            await stage.send(text)
            await stage.finish()
        await stage.press(*"draft", "up")
        assert stage.prompt == "two"
        await stage.press("up", "up")
        assert stage.prompt == "one"
        await stage.press("down", "down")
        assert stage.prompt == "draft"


async def test_the_view_stays_where_one_reads_while_text_comes(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        transcript = stage.deck.chat.transcript
        await stage.send("lines")
        await stage.turn(200)
        assert transcript.is_vertical_scroll_end
        assert transcript.scroll_y == transcript.max_scroll_y > 0
        await stage.press("pageup")
        place = transcript.scroll_y
        assert not transcript.is_vertical_scroll_end
        await stage.turn(60)
        assert transcript.scroll_y == place
        assert transcript.num_new_rows == 30
        assert "30 new lines · End to follow" in await stage.screen()
        await stage.press("end")
        assert transcript.is_vertical_scroll_end
        assert transcript.scroll_y == transcript.max_scroll_y
        assert "new lines" not in await stage.screen()


async def test_sending_goes_back_to_the_end(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("lines")
        await stage.finish()
        await stage.press("pageup")
        assert not stage.deck.chat.transcript.is_vertical_scroll_end
        await stage.send("one")
        assert stage.deck.chat.transcript.is_vertical_scroll_end


async def test_copy_reply_and_code(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("code")
        await stage.finish()
        await stage.press("shift+tab", "y")
        assert stage.app.clipboard == "x = 1"
        await stage.press("c")
        assert stage.app.clipboard == REPLIES["code"]
        assert stage.toasts == [
            "Copied the code block, 5 characters.",
            f"Copied the reply, {len(REPLIES['code'])} characters.",
        ]


async def test_selected_text_is_copied(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        transcript = stage.deck.chat.transcript
        line = transcript.text.split("\n").index("  The first reply.")
        await stage.settle()
        await stage.pilot.mouse_down(transcript, offset=(7, line))
        await stage.pilot.hover(transcript, offset=(11, line))
        await stage.pilot.mouse_up(transcript, offset=(11, line))
        await stage.press("ctrl+c")
        assert stage.app.clipboard == "first"
        assert stage.toasts == ["Copied the selection, 5 characters."]


async def test_a_failed_reply_says_why_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(2)
        request_id = stage.engine.submissions[-1].request_id
        stage.engine.break_request(request_id, "the device ran out of memory")
        await stage.turn()
        assert "· failed" in stage.transcript
        assert "the device ran out of memory" in stage.transcript
        await stage.send("one")
        await stage.finish()
        assert "The first reply." in stage.transcript


async def test_the_pump_brings_text_by_itself(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, live=True) as stage:
        await stage.press(*"one", "enter")
        stage.engine.finish_all()
        async with asyncio.timeout(10):
            while "The first reply." not in stage.transcript:
                await stage.settle()


async def test_why_a_chat_waits_is_said_in_full(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(60, 24)) as stage:
        stage.engine.set_knobs({"draining": True}, "local")
        await stage.send("one")
        await stage.turn(1)
        view = next(iter(stage.deck.engine.views.values()))
        reason = "batch 1/8, until the batch before, whose longest reply is not done, has ended"
        waits = replace(view, wait=Wait(Cause.POLICY, of=reason))
        stage.deck.engine.views[view.request_id] = waits
        stage.deck.chat.update()
        text = " ".join((await stage.screen()).split())
        assert f"queued: {reason}" in text.replace("▍", "").replace("  ", " ")


async def test_what_is_off_the_fast_path_is_told_once_and_stays_in_the_strip(
    tmp_path: Path,
) -> None:
    embed = OffPath("embed", 576, 2, "differs from the model by 0.0039", 0.25)
    async with staged(tmp_path, size=(80, 24), ready=False) as stage:
        stage.engine.off = (embed,), ""
        stage.engine.ready()
        await stage.turn()
        assert stage.toasts == [
            "scripted is ready.",
            "scripted is not wholly on the fast path: torch computes 2 operations: embed of 576"
            " columns (2 operations, 25% of a decode step: differs from the model by 0.0039).",
        ]
        assert "◐ 2 ops off" in await stage.screen()
        await stage.pilot.resize_terminal(160, 48)
        assert "◐ 2 ops off ker" in await stage.screen()


async def test_the_line_above_the_prompt_says_what_the_weights_were_quantized_to(
    tmp_path: Path,
) -> None:
    """It is the only place where a small screen has the model's name."""
    load = LoadRequest("scripted", quantize="int8")
    async with staged(tmp_path, size=(80, 24), ready=False, load=load) as stage:
        stage.engine.ready()
        await stage.turn()
        assert stage.toasts == ["scripted is ready: int8, 98.9% equal best."]
        for size in ((80, 24), (120, 40), (160, 48)):
            await stage.pilot.resize_terminal(*size)
            assert "scripted · int8 98.9% · temp 0.7" in await stage.screen(), size
