"""The MQTT gateway on the screen: its panel, its sessions, and who goes first."""

from __future__ import annotations

import asyncio
import logging
from itertools import product
from pathlib import Path

import pytest
from textual.widgets import Label, OptionList

from app.gateway.mqtt.transport.link import LinkPhase
from app.process.exits import ExitCode
from app.screens.dialogs.find_chat import FindChat
from app.store.conversation import Conversation, Message
from app.store.store import Store
from engine.api.lifecycle import FinishReason
from engine.api.waiting import in_words
from tests.app.screens.stage import Stage, staged
from tests.widgets.hosting import rows
from widgets.panels.gateway_panel import MqttPanel
from widgets.panels.session_table import SessionTable

REPLIES = {
    "one": "The first reply.",
    "two": "The second reply.",
    "long": "word " * 400,
}
LAYOUTS = [(80, 24), (110, 30), (110, 36), (120, 40), (150, 30), (160, 48)]


def request_of(table: SessionTable) -> str:
    """The request under the table's cursor; empty if there is none."""
    return table.current.view.request_id if table.current and table.current.view else ""


def titles(stage: Stage) -> list[str]:
    return [session.title for session in stage.sessions.sessions]


async def watch(stage: Stage, request_id: str) -> None:
    """Open a request of the session table with Enter."""
    await stage.turn()
    await stage.press("f2", "1", "home")
    table = stage.deck.panels.table
    while request_of(table) != request_id:
        before = table.cursor
        await stage.press("down")
        assert table.cursor > before, f"{request_id} is not in the table"
    await stage.press("enter")
    await stage.turn()
    async with asyncio.timeout(10):
        # The chat comes on view, and is set when it has its size.
        while stage.sessions.current.chat.messages and not stage.transcript:
            await stage.settle()


# Watching.


async def test_a_chat_over_mqtt_is_watched_while_it_grows(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        request_id = stage.gateway.ask("alice", "s1", "long")
        await stage.turn(2)
        await watch(stage, request_id)
        assert stage.sessions.current.title == "@alice long"
        assert "@alice long" in await stage.screen()
        assert "alice  " in stage.transcript
        assert "you  " not in stage.transcript
        assert "streaming · 2 tok" in stage.transcript
        await stage.turn(3)
        assert "word word word word word" in stage.transcript
        assert "streaming · 5 tok" in stage.transcript
        stage.engine.advance(2)
        stage.sessions.poll()
        stage.deck.chat.update()  # before the next look at the engine
        assert "streaming · 7 tok" in stage.transcript
        await stage.finish()
        assert "400 tok · ttft" in stage.transcript
        await stage.press("ctrl+w")
        assert stage.toasts == ["“@alice long” is no longer watched."]


async def test_the_next_turn_of_a_watched_chat_shows_when_it_comes(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        await watch(stage, stage.gateway.ask("alice", "s1", "one"))
        await stage.finish()
        assert "The first reply." in stage.transcript
        stage.gateway.ask("alice", "s1", "two")
        await stage.turn(1)
        await stage.turn()
        assert "two" in stage.transcript
        assert stage.sessions.current.chat.is_busy
        await stage.finish()
        assert "The first reply." in stage.transcript
        assert "The second reply." in stage.transcript


@pytest.mark.parametrize("session", ["s1", ""], ids=["session", "single shot"])
async def test_watching_says_nothing_and_leaves_without_a_trace(
    tmp_path: Path, session: str
) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        await watch(stage, stage.gateway.ask("alice", session, "long"))
        refusal = "alice holds this chat elsewhere; here it can be watched and stopped"
        assert refusal in await stage.screen()
        asked = len(stage.engine.submissions)
        await stage.send("mine")
        assert stage.prompt == "mine"
        stage.deck.action_run("chat.regenerate")
        stage.deck.action_run("chat.edit")
        stage.deck.action_run("chat.rename")
        stage.deck.action_run("chat.delete")
        await stage.settle()
        assert stage.toasts == [refusal] * 5
        await stage.send("/rename ours")
        assert stage.prompt == "/rename ours"
        assert stage.toasts == [refusal]
        assert stage.app.screen is stage.deck
        assert len(stage.engine.submissions) == asked
        assert stage.sessions.current.history == ()
        stage.deck.chat.prompt.area.load_text("")
        await stage.press("ctrl+w")
        assert titles(stage) == ["new chat"]
        assert stage.toasts[-1] == "“@alice long” goes on; it is no longer watched."
        await stage.turn(1)
        view = next(iter(stage.deck.engine.views.values()))
        assert view.finish_reason is None
        assert stage.store.conversations() == []
        assert refusal not in await stage.screen()


@pytest.mark.parametrize("key", ["escape", "x"])
async def test_a_watched_chat_is_stopped(tmp_path: Path, key: str) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        await stage.send("long")
        request_id = stage.gateway.ask("alice", "s1", "long")
        await watch(stage, request_id)
        await stage.turn(3)
        await stage.press("f2")
        if key == "escape":
            await stage.press("f2")
        await stage.press(key, "enter")
        await stage.turn(1)
        views = stage.deck.engine.views
        assert views[request_id].finish_reason is FinishReason.ABORT
        assert [v.finish_reason for v in views.values() if v.origin.source == "screen"] == [None]
        if key == "x":  # in the engine's view the chat has no size, and is not set
            await stage.press("f2")
        async with asyncio.timeout(10):
            while "stopped · " not in stage.transcript:
                await stage.settle()


async def test_x_alone_stops_no_reply_of_somebody_else(tmp_path: Path) -> None:
    """It, too, is a key that stops one's own."""
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        request_id = stage.gateway.ask("alice", "s1", "long")
        await stage.turn(1)
        await stage.press("f2", "x")
        assert "Stop the reply in “@alice long”? alice is told." in await stage.screen()
        await stage.press("escape")
        await stage.turn(1)
        assert stage.app.screen is stage.deck
        assert stage.deck.engine.views[request_id].finish_reason is None


async def test_one_that_has_ended_is_not_asked_about(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        stage.gateway.ask("alice", "s1", "long")
        await stage.finish()
        await stage.press("f2", "x")
        assert stage.app.screen is stage.deck


async def test_escape_alone_stops_no_reply_of_somebody_else(tmp_path: Path) -> None:
    """It is the key that stops one's own; pressed twice, too, the other's goes on."""
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        request_id = stage.gateway.ask("alice", "s1", "long")
        await watch(stage, request_id)
        await stage.press("escape")
        assert stage.deck.panels.table.has_focus, "from where one came"
        await stage.press("f2")
        await stage.turn(1)
        async with asyncio.timeout(10):
            while "Stop theirs…" not in await stage.screen():
                await stage.settle()
        await stage.press("escape")
        await stage.turn(1)
        assert "Stop the reply in “@alice long”? alice is told." in await stage.screen()
        await stage.press("escape")
        await stage.turn(1)
        assert stage.app.screen is stage.deck
        assert stage.deck.engine.views[request_id].finish_reason is None


async def test_a_request_is_opened_once_and_others_beside_it(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        first = stage.gateway.ask("alice", "s1", "long")
        second = stage.gateway.ask("bob", "", "long")
        await watch(stage, first)
        await watch(stage, second)
        await watch(stage, first)
        assert titles(stage) == ["new chat", "@alice long", "@bob long"]
        assert stage.sessions.current.title == "@alice long"
        await stage.press("ctrl+n")
        assert stage.sessions.current.title == "new chat"


async def test_a_request_without_a_session_keeps_its_letter_when_it_is_opened(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True, size=(160, 48)) as stage:
        await watch(stage, stage.gateway.ask("bob", "", "long"))
        await stage.turn(1)
        assert "─ Chats 1 + 1 elsewhere · " in await stage.screen()
        assert str(stage.sessions.number_of(stage.sessions.current)) == "A"


async def test_a_chat_that_is_kept_is_read_with_and_without_a_gateway(tmp_path: Path) -> None:
    keep(tmp_path)
    for mqtt in (False, True):
        async with staged(tmp_path, REPLIES, mqtt=mqtt) as stage:
            assert titles(stage) == ["new chat"]
            await stage.press("f3")
            await stage.turn()
            assert stage.app.screen.query_one(OptionList).option_count == 1
            await stage.press(*"alice", "enter")
            await stage.turn()
            assert titles(stage) == ["new chat", "@alice Rivers"]
            assert "alice  " in stage.transcript
            assert "The Danube is long." in stage.transcript
            await stage.send("mine")
            assert stage.toasts == [
                "alice holds this chat elsewhere; here it can be watched and stopped"
            ]
            (kept,) = stage.store.conversations()
            assert kept.title == "Rivers"


async def test_a_kept_chat_goes_on_where_it_is_watched(tmp_path: Path) -> None:
    keep(tmp_path)
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        await stage.press("f3", "enter")
        await stage.turn()
        stage.gateway.ask("alice", "s1", "two")
        await stage.turn(1)
        await stage.turn()
        assert stage.sessions.current.chat.is_busy
        await stage.finish()
        assert "The second reply." in stage.transcript


async def test_a_chat_at_the_side_has_its_letter_though_it_is_not_open(tmp_path: Path) -> None:
    keep(tmp_path)
    async with staged(tmp_path, REPLIES, mqtt=True, size=(200, 60)) as stage:
        stage.gateway.ask("alice", "s1", "two")
        await stage.turn(1)
        await stage.turn()
        side = "\n".join(rows(stage.deck.chat.list))
        assert "A ○ @alice Rivers" in side
        assert "A   @alice two" in await stage.screen()


async def test_a_kept_chat_that_nobody_holds_can_be_deleted(tmp_path: Path) -> None:
    keep(tmp_path)
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press("f3", "enter")
        await stage.turn()
        stage.deck.action_run("chat.delete")
        assert stage.store.conversations() == []


async def test_a_chat_that_somebody_holds_is_not_deleted_where_it_is_found(tmp_path: Path) -> None:
    keep(tmp_path)
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        stage.gateway.ask("alice", "s1", "one")
        await stage.press("f3")
        await stage.turn()
        await stage.press("f6", "f7", "f8")
        assert isinstance(stage.app.screen, FindChat)
        refusal = "alice holds this chat elsewhere; here it can be watched and stopped"
        assert str(stage.app.screen.query_one("#found", Label).content) == refusal
        (kept,) = stage.store.conversations()
        assert (kept.title, kept.is_archived) == ("Rivers", False)
        await stage.finish()
        stage.gateway.forget()
        await stage.press("f8")
        assert stage.store.conversations() == []


async def test_what_the_gateway_has_forgotten_is_read_from_the_store_or_not_at_all(
    tmp_path: Path,
) -> None:
    keep(tmp_path)
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        kept = stage.gateway.ask("alice", "s1", "one")
        once = stage.gateway.ask("bob", "", "two")
        await stage.finish()
        stage.gateway.forget()
        await watch(stage, kept)
        assert "The Danube is long." in stage.transcript
        await watch(stage, once)
        assert stage.toasts == ["This chat is not in the store."]
        assert stage.deck.panels.table.has_focus


async def test_quitting_ends_no_chat_that_others_hold_before_the_engine_ends(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        request_id = stage.gateway.ask("alice", "s1", "long")
        await watch(stage, request_id)
        stage.sessions.stop_all()
        await stage.turn(1)
        assert stage.deck.engine.views[request_id].finish_reason is None
        assert stage.sessions.num_busy == 1
        assert stage.sessions.num_own_busy == 0
        stage.app._leave(ExitCode.OK)
        await stage.app.workers.wait_for_complete()
        transcript = stage.gateway.transcript(request_id)
        assert transcript is not None
        assert transcript.messages[-1].finish_reason is FinishReason.ERROR
        assert stage.store.conversations() == []


async def test_what_others_say_cannot_steer_the_terminal(tmp_path: Path) -> None:
    text = "red\x1b[31m\x9b2J\x07 \u202eback\ud83d\ude00"
    replies = {text: "reply \x1b]52;c;aGk=\x07end\u2066", "one": "x"}
    async with staged(tmp_path, replies, mqtt=True, size=(160, 48)) as stage:
        await watch(stage, stage.gateway.ask("alice", "s1", text))
        await stage.finish()
        screen = await stage.screen()
        assert "red[31m" in stage.transcript
        assert "reply ]52;c;aGk=end" in stage.transcript
        stage.deck.action_run("chat.close")
        await stage.turn()
        assert stage.toasts
        for shown in (screen, await stage.screen(), stage.transcript, *stage.toasts):
            assert "".join(shown.split("\n")).isprintable()


def keep(folder: Path) -> None:
    """Leave a chat that alice held over MQTT in the store."""
    store = Store(folder / "batchdeck.db")
    chat = Conversation(id="alice/s1", title="Rivers", user="alice", source="mqtt")
    said = Message(conversation_id=chat.id, parent_id=None, role="user", content="Which river?")
    reply = Message(
        conversation_id=chat.id,
        parent_id=said.id,
        role="assistant",
        content="The Danube is long.",
        finish_reason=FinishReason.STOP,
    )
    store.save_conversation(chat)
    store.save_message(said)
    store.save_message(reply)
    chat.leaf = reply.id
    store.save_conversation(chat)
    store.close()


# Who goes first.


async def test_a_request_goes_before_others_at_a_key(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True, size=(160, 48)) as stage:
        stage.engine.set_knobs({"max_num_seqs": 1}, "test")
        await stage.send("long")
        first = stage.gateway.ask("bob", "", "one")
        second = stage.gateway.ask("alice", "", "two")
        await stage.turn(1)
        await stage.turn()  # both wait on the screen, too
        await stage.press("f2", "down", "down")
        assert "+ Priority" in await stage.screen()
        table = stage.deck.panels.table
        assert request_of(table) == second
        await stage.press("plus", "plus", "plus", "minus")  # faster than snapshots come
        await stage.turn()
        assert stage.deck.engine.views[second].priority == 2
        screen = await stage.screen()
        assert "▲2 @alice two" in screen
        assert "· priority 2 " in screen
        await stage.press("plus")
        await stage.turn()
        assert stage.deck.engine.views[second].priority == 3
        stage.engine.abort(stage.engine.submissions[0].request_id)
        await stage.turn(1)
        views = stage.deck.engine.views
        assert in_words(views[second].wait) == ""
        assert in_words(views[first].wait) != ""


async def test_an_own_request_can_stand_back(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.turn(1)
        await stage.press("f2", "minus")
        await stage.turn()
        assert "▼1 long" in await stage.screen()


async def test_a_priority_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        request_id = stage.gateway.ask("alice", "", "long", priority=1_000_000)
        await stage.turn(1)
        await stage.press("f2", "plus")
        assert len(stage.toasts) == 1
        assert "priority is 1000001" in stage.toasts[0]
        stage.engine.abort(request_id)
        await stage.turn(1)
        await stage.press("minus")
        assert (
            stage.toasts[1] == "This request has ended; only running and waiting requests have one."
        )


async def test_priority_keys_are_text_in_the_prompt(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(160, 48)) as stage:
        await stage.send("long")
        await stage.turn(1)
        await stage.press("plus", "minus")
        assert stage.prompt == "+-"


# The panel.


async def test_every_panel_has_room_beside_the_broker(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True, size=(80, 24)) as stage:
        deck = stage.deck
        for size, keys in product(LAYOUTS, ((), ("f2",), ("8",), ("7",), ("escape", "escape"))):
            if not keys:
                await stage.pilot.resize_terminal(*size)
            await stage.press(*keys)
            await stage.settle()
            shown = [panel for _, panel in deck.panels.numbered if panel.display]
            everything = [*shown, *([deck.chat] if deck.chat.display else [])]
            regions = [widget.region for widget in everything]
            case = f"{size} {keys} {regions}"
            overlap = any(a.overlaps(b) for i, a in enumerate(regions) for b in regions[i + 1 :])
            assert not overlap, case
            assert all(deck.region.contains_region(region) for region in regions), case
            assert all(region.height >= 5 and region.width >= 30 for region in regions), case
            if deck.panels.mqtt in shown:
                assert deck.panels.mqtt.region.height >= 8, case
            if keys == ("8",):
                assert deck.panels.mqtt in shown, case
                assert deck.panels.mqtt.has_focus, case
                assert "✓ online" in await stage.screen(), case
            if keys == ("7",):
                assert deck.panels.log in shown, case


async def test_without_a_gateway_the_panel_says_how_to_have_one(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        panel = stage.deck.panels.mqtt
        for size in ((80, 24), (110, 30), (150, 30), (160, 48)):
            await stage.pilot.resize_terminal(*size)
            await stage.press("f2")
            assert not panel.display, size
            await stage.press("8")
            assert "MQTT is off." in await stage.screen(), size
            assert panel.has_focus, size
            await stage.press("r")
            assert stage.toasts == []
            await stage.press("2")
            await stage.settle()
            assert not panel.display, size
            await stage.press("escape")


async def test_what_becomes_of_the_broker_is_told_once_and_stays_in_sight(tmp_path: Path) -> None:
    keys = {"mqtt.reconnect": "f20"}
    async with staged(tmp_path, REPLIES, mqtt=True, size=(80, 24), keys=keys) as stage:
        assert "MQTT" not in await stage.screen()
        stage.gateway.show(phase=LinkPhase.OFFLINE, detail="connection refused")
        for _ in range(3):
            await stage.turn()
        toast = (
            "MQTT: mqtt://broker.example:1883 is unreachable (connection refused);"
            " connecting again."
        )
        assert stage.toasts == [toast]
        assert " tok/s     ✗ MQTT offline " in await stage.screen()
        stage.gateway.show(phase=LinkPhase.ONLINE, detail="")
        await stage.turn()
        assert stage.toasts[1:] == ["MQTT: connected to mqtt://broker.example:1883."]
        assert "MQTT offline" not in await stage.screen()
        stage.gateway.show(phase=LinkPhase.TAKEN_OVER, detail="session taken over")
        await stage.turn()
        assert stage.toasts[2].startswith("MQTT: another program has taken over node 'gpu")
        assert stage.toasts[2].endswith("; f20 in the MQTT panel connects again.")
        assert " tok/s     ⇄ MQTT " in await stage.screen()
        stage.gateway.show(phase=LinkPhase.STOPPED)
        await stage.turn()
        assert "the gateway has stopped" in stage.toasts[3]
        await stage.press("f2", "8", "f20")
        assert stage.toasts[4].startswith("The gateway has stopped;")
        assert stage.gateway.reconnects == 0


async def test_a_broker_that_is_away_is_seen_before_there_is_a_model(tmp_path: Path) -> None:
    async with staged(tmp_path, mqtt=True, ready=False) as stage:
        stage.gateway.show(phase=LinkPhase.OFFLINE)
        await stage.turn()
        assert "✗ MQTT offline │ ◐ loading scripted" in await stage.screen()


async def test_the_user_connects_by_key_and_from_the_palette(tmp_path: Path) -> None:
    async with staged(tmp_path, mqtt=True) as stage:
        await stage.press("f2", "8", "r")
        assert stage.gateway.reconnects == 0
        assert stage.toasts == ["mqtt://broker.example:1883 is connected."]
        stage.gateway.show(phase=LinkPhase.TAKEN_OVER)
        await stage.turn()
        await stage.press("r")
        assert stage.gateway.reconnects == 1
        commands = {c.title: c for c in stage.app.get_system_commands(stage.deck)}
        commands["Reconnect MQTT"].callback()
        assert stage.gateway.reconnects == 2
    async with staged(tmp_path) as stage:
        titles = {c.title for c in stage.app.get_system_commands(stage.deck)}
        assert "Panel: MQTT" in titles
        assert "Reconnect MQTT" not in titles


async def test_what_the_gateway_logs_is_in_the_log_by_its_name(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(160, 48)) as stage:
        logging.getLogger("app.gateway.mqtt.gateway").warning("the broker went")
        await stage.turn()
        assert "W mqtt   the broker went" in await stage.screen()


async def test_a_click_on_a_name_that_was_shortened_goes_to_its_panel(tmp_path: Path) -> None:
    async with staged(tmp_path, size=(64, 20)) as stage:
        await stage.press("f2")
        await stage.screen()
        bar = stage.deck.panel_bar
        text = bar.render_line(0).text
        assert " 1 Cha  2 Bat  3 KV " in text
        await stage.pilot.click(bar, offset=(text.index("8 MQT"), 0))
        await stage.settle()
        assert isinstance(stage.app.focused, MqttPanel)
