"""Crowd: the users of the demonstration, who arrive, ask, read, ask again and leave."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice

from app.screens.chats.open_session import OpenSession
from app.screens.chats.sessions import SessionList
from app.screens.demo.script import SAMPLING, SCRIPTS, SYSTEM

USERS = 12
# They come one after the other, so that viewers see the batch fill.
ENTER_SECONDS = 1.5
# The time in which a user reads a reply and writes the next question.
LEAST_READING, MOST_READING = 0.5, 3.0
# After this many turns a user leaves, and another one arrives with an empty chat.
TURNS = 6


@dataclass(slots=True)
class _User:
    """A user of the demonstration.

    Attributes:
        script: the number of the script that is asked.
        due: when the next question is asked.
        chance: random numbers for this user's reading times, independent of the others.
        reading: how long this user reads the running reply.
        asked: how many questions were asked in this chat.
    """

    script: int
    due: float
    chance: random.Random
    reading: float = 0.0
    session: OpenSession | None = None
    asked: int = 0


class Crowd:
    """Acts on the list of chats like people who chat at the same time. The same seed and the same
    replies give the same questions in the same order.

    Args:
        clock: seconds.
    """

    def __init__(self, sessions: SessionList, clock: Callable[[], float], seed: int) -> None:
        self._sessions = sessions
        self._clock = clock
        self._left: list[OpenSession] = []
        self._closed: deque[str] = deque()
        start = clock()
        self._users = [
            _User(
                script=number % len(SCRIPTS),
                due=start + number * ENTER_SECONDS,
                chance=random.Random(seed * USERS + number),
            )
            for number in range(USERS)
        ]

    def turn(self) -> None:
        """Send the next question of every user who is due. A user waits until the reply has ended
        and was read."""
        now = self._clock()
        self._clear()
        for user in self._users:
            if user.session is not None and user.session.chat.is_busy:
                user.due = now + user.reading
            elif user.due <= now:
                self._ask(user)

    def _ask(self, user: _User) -> None:
        if user.asked == TURNS or user.session not in self._sessions.sessions:
            self._come_in(user)
        assert user.session is not None
        questions = cycle(SCRIPTS[user.script])
        question = next(islice(questions, user.asked, None))
        user.asked += 1
        user.reading = user.chance.uniform(LEAST_READING, MOST_READING)
        user.due = self._clock() + user.reading
        user.session.chat.send(question)

    def _come_in(self, user: _User) -> None:
        """Leave the chat, and take an empty one."""
        if user.session is not None:
            self._left.append(user.session)
        user.session, user.asked = self._sessions.empty(), 0
        conversation = user.session.chat.conversation
        conversation.system, conversation.sampling = SYSTEM, SAMPLING

    def _clear(self) -> None:
        """Close the abandoned chats, except the one on view. The oldest closed ones are removed,
        and others take their numbers: the KV map has signs for 35 only."""
        for session in self._left[:]:
            if session is not self._sessions.current:
                self._left.remove(session)
                if session in self._sessions.sessions:
                    self._sessions.close(session)
                    self._closed.append(session.key)
        # The requests of the chats closed last are still on the screen, by their numbers.
        while len(self._closed) > USERS:
            key = self._closed.popleft()
            self._sessions.store.delete_conversation(key)
            self._sessions.store.free_id(key)
