"""The users of the demonstration."""

from __future__ import annotations

from pathlib import Path

from app.screens.chats.sessions import SessionList
from app.screens.demo.crowd import ENTER_SECONDS, TURNS, USERS, Crowd
from app.screens.demo.script import SCRIPTS, SYSTEM
from app.store.store import Store
from tests.support.clock import VirtualClock
from tests.support.scripted_engine import ScriptedEngine
from widgets.chat_number import LETTERS


def held(store: Store, seconds: float, seed: int = 1) -> tuple[SessionList, list[str]]:
    """A crowd after a while, and what it asked."""
    engine, clock = ScriptedEngine(), VirtualClock(0.0)
    sessions = SessionList(engine, store)
    crowd = Crowd(sessions, clock, seed)
    while clock() < seconds:
        crowd.turn()
        engine.advance(5)
        sessions.poll()
        clock.advance(0.25)
    return sessions, [submission.messages[-1].content for submission in engine.submissions]


def test_they_come_one_after_the_other_and_ask_what_is_written(store: Store) -> None:
    sessions, asked = held(store, 3 * ENTER_SECONDS)
    first = [script[0] for script in SCRIPTS]
    assert [question for question in asked if question in first] == first[:3]
    assert len(sessions.sessions) == 3
    assert {session.chat.conversation.system for session in sessions.sessions} == {SYSTEM}


def test_the_same_seed_asks_the_same_and_another_does_not(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((1, 1, 2)):
        store = Store(tmp_path / str(number) / "store.db")
        found.append(held(store, 30.0, seed)[1])
        store.close()
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_who_has_asked_enough_leaves_and_the_chat_on_view_stays(store: Store) -> None:
    sessions, asked = held(store, 180.0)
    assert len(asked) > USERS * TURNS
    # Besides, there may be the one on view, whose user has left, and some that were left just now.
    assert USERS <= len(sessions.sessions) <= USERS + 4
    assert sessions.current in sessions.sessions
    numbers = [session.chat.conversation.number for session in sessions.sessions]
    # Each has a sign of its own on the KV map, and no number is that of two that are on view.
    assert max(number for number in numbers if number is not None) <= 2 * USERS + 4 <= len(LETTERS)
    assert max(len(session.chat.messages) for session in sessions.sessions) <= 2 * TURNS
