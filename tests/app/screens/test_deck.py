from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input, OptionList
from textual.widgets._footer import FooterKey

from app.screens.dialogs import PickConversation, PickPolicy
from app.screens.help import HelpScreen
from app.screens.policies import policy_meanings
from engine.request import FinishReason
from tests.app.screens.stage import Stage, staged
from tests.support.scripted_engine import POLICIES
from widgets.session_table import SessionTable

REPLIES = {
    "one": "The first reply.",
    "two": "The second reply.",
    "code": "Here:\n\n```python\nx = 1\n```\n\nThat is all.",
    "long": "word " * 400,
    "lines": "".join(f"line {n}  \n" for n in range(200)),
}


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
        assert "3 tok · ttft 20.0ms · tpot 20.0ms" in stage.transcript
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
        assert f"ctx 1,024/1.0k · full: {advice}" in screen
        await stage.send("two")
        await stage.finish()
        assert "at most 1023 fit" in stage.transcript
        assert advice in " ".join(stage.transcript.split())


async def test_a_first_message_that_is_too_long_is_not_sent_to_a_new_chat(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one " * 1100)
        await stage.finish()
        assert "at most 1023 fit" in stage.transcript
        assert "begins afresh" not in await stage.screen()


async def test_keys_that_come_faster_than_the_screen_keep_their_order(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        keys = [*"one", "enter", "ctrl+n", *"two", "enter", *"draft", "left", "left", "x"]
        for key in keys:
            stage.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await stage.pilot.pause()
        assert titles(stage) == ["one", "two"]
        assert stage.prompt == "draxft"


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
        await stage.pilot.pause()
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
        assert stage.toasts == ["Closed “one”; F3 finds it again."]
        assert [c.title for c in stage.store.conversations()] == ["one", "two"]
        assert [c.title for c in stage.store.conversations(open_only=True)] == ["two"]

        await stage.press("f3")
        screen = stage.app.screen
        assert isinstance(screen, PickConversation)
        assert screen.query_one(OptionList).option_count == 2
        await stage.press(*"ON", "enter")
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


async def test_closing_stops_the_reply(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(5)
        key = stage.sessions.current.key
        await stage.press("ctrl+w")
        message = stage.store.messages(key)[1]
        assert message.finish_reason is FinishReason.ABORT
        assert message.content == "word " * 4 + "word"


async def test_rename_and_delete(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.action_rename()
        await stage.pilot.pause()
        assert stage.app.screen.query_one(Input).value == "one"
        await stage.press(*"name", "enter")
        assert titles(stage) == ["name"]
        assert [c.title for c in stage.store.conversations()] == ["name"]
        stage.deck.action_delete()
        await stage.pilot.pause()
        assert "Delete “name” for good?" in await stage.screen()
        await stage.press("escape")
        assert titles(stage) == ["name"]
        stage.deck.action_delete()
        await stage.pilot.pause()
        await stage.press("enter")
        assert titles(stage) == ["new chat"]
        assert stage.store.conversations() == []


async def test_escape_stops_the_reply_and_keeps_what_came(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(5)
        await stage.press("escape")
        await stage.turn()
        assert "stopped · 5 tok" in stage.transcript
        reply = stage.sessions.current.chat.messages[1]
        assert reply.finish_reason is FinishReason.ABORT
        assert reply.content.split() == ["word"] * 5


async def test_regenerate_asks_again_and_shows_the_new_reply_only(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press("ctrl+r")
        assert stage.toasts == ["there is no reply yet to make anew"]
        await stage.send("one")
        await stage.finish()
        old = stage.sessions.current.chat.messages[1]
        await stage.press("ctrl+r")
        assert "The first" not in stage.transcript
        await stage.finish()
        assert stage.transcript.count("The first reply.") == 1
        new = stage.sessions.current.chat.messages[1]
        assert new.id != old.id
        assert stage.engine.submissions[-1].parent == old.request_id


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
        stage.deck.action_edit_last()
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
        stage.deck.action_edit_last()
        assert "❯ one" in await stage.screen()
        assert stage.deck.chat.prompt.area.has_focus


async def test_a_message_during_a_reply_is_refused_and_not_lost(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(2)
        await stage.send("two")
        assert stage.prompt == "two"
        assert stage.toasts == ["a reply is being made; stop it first"]


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
        assert transcript.is_following
        assert transcript.scroll_y == transcript.max_scroll_y > 0
        await stage.press("pageup")
        place = transcript.scroll_y
        assert not transcript.is_following
        await stage.turn(60)
        assert transcript.scroll_y == place
        assert transcript.num_new_rows == 30
        assert "30 new lines · End to follow" in await stage.screen()
        await stage.press("end")
        assert transcript.is_following
        assert transcript.scroll_y == transcript.max_scroll_y
        assert "new lines" not in await stage.screen()


async def test_sending_goes_back_to_the_end(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("lines")
        await stage.finish()
        await stage.press("pageup")
        assert not stage.deck.chat.transcript.is_following
        await stage.send("one")
        assert stage.deck.chat.transcript.is_following


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
        await stage.pilot.pause()
        await stage.pilot.mouse_down(transcript, offset=(7, line))
        await stage.pilot.hover(transcript, offset=(11, line))
        await stage.pilot.mouse_up(transcript, offset=(11, line))
        await stage.press("ctrl+c")
        assert stage.app.clipboard == "first"
        assert stage.toasts == ["Copied the selection."]


async def test_export_writes_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("one")
        await stage.finish()
        stage.deck.action_export()
        await stage.turn()
        (written,) = tmp_path.glob("one-*.md")
        text = written.read_text(encoding="utf-8")
        assert text.startswith("# one\n")
        assert "The first reply." in text
        assert stage.toasts == [f"Written to {written}"]


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


async def test_a_knob_is_turned_undone_and_refused(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        knobs = stage.deck.panels.knobs
        await stage.press("shift+tab", "6")
        assert knobs.has_focus
        knobs.current = "max_num_seqs"
        await stage.press("left")
        await stage.turn()
        assert _knob(stage, "max_num_seqs") == 16
        assert stage.engine.snapshot().knob_history[-1].who == "local"  # type: ignore[union-attr]
        await stage.press("u")
        await stage.turn()
        assert _knob(stage, "max_num_seqs") == 32
        await stage.press("down", "enter", *"7", "enter")
        await stage.turn()
        assert _knob(stage, "max_num_batched_tokens") == 512
        screen = await stage.screen()
        assert "✗ max_num_batched_tokens is 7; it must" in screen
        assert "max_num_seqs 32→16 by local" in screen
        assert "undo: max_num_seqs 16→32 by local" in screen


async def test_a_policy_is_chosen_and_its_effect_seen(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.turn(20)
        await stage.press("f2", "p")
        chooser = stage.app.screen
        assert isinstance(chooser, PickPolicy)
        options = chooser.query_one(OptionList)
        assert options.highlighted == POLICIES.index("stall_free")
        text = await stage.screen()
        assert "stall_free · now" in text
        assert policy_meanings()["prefill_first"] in text
        await stage.press("down", "down", "enter")
        await stage.turn(20)
        assert _knob(stage, "policy") == "static"
        snapshot = stage.engine.snapshot()
        assert snapshot is not None
        assert snapshot.knob_history[-1].who == "local"
        screen = await stage.screen()
        assert "│ policy static │" in screen
        assert "▼ policy stall_free→static after step 20 by local" in screen
        assert "policy stall_free→static by local" in screen  # in the log
        assert "tok/s 50→50 · TTFT p50 20.0→–" in screen
        for key, policy in (("escape", "static"), ("p", "static")):
            await stage.press("p", key)
            await stage.turn()
            assert stage.app.screen is stage.deck
            assert _knob(stage, "policy") == policy


async def test_without_a_model_there_is_no_policy_to_choose(tmp_path: Path) -> None:
    async with staged(tmp_path, ready=False) as stage:
        await stage.press("f2", "p")
        assert stage.app.screen is stage.deck
        assert stage.toasts == ["There is no model yet to schedule for."]


async def test_the_system_prompt_is_pinned_and_let_go(tmp_path: Path) -> None:
    system = "Answer in one sentence. " * 10
    async with staged(tmp_path, REPLIES, size=(160, 48), system=system) as stage:
        stage.deck.action_pin()
        await stage.turn()
        assert "pin system 0/2 blk in the pool" in await stage.screen()
        stage.deck.action_unpin()
        await stage.turn()
        assert "pin system" not in await stage.screen()


async def test_without_a_system_prompt_nothing_is_pinned(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        stage.deck.action_pin()
        await stage.turn()
        assert stage.toasts == ["This conversation has no system prompt."]
        snapshot = stage.engine.snapshot()
        assert snapshot is not None
        assert snapshot.pins == ()


async def test_the_session_table_goes_to_a_session_and_stops_one(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.press("ctrl+n")
        await stage.send("lines")
        await stage.turn(3)
        await stage.press("f2")
        table = stage.deck.panels.table
        assert table.has_focus
        assert stage.sessions.current.title == "lines"
        await stage.press("home", "enter")
        assert stage.sessions.current.title == "long"
        assert stage.deck.chat.prompt.area.has_focus
        await stage.press("f2", "x")
        await stage.turn()
        assert "stopped · 3 tok" in stage.transcript


async def test_modes_and_panels_of_a_small_terminal(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        deck = stage.deck
        shown = [panel for _, panel in deck.panels.numbered if panel.display]
        assert shown == []
        assert deck.chat.display
        await stage.press("f2")
        assert not deck.chat.display
        assert isinstance(stage.app.focused, SessionTable)
        for number, (_, panel) in enumerate(deck.panels.numbered, 1):
            await stage.press(str(number))
            shown = [panel for _, panel in deck.panels.numbered if panel.display]
            assert shown == [panel]
            await stage.pilot.pause()
            assert panel.region.height > 10
        assert deck.panels.kpi.region.height == 1
        await stage.press("f2")
        assert deck.chat.display
        assert deck.chat.prompt.area.has_focus


@pytest.mark.parametrize("size", [(40, 8), (59, 15), (60, 16), (80, 24), (109, 24), (110, 24)])
async def test_no_size_is_too_small_to_chat(tmp_path: Path, size: tuple[int, int]) -> None:
    async with staged(tmp_path, REPLIES, size=size) as stage:
        await stage.press(*"one", "enter")
        await stage.finish()
        assert "The first reply." in await stage.screen()
        assert stage.deck.panels.kpi.region.height == 1
        await stage.press("f2")
        assert "ttft" in await stage.screen()


async def test_chat_and_engine_stand_side_by_side_and_reflow(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        deck = stage.deck
        panels = [panel for name, panel in deck.panels.numbered if name != "MQTT"]
        everything = [deck.chat, *panels]
        assert all(widget.display for widget in everything)
        regions = [widget.region for widget in everything]
        assert not any(a.overlaps(b) for i, a in enumerate(regions) for b in regions[i + 1 :])
        await stage.pilot.resize_terminal(120, 40)
        assert deck.chat.display
        assert deck.panels.batch.display
        assert not deck.panels.table.display
        await stage.press("f2")
        assert not deck.chat.display
        assert all(panel.display for panel in panels)
        await stage.pilot.resize_terminal(80, 24)
        assert [p for _, p in deck.panels.numbered if p.display] == [deck.panels.table]


async def test_the_focus_comes_back_from_a_pane_that_has_no_room(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press("f2")
        assert stage.deck.panels.table.has_focus
        await stage.pilot.resize_terminal(80, 24)
        await stage.pilot.pause()
        assert stage.deck.chat.prompt.area.has_focus


async def test_a_panel_is_zoomed_and_back(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press("shift+tab", "3")
        before = stage.deck.panels.kv.region
        await stage.press("z")
        await stage.pilot.pause()
        assert stage.deck.panels.kv.region.width > before.width
        await stage.press("z")
        await stage.pilot.pause()
        assert stage.deck.panels.kv.region == before


async def test_letters_are_text_while_the_prompt_has_the_focus(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.press(*"xyzce1")
        assert stage.prompt == "xyzce1"


async def test_help_lists_the_keys_as_they_are_now(tmp_path: Path) -> None:
    async with staged(tmp_path, keys={"session.new": "f9"}, size=(120, 60)) as stage:
        await stage.press("f9")
        await stage.press("f1")
        assert isinstance(stage.app.screen, HelpScreen)
        text = await stage.screen()
        assert "f9" in text
        assert "^n" not in text
        await stage.press("escape")
        assert stage.app.screen is stage.deck


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


async def test_the_pump_brings_text_by_itself(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, live=True) as stage:
        await stage.press(*"one", "enter")
        stage.engine.finish_all()
        async with asyncio.timeout(10):
            while "The first reply." not in stage.transcript:
                await stage.pilot.pause()


def _knob(stage: Stage, name: str) -> object:
    snapshot = stage.engine.snapshot()
    assert snapshot is not None
    return next(knob.requested for knob in snapshot.knobs if knob.name == name)


async def test_tab_goes_through_the_panels_of_a_small_terminal(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        await stage.press("f2", "6", "down", "down", "enter", "1")  # typed into a number
        panels = stage.deck.panels
        assert stage.deck.focused is panels.knobs
        for panel in (panels.log, panels.mqtt, panels.table):
            await stage.press("tab")
            assert stage.deck.focused is panel
        await stage.press("shift+tab")
        assert stage.deck.focused is panels.mqtt


async def test_escape_leaves_the_engine_view_before_it_stops_a_reply(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        await stage.send("long")
        await stage.turn(2)
        assert "esc Stop" in await stage.screen()
        await stage.press("f2")
        assert "esc Chat" in await stage.screen()
        assert "esc Stop" not in await stage.screen()
        await stage.press("escape")
        assert "esc Stop" in await stage.screen()
        assert not stage.deck.has_class("-engine")
        assert stage.sessions.current.chat.is_busy
        await stage.press("escape")
        await stage.turn(1)
        assert not stage.sessions.current.chat.is_busy


async def test_the_table_has_one_row_a_conversation(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        for text in ("one", "two"):
            await stage.send(text)
            await stage.finish()
        snapshot = stage.engine.snapshot()
        assert snapshot is not None
        assert len(snapshot.requests) == 2
        stage.deck.pump.turn(everything=True)
        assert "Sessions 1 " in await stage.screen()


@pytest.mark.parametrize("panel", ["2", "3", "4", "6", "7"])
async def test_escape_beside_the_chat_goes_to_the_prompt_before_it_stops_a_reply(
    tmp_path: Path, panel: str
) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.turn(2)
        await stage.press("f2", panel)
        screen = await stage.screen()
        assert "esc Chat" in screen
        assert "esc Stop" not in screen
        await stage.press("escape")
        assert stage.deck.chat.prompt.area.has_focus
        await stage.turn(1)
        assert stage.sessions.current.chat.is_busy
        assert "esc Stop" in await stage.screen()
        await stage.press("escape")
        await stage.turn(1)
        assert not stage.sessions.current.chat.is_busy


@pytest.mark.parametrize("panel", ["1", "2", "4", "6", "7"])
async def test_undo_wherever_the_policy_is_chosen(tmp_path: Path, panel: str) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        stage.engine.set_knobs({"max_num_seqs": 4}, "somebody")
        await stage.press("f2", panel, "u")
        assert _knob(stage, "max_num_seqs") == 32


async def test_the_palette_steers(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:

        async def choose(title: str) -> None:
            found = {c.title: c for c in stage.app.get_system_commands(stage.deck)}
            found[title].callback()
            await stage.turn()

        for start, end, name in (
            ("Pause", "Resume", "paused"),
            ("Drain", "Stop draining", "draining"),
        ):
            await choose(start)
            assert _knob(stage, name) is True
            await choose(end)
            assert _knob(stage, name) is False
        await choose("Undo the last knob change")
        assert _knob(stage, "draining") is True
        await choose("History of knobs")
        assert stage.deck.panels.knobs.history_shown
        assert stage.deck.panels.knobs.has_focus
        assert "undo: draining" in await stage.screen()


async def test_what_stands_still_is_paused(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.turn(3)
        assert "● decode" in await stage.screen()
        stage.engine.set_knobs({"paused": True}, "local")
        await stage.turn()
        screen = await stage.screen()
        assert "‖ paused" in screen
        assert "decode" not in screen.partition("Batch")[0]
        assert "paused · 3 tok" in stage.transcript
        assert "streaming" not in stage.transcript


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_keys_below_fit(tmp_path: Path, size: tuple[int, int]) -> None:
    async with staged(tmp_path, REPLIES, size=size) as stage:
        await stage.press("f2")
        for panel in "12345678":
            await stage.press(panel)
            await stage.screen()
            keys = stage.deck.query(FooterKey)
            assert all(key.region.right <= size[0] for key in keys)
            bar = next(key for key in keys if key.description == "Chat")
            assert bar.region.width
            assert not any(a.region.overlaps(b.region) for a in keys for b in keys if a is not b)


async def test_a_policy_that_failed_is_told(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        stage.engine.set_knobs({"policy": "static"}, "local")
        await stage.turn()
        assert stage.toasts == []
        stage.engine.set_knobs({"policy": "stall_free"}, "static: ValueError: no")
        await stage.turn()
        assert stage.toasts == ["policy static→stall_free, for it failed: static: ValueError: no"]
        await stage.turn()
        assert len(stage.toasts) == 1


async def test_why_a_chat_waits_is_said_in_full(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(60, 24)) as stage:
        stage.engine.set_knobs({"draining": True}, "local")
        await stage.send("one")
        await stage.turn(1)
        view = next(iter(stage.deck.engine.views.values()))
        reason = "batch 1/8, until the batch before, whose longest reply is not done, has ended"
        waits = replace(view, wait_reason=reason)
        stage.deck.engine.views[view.request_id] = waits
        stage.deck.chat.update()
        text = " ".join((await stage.screen()).split())
        assert f"queued: {reason}" in text.replace("▍", "").replace("  ", " ")
