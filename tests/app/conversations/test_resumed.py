"""A reply that was cut off is gone on with in the same message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.conversations.session import ChatSession
from app.store.conversation import Conversation, Message
from app.store.store import Store
from engine.api.errors import InvalidRequestError
from engine.api.lifecycle import FinishReason
from tests.support.scripted_engine import ScriptedEngine

REPLY = "a b c d e f g h"
REPLIES = {
    "long": REPLY,
    "thinks": "<think>\none two\n</think>\n\nthree four five six",
    "one": "x y",
}

Start = Callable[..., ChatSession]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(REPLIES)


@pytest.fixture
def cut(engine: ScriptedEngine, store: Store) -> Start:
    """A chat whose reply was stopped after so many steps."""

    def start(text: str = "long", steps: int = 3) -> ChatSession:
        session = ChatSession(engine, Conversation(system="Be brief."), store)
        session.send(text)
        engine.advance(steps)
        session.stop()
        session.poll()
        return session

    return start


def finish(engine: ScriptedEngine, session: ChatSession) -> Message:
    engine.finish_all()
    while session.is_busy:
        assert session.poll() is not None
    return session.messages[-1]


def ids_of(engine: ScriptedEngine, index: int) -> tuple[int, ...]:
    return engine.prompts[engine.submissions[index].request_id]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stopped_reply_goes_on_from_its_exact_ids(
    engine: ScriptedEngine, store: Store, cut: Start, restarts: bool
) -> None:
    session = cut()
    before = session.messages[-1]
    assert (before.content, before.finish_reason) == ("a b c", FinishReason.ABORT)
    if restarts:
        (conversation,) = store.conversations()
        session = ChatSession(engine, conversation, store)
    assert session.can_resume
    session.resume()
    assert session.messages[-1].content == "a b c", "it stays on view until there is more"
    reply = finish(engine, session)
    assert (reply.id, reply.content) == (before.id, REPLY)
    assert reply.finish_reason is FinishReason.STOP
    assert not session.can_resume
    first, second = ids_of(engine, 0), ids_of(engine, 1)
    assert len(second) == len(first) + 3
    assert second[: len(first)] == first
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(first), 8)
    assert store.messages(session.conversation.id)[-1] == reply


def test_the_next_turn_goes_on_from_the_whole_reply(engine: ScriptedEngine, cut: Start) -> None:
    session = cut()
    session.resume()
    finish(engine, session)
    session.send("one")
    context = engine.submissions[-1].context
    assert context is not None
    assert context.num_messages == 3
    assert tuple(context.token_ids)[: len(ids_of(engine, 1))] == ids_of(engine, 1)


def test_it_is_cut_and_gone_on_with_again(engine: ScriptedEngine, cut: Start) -> None:
    session = cut()
    for _ in range(2):
        session.resume()
        engine.advance(2)
        session.stop()
        session.poll()
    assert session.messages[-1].content == "a b c d e f g"
    session.resume()
    reply = finish(engine, session)
    assert reply.content == REPLY
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 8
    assert reply.timings is not None
    assert reply.timings.tpot == pytest.approx(0.02)


def test_thinking_goes_on_as_thinking(engine: ScriptedEngine, cut: Start) -> None:
    session = cut("thinks", 2)
    assert session.messages[-1].thinking == "one"
    session.resume()
    reply = finish(engine, session)
    assert (reply.thinking, reply.content) == ("one two", "three four five six")


def test_the_time_of_thinking_runs_on_while_the_reply_goes_on(
    engine: ScriptedEngine, cut: Start
) -> None:
    session = cut("thinks", 4)
    timings = session.messages[-1].timings
    assert timings is not None
    assert timings.thinking is not None
    assert timings.thinking > 0
    session.resume()
    engine.advance(2)
    session.poll()
    assert session.is_busy
    shown = session.thought.seconds
    assert shown >= timings.thinking
    kept = finish(engine, session).timings
    assert kept is not None
    assert kept.thinking is not None
    assert kept.thinking >= shown


def test_what_a_dead_program_left_goes_on_from_its_text(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    dying = Store(tmp_path / "store.db")
    now = 0.0
    session = ChatSession(engine, Conversation(), dying, clock=lambda: now)
    session.send("long")
    engine.advance(3)
    now = 10.0
    session.poll()
    dying.close()
    again = Store(tmp_path / "store.db")
    (conversation,) = again.conversations()
    engine = ScriptedEngine(REPLIES)
    session = ChatSession(engine, conversation, again)
    assert session.messages[-1].error is not None
    session.resume()
    assert engine.submissions[-1].num_partial == 0
    reply = finish(engine, session)
    assert (reply.content, reply.error) == (REPLY, None)
    again.close()


def test_a_reply_that_is_gone_on_with_keeps_what_it_was_asked_for(
    engine: ScriptedEngine, cut: Start
) -> None:
    session = cut()
    session.conversation.system, session.conversation.sampling = "Be long.", {"top_k": 3}
    session.resume()
    assert engine.submissions[-1].messages[0].content == "Be brief."
    assert engine.submissions[-1].sampling == engine.submissions[0].sampling
    assert engine.submissions[-1].chat_defaults


def test_where_it_is_refused_it_is_what_it_was(engine: ScriptedEngine, cut: Start) -> None:
    session = cut()
    engine.fail("no model")
    session.resume()
    reply = finish(engine, session)
    assert reply.content == "a b c"
    assert reply.error is not None
    assert reply.error.message.startswith("no model is loaded")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3
    assert session.can_resume


def test_ids_that_lack_what_came_since_are_not_gone_on_from(
    engine: ScriptedEngine, store: Store, cut: Start
) -> None:
    """As after a crash in the midst of what came since."""
    session = cut()
    key = session.messages[-1].id
    assert store.contexts.of(key) is not None
    session.resume()
    assert store.contexts.of(key) is None


def test_only_what_was_cut_off_can_be_gone_on_with(
    engine: ScriptedEngine, store: Store, cut: Start
) -> None:
    session = ChatSession(engine, Conversation(), store)
    with pytest.raises(InvalidRequestError, match="no reply yet"):
        session.resume()
    session.send("one")
    assert not session.can_resume
    with pytest.raises(InvalidRequestError, match="is being generated"):
        session.resume()
    finish(engine, session)
    with pytest.raises(InvalidRequestError, match="is complete"):
        session.resume()
    empty = cut(steps=0)
    with pytest.raises(InvalidRequestError, match="has no text yet"):
        empty.resume()
