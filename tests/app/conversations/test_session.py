from __future__ import annotations

from pathlib import Path

import pytest

from app.conversations.history import History
from app.conversations.session import ChatSession
from app.store.conversation import Conversation, Message
from app.store.journal import RESTARTED
from app.store.store import Store
from engine.api.client import ChatMessage
from engine.api.errors import ErrorInfo, InvalidRequestError
from engine.api.lifecycle import FinishReason, Timings
from engine.api.status import EnginePhase, EngineStatus
from engine.api.stream import Finish, Usage
from engine.api.tools import ToolCall, ToolUse
from tests.support.scripted_engine import ScriptedEngine

REPLIES = {"one": "first reply", "two": "second reply", "long": "a b c d e f g h"}


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(REPLIES)


def reopened(engine: ScriptedEngine, store: Store) -> ChatSession:
    (conversation,) = store.conversations()
    return ChatSession(engine, conversation, store)


TOOLS = [{"type": "function", "function": {"name": "clock"}}]


def ask(session: ChatSession, engine: ScriptedEngine, text: str) -> Message:
    session.send(text)
    engine.finish_all()
    delta = session.poll()
    assert delta is not None
    assert delta.finish is not None
    return session.messages[-1]


def told(engine: ScriptedEngine) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in engine.submissions[-1].messages]


def extends_context(engine: ScriptedEngine, earlier: int, later: int = -1) -> bool:
    """Whether a prompt begins with exactly what the model had before, and ends differently."""
    first, second = engine.submissions[earlier], engine.submissions[later]
    assert second.context is not None
    before, after = engine.prompts[first.request_id], engine.prompts[second.request_id]
    ids = tuple(second.context.token_ids)
    return ids[: len(before)] == before and after[: len(ids)] == ids and len(after) > len(ids)


def test_the_reply_grows_as_it_comes(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    wakes: list[None] = []
    assert session.messages == ()
    session.send("one", wake=lambda: wakes.append(None))
    assert session.is_busy
    assert session.poll() is None
    assert [(m.role, m.content) for m in session.messages] == [("user", "one"), ("assistant", "")]
    engine.advance()
    assert len(wakes) == 1
    assert (session.num_prompt_tokens, session.num_output_tokens) == (4, 0)
    delta = session.poll()
    assert delta is not None
    assert (delta.text, delta.finish) == ("first", None)
    assert (session.num_prompt_tokens, session.num_output_tokens) == (4, 1)
    reply = session.messages[-1]
    assert (reply.content, reply.finish_reason) == ("first", None)
    engine.advance()
    session.poll()
    assert not session.is_busy
    assert (session.num_prompt_tokens, session.num_output_tokens) == (0, 0)
    assert (reply.content, reply.finish_reason) == ("first reply", FinishReason.STOP)
    assert reply.model == "scripted"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2
    assert reply.timings is not None
    assert reply.timings.tpot == pytest.approx(0.02)
    assert session.poll() is None


def test_who_asks_and_how_goes_to_the_engine(engine: ScriptedEngine) -> None:
    conversation = Conversation(user="eve", source="mqtt", system="Be brief.")
    conversation.sampling = {"top_k": 2}
    session = ChatSession(engine, conversation, sampling={"top_k": 1, "seed": 4})
    ask(session, engine, "one\n  two")
    submission = engine.submissions[0]
    assert submission.sampling == {"top_k": 2, "seed": 4}
    assert submission.chat_defaults
    assert submission.messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "one\n  two"),
    )
    origin = submission.origin
    assert (origin.user, origin.source, origin.title) == ("eve", "mqtt", "one two")
    assert origin.conversation == conversation.id


@pytest.mark.parametrize("system", ["", "Be brief."])
def test_the_next_turn_extends_the_token_ids_exactly(engine: ScriptedEngine, system: str) -> None:
    session = ChatSession(engine, Conversation(system=system))
    for text in ("one", "two", "three"):
        ask(session, engine, text)
    assert engine.submissions[0].context is None
    assert extends_context(engine, 0, 1)
    assert extends_context(engine, 1, 2)


def test_regenerating_stands_on_what_came_before_the_reply(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    ask(session, engine, "one")
    old = ask(session, engine, "two")
    session.regenerate()
    engine.finish_all()
    session.poll()
    new = session.messages[-1]
    assert (new.parent_id, new.id != old.id) == (old.parent_id, True)
    assert engine.submissions[2].messages == engine.submissions[1].messages
    assert engine.submissions[2].context == engine.submissions[1].context
    assert engine.submissions[2].request_id != engine.submissions[1].request_id
    ask(session, engine, "three")
    assert extends_context(engine, 2)


def test_an_edited_message_starts_a_branch_of_its_own(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    ask(session, engine, "one")
    ask(session, engine, "two")
    ask(session, engine, "three")
    session.edit(session.messages[2].id, "other")
    engine.finish_all()
    session.poll()
    assert told(engine) == [("user", "one"), ("assistant", "first reply"), ("user", "other")]
    assert engine.submissions[-1].context == engine.submissions[1].context
    session.edit(session.messages[0].id, "new start")
    assert told(engine) == [("user", "new start")]
    assert engine.submissions[-1].context is None


def test_only_the_users_own_messages_can_be_edited(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    reply = ask(session, engine, "one")
    for wrong in (reply.id, "unknown"):
        with pytest.raises(InvalidRequestError, match="cannot be edited"):
            session.edit(wrong, "x")


def test_a_stopped_reply_keeps_its_text_and_its_context(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    session.send("long")
    engine.advance(3)
    session.stop()
    session.poll()
    reply = session.messages[-1]
    assert (reply.content, reply.finish_reason) == ("a b c", FinishReason.ABORT)
    assert not session.is_busy
    session.stop()
    ask(session, engine, "two")
    assert extends_context(engine, 0)


def test_a_refused_turn_is_shown_but_not_told(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    ask(session, engine, "one")
    session.send("word " * 2000)
    session.poll()
    refused = session.messages[-1]
    assert refused.finish_reason is FinishReason.ERROR
    assert refused.error is not None
    assert refused.error.param == "prompt"
    ask(session, engine, "two")
    assert [text for _, text in told(engine)] == ["one", "first reply", "two"]
    assert extends_context(engine, 0)
    assert len(session.messages) == 6


def test_a_reply_that_failed_half_way_is_told_after_the_last_good_context(
    engine: ScriptedEngine,
) -> None:
    session = ChatSession(engine, Conversation())
    ask(session, engine, "one")
    session.send("long")
    engine.advance(2)
    engine.break_request(engine.submissions[-1].request_id, "the logits are not finite")
    session.poll()
    reply = session.messages[-1]
    assert reply.error is not None
    assert (reply.content, reply.error.message) == ("a b", "the logits are not finite")
    ask(session, engine, "two")
    assert [text for _, text in told(engine)][2:] == ["long", "a b", "two"]
    context = engine.submissions[-1].context
    assert context is not None
    assert context.num_messages == 2


def test_bad_text_is_refused_before_the_engine(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    for text in ("", " \n\t"):
        with pytest.raises(InvalidRequestError, match="the prompt is empty") as caught:
            session.send(text)
        assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequestError, match="half a surrogate pair at character 2"):
        session.send("ab\ud800")
    with pytest.raises(InvalidRequestError, match="no reply yet"):
        session.regenerate()
    assert engine.submissions == []
    assert session.messages == ()


def test_one_reply_at_a_time(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    session.send("long")
    for ask_again in (lambda: session.send("x"), session.regenerate):
        with pytest.raises(InvalidRequestError, match="stop it first"):
            ask_again()
    assert len(engine.submissions) == 1


def test_a_long_title_is_cut_between_words(engine: ScriptedEngine) -> None:
    session = ChatSession(engine, Conversation())
    ask(session, engine, "word " * 40)
    assert session.conversation.title == "word " * 11 + "word…"
    ask(session, engine, "other")
    assert session.conversation.title.startswith("word")


def test_a_conversation_goes_on_after_a_restart(engine: ScriptedEngine, store: Store) -> None:
    session = ChatSession(engine, Conversation(system="Be brief."), store)
    ask(session, engine, "one")
    ask(session, engine, "two")
    session.regenerate()
    engine.finish_all()
    session.poll()
    again = reopened(engine, store)
    assert again.messages == session.messages
    assert again.conversation == session.conversation
    ask(again, engine, "three")
    assert extends_context(engine, 2)
    again.edit(again.messages[2].id, "other")
    assert engine.submissions[-1].context == engine.submissions[1].context
    entry = store.journal.entry(engine.submissions[0].request_id)
    assert entry is not None
    assert (entry.reason, entry.source) == (FinishReason.STOP, "screen")
    assert entry.conversation_id == again.conversation.id


def test_what_came_before_a_crash_is_kept(engine: ScriptedEngine, tmp_path: Path) -> None:
    now = 0.0
    store = Store(tmp_path / "store.db")
    session = ChatSession(engine, Conversation(), store, clock=lambda: now)
    session.send("long")
    kept = []
    for _ in range(4):
        now += 1.0
        engine.advance()
        session.poll()
        kept.append(store.messages(session.conversation.id)[-1].content)
    assert kept == ["", "a b", "a b", "a b c d"]
    store.close()
    store = Store(tmp_path / "store.db")
    reply = reopened(engine, store).messages[-1]
    assert (reply.content, reply.error) == ("a b c d", RESTARTED)
    store.close()


def test_closing_ends_a_reply_that_nobody_takes_in(store: Store) -> None:
    engine = ScriptedEngine(REPLIES)
    session = ChatSession(engine, Conversation(), store)
    session.send("long")
    engine.advance(2)
    engine.abort = lambda request_id: None  # type: ignore[method-assign]  # an engine that hangs
    session.close()
    assert not session.is_busy
    reply = reopened(engine, store).messages[-1]
    assert (reply.content, reply.finish_reason) == ("a b", FinishReason.ABORT)


def test_closing_after_the_engine_ended_takes_its_word(store: Store) -> None:
    engine = ScriptedEngine(REPLIES)
    session = ChatSession(engine, Conversation(), store)
    session.send("long")
    engine.advance(2)
    engine.shutdown()
    session.close()
    reply = reopened(engine, store).messages[-1]
    assert reply.error is not None
    assert (reply.content, reply.error.type) == ("a b", "unavailable_error")


def test_the_chat_goes_on_without_its_store_and_is_written_later(
    engine: ScriptedEngine, store: Store
) -> None:
    session = ChatSession(engine, Conversation(), store)
    ask(session, engine, "one")
    store._db._db.execute("PRAGMA query_only = ON")
    reply = ask(session, engine, "two")
    assert reply.content == "second reply"
    assert "readonly" in session.unsaved
    assert len(reopened(engine, store).messages) == 2
    store._db._db.execute("PRAGMA query_only = OFF")
    ask(session, engine, "three")
    assert session.unsaved == ""
    assert reopened(engine, store).messages == session.messages
    assert extends_context(engine, 1)
    entries = [store.journal.entry(submission.request_id) for submission in engine.submissions]
    assert [entry and entry.reason for entry in entries] == [FinishReason.STOP] * 3


def test_thinking_is_kept_apart_and_told_with_the_next_turn(store: Store) -> None:
    engine = ScriptedEngine({"hi": "<think>They greet.</think>Hello you"})
    session = ChatSession(engine, Conversation(), store)
    reply = ask(session, engine, "hi")
    assert (reply.content, reply.thinking) == ("Hello you", "They greet.")
    assert reply.usage is not None
    assert reply.usage.reasoning_tokens == 2

    (kept,) = reopened(engine, store).messages[1:]
    assert (kept.content, kept.thinking, kept.usage) == (reply.content, reply.thinking, reply.usage)
    session.send("and")
    told = engine.submissions[-1].messages
    assert told[1] == ChatMessage("assistant", "Hello you", "They greet.")
    session.close()


def test_tool_calls_are_kept_beside_the_text_and_told_with_the_next_turn(store: Store) -> None:
    text = 'It is <tool_call>clock {"zone": "Köln"}</tool_call>'
    engine = ScriptedEngine({"When?": text})
    session = ChatSession(engine, Conversation(), store, sampling={"tools": TOOLS})
    reply = ask(session, engine, "When?")
    use = ToolUse((ToolCall("clock", '{"zone": "Köln"}'),), "It is")
    assert (reply.content, reply.tool_use) == (text, use)

    (kept,) = reopened(engine, store).messages[1:]
    assert (kept.content, kept.tool_use) == (text, use)
    session.send("and")
    told = engine.submissions[-1].messages
    assert told[1] == ChatMessage("assistant", "It is", tool_calls=use.calls)
    assert extends_context(engine, 0)
    session.close()


def test_what_tools_gave_is_kept_in_the_order_of_a_turn(store: Store) -> None:
    call = "<tool_call>clock {}</tool_call>"
    engine = ScriptedEngine({"When?": f"{call} {call}", "Noon": "", "Night": "Both"})
    session = ChatSession(engine, Conversation(), store, sampling={"tools": TOOLS})
    ask(session, engine, "When?")
    outcomes = [
        ChatMessage("tool", "Noon", tool_call_id="c1", name="clock"),
        ChatMessage("tool", "Night"),
    ]
    for attempt in (1, 2):  # what failed is told once more, and its outcomes are not repeated
        history = History(store.conversations()[0], store)
        last = history.add_outcomes(outcomes) if attempt == 1 else history.asked("r")
        assert last is not None
        messages, context = history.prompt(last)
        assert [m.role for m in messages] == ["user", "assistant", "tool", "tool"]
        assert list(messages[2:]) == outcomes
        assert context is not None
        assert context.num_messages == 2
        reply = history.reply(last, model="m", request_id="r", sampling={})
        error = ErrorInfo("engine_error", "the device is gone")
        history.finish(reply, Finish(FinishReason.ERROR, Usage(0, 0, 0), Timings(), error))
        with store.transaction():
            history.save()
    history.finish(reply, Finish(FinishReason.STOP, Usage(0, 0, 0), Timings()))
    messages, _ = history.prompt(history.add("and"))
    assert [m.role for m in messages] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    session.close()


def test_a_reply_has_the_name_of_its_model_though_that_was_loaded_from_a_folder(
    engine: ScriptedEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ChatSession(engine, Conversation(), store)
    loading = EngineStatus(EnginePhase.LOADING, "/models/mine")
    with monkeypatch.context() as patched:
        patched.setattr(engine, "status", lambda: loading)
        session.send("one")
        assert session.messages[-1].model == "/models/mine"
    engine.finish_all()
    session.poll()
    assert session.messages[-1].model == "scripted"
    (conversation,) = store.conversations()
    assert store.messages(conversation.id)[-1].model == "scripted"
