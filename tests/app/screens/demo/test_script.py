"""The built-in model's answers to the crowd."""

from __future__ import annotations

import re
from itertools import cycle, islice
from pathlib import Path

import engine.builtin.corpus
from app.conversations.session import ChatSession
from app.process.serving import serving
from app.screens.demo.crowd import TURNS
from app.screens.demo.script import SAMPLING, SCRIPTS, SYSTEM
from app.store.conversation import Conversation
from engine.api.client import EngineClient, LoadRequest

CORPUS = Path(engine.builtin.corpus.__file__).parent
# All that the model was taught to say, but for what it is told and what it counts.
TAUGHT = " ".join(
    p.read_text(encoding="utf-8") for p in (*CORPUS.glob("text/*"), *CORPUS.glob("*.py"))
)
WORDS = set(re.findall(r"[a-z]+", TAUGHT.lower()))


def answers(client: EngineClient, questions: list[str]) -> list[str]:
    session = ChatSession(client, Conversation(system=SYSTEM), sampling=SAMPLING)
    for question in questions:
        session.send(question)
        while session.is_busy:
            session.wait()
            session.poll()
    return [message.content for message in session.messages if message.role == "assistant"]


def test_each_reply_is_made_of_words_none_of_them_twice_in_a_row() -> None:
    with serving(LoadRequest("builtin"), None) as client:
        replies = [
            answer
            for script in SCRIPTS
            for answer in answers(client, list(islice(cycle(script), TURNS)))
        ]
    assert len(replies) == len(SCRIPTS) * TURNS
    for reply in replies:
        words = re.findall(r"[a-z]+", reply.lower())
        assert set(words) - WORDS - {"anna"} == set(), reply
        assert not re.search(r"\b(\w+) \1\b", reply.lower()), reply
        assert re.search(r"[.?!`]$", reply), reply
