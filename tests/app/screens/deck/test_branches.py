"""The branches of a chat on the screen: what was said otherwise is not gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events

from app.conversations.session import ChatSession
from app.store.store import Store
from tests.app.screens.stage import REPLIES, Stage, staged
from tests.support.scripted_engine import ScriptedEngine


async def _say(stage: Stage, *texts: str) -> None:
    for text in texts:
        await stage.send(text)
        await stage.finish()


async def _edit(stage: Stage, text: str) -> None:
    stage.deck.action_run("chat.edit")
    await stage.send(text)
    await stage.finish()


@pytest.mark.parametrize(
    ("back", "forth"), [("alt+left", "alt+right"), ("left_square_bracket", "right_square_bracket")]
)
async def test_an_edited_message_is_reached_again(tmp_path: Path, back: str, forth: str) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        await _edit(stage, "two")
        assert "  2/2\n" in stage.transcript
        assert "The second reply." in stage.transcript
        if back != "alt+left":
            await stage.press("ctrl+up")
        await stage.press(back)
        assert "  1/2\n" in stage.transcript
        assert "The first reply." in stage.transcript
        assert "The second reply." not in stage.transcript
        assert stage.sessions.current.title == "one"
        await stage.press(forth)
        assert "The second reply." in stage.transcript


@pytest.mark.parametrize("key", ["enter", "escape"])
async def test_how_an_edit_ends_is_told_until_it_has(tmp_path: Path, key: str) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        stage.app.notify("Another thing.")
        await stage.press("ctrl+up", "e")
        hint = "enter sends it as another branch; esc leaves it as it was."
        assert stage.toasts == ["Another thing.", hint]
        await stage.press(key)
        assert stage.toasts == ["Another thing."]


async def test_the_marked_message_is_the_one_that_keys_act_on(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        await _edit(stage, "two")
        await _say(stage, "code")
        await stage.press("ctrl+r")
        await stage.finish()
        chat = stage.sessions.current.chat
        assert list(chat.places.values()) == [(2, 2), (2, 2)]
        transcript = stage.deck.chat.transcript
        await stage.press("ctrl+up", "home", "left_square_bracket")
        assert [m.content for m in chat.messages] == ["one", "The first reply."]
        assert transcript.current == chat.messages[0].id, "it stays where it was"
        await stage.press("e")
        assert stage.prompt == "one"
        await stage.send("lines")
        await stage.finish()
        assert list(chat.places.values()) == [(3, 3)]


async def test_another_reply_is_asked_for_where_the_mark_is(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one", "two")
        await stage.press("ctrl+up", "home", "ctrl+r")
        await stage.finish()
        chat = stage.sessions.current.chat
        assert [m.content for m in chat.messages] == ["one", "The first reply."]
        assert list(chat.places.values()) == [(2, 2)]


async def test_a_chat_of_one_branch_says_so(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        await stage.press("alt+left")
        assert stage.toasts == ["There is only one branch; editing and regenerating make others."]


async def test_no_branch_is_left_while_its_reply_is_made(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        stage.deck.action_run("chat.edit")
        await stage.send("long")
        await stage.turn(2)
        await stage.press("alt+left")
        assert stage.toasts[-1] == "a reply is being generated; stop it first"
        assert stage.sessions.current.chat.is_busy


async def test_after_a_restart_the_old_branch_is_reached(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        await _edit(stage, "two")
    async with staged(tmp_path, REPLIES) as stage:
        assert "  2/2\n" in stage.transcript
        await stage.press("alt+left")
        assert "The first reply." in stage.transcript


async def test_what_another_program_says_in_the_chat_is_seen(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        store, engine = Store(tmp_path / "batchdeck.db"), ScriptedEngine(REPLIES)
        theirs = ChatSession(engine, store.conversations()[0], store)
        await _say(stage, "two")
        theirs.send("code")
        engine.finish_all()
        theirs.poll()
        await stage.turn()
        assert stage.toasts == ["Another program continued this chat: this is 1/2."]
        assert "  1/2\n" in stage.transcript
        await stage.press("alt+right")
        assert "x = 1" in stage.transcript
        store.close()


async def test_a_name_that_the_user_gave_stays(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        stage.sessions.rename(stage.sessions.current, "Mine")
        await _edit(stage, "two")
        assert stage.sessions.current.title == "Mine"


async def test_a_fork_with_a_title_of_its_own_says_of_which_chat_it_is_one(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one")
        stage.deck.action_run("chat.fork")
        await stage.turn()
        pane = stage.deck.chat
        assert str(pane.border_title) == "Fork of one"
        stage.deck.chats.rename(stage.sessions.current.key, "Mine")
        assert str(pane.border_title) == "Mine · fork of “one”"
        key = stage.sessions.current.key
        stage.deck.action_run("chat.close")
        stage.deck.chats.open(key)
        assert str(pane.border_title) == "Mine · fork of “one”"


async def test_a_watched_chat_has_no_branches_here(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True) as stage:
        request_id = stage.gateway.ask("alice", "s1", "one")
        await stage.turn(1)
        assert stage.sessions.watch(request_id)
        stage.deck.switched()
        await stage.press("alt+left")
        stage.deck.action_run("chat.regenerate")
        stage.deck.action_run("chat.fork")
        stage.deck.action_run("chat.resume")
        stage.deck.action_run("chat.edit")
        await stage.turn()
        refusal = "alice holds this chat elsewhere; here it can be watched and stopped"
        assert stage.toasts == [refusal] * 5


async def test_a_stopped_reply_is_gone_on_with(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(5)
        assert "alt+c Continue" not in await stage.screen()
        await stage.press("escape")
        await stage.turn()
        assert "stopped · alt+c continues it · 5 tok" in stage.transcript
        await stage.bar("alt+c Continue")
        # As tmux sends it; and once more, when it does nothing.
        for _ in range(2):
            stage.app.post_message(events.Key("alt+c", "c"))
            await stage.turn(1)
        assert stage.prompt == ""
        assert "streaming" in stage.transcript
        await stage.finish()
        assert stage.sessions.current.chat.messages[1].content == REPLIES["long"]
        assert "· 400 tok · ttft" in stage.transcript
        stage.deck.action_run("chat.resume")
        await stage.turn()
        assert stage.toasts == ["this reply is complete; send a message to ask for more"]


async def test_after_a_restart_a_reply_is_gone_on_with(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await stage.send("long")
        await stage.turn(5)
        stage.deck.action_run("chat.stop")
        await stage.turn()
    async with staged(tmp_path, REPLIES) as stage:
        await stage.press("alt+c")
        await stage.finish()
        assert stage.sessions.current.chat.messages[1].content == REPLIES["long"]


async def test_a_fork_is_a_chat_of_its_own(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one", "two")
        await stage.press("ctrl+up", "up", "up", "f")
        assert stage.sessions.current.title == "Fork of one"
        assert "The first reply." in stage.transcript
        assert "The second reply." not in stage.transcript
        assert stage.prompt == ""
        await _say(stage, "code")
        forked = stage.sessions.current.chat.conversation
        assert [s.title for s in stage.sessions.sessions] == ["one", "Fork of one"]
        assert stage.sessions.sessions[0].key == forked.forked_from
        assert len(stage.store.messages(forked.id)) == 4


async def test_a_fork_at_ones_own_message_has_it_in_the_prompt(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        await _say(stage, "one", "//two")
        await stage.press("ctrl+up", "up", "f")
        assert stage.prompt == "//two"
        assert [m.content for m in stage.sessions.current.chat.messages] == [
            "one",
            "The first reply.",
        ]


async def test_no_chat_is_forked_where_nothing_stands_or_more_comes(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES) as stage:
        stage.deck.action_run("chat.fork")
        await stage.turn()
        assert stage.toasts == ["There is no message yet to fork at."]
        await stage.send("long")
        await stage.turn(2)
        stage.deck.action_run("chat.fork")
        await stage.turn()
        assert len(stage.sessions.sessions) == 1
        assert stage.toasts == [
            "The reply is still running; fork here when it has ended, or mark an earlier one.",
        ]
