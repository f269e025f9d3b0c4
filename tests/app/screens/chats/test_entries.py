from __future__ import annotations

import dataclasses
import time
from datetime import datetime
from pathlib import Path

import pytest

from app.conversations.session import ChatSession
from app.screens.chats.entries import Entries, outcome, progress
from app.screens.chats.sessions import SessionList
from app.store.conversation import Attachment, Conversation, Message
from app.store.store import Store
from engine.api.client import ChatMessage, Submission
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, RequestState, Timings
from engine.api.snapshot import RequestView
from engine.api.status import EnginePhase, EngineStatus
from engine.api.stream import Usage
from engine.api.tools import ToolCall, ToolUse
from engine.api.waiting import Cause, Wait
from tests.support.clock import VirtualClock
from tests.support.scripted_engine import ScriptedEngine
from widgets.chat.entry import Entry

DAY = 86_400.0
READY = EngineStatus(EnginePhase.READY, "qwen")


@pytest.fixture
def view() -> RequestView:
    """A request that has begun to decode."""
    engine = ScriptedEngine()
    engine.submit(Submission(messages=(ChatMessage("user", "one two three"),)))
    engine.advance(2)
    snapshot = engine.snapshot()
    assert snapshot is not None
    return snapshot.requests[0]


def reply(reason: FinishReason | None, **more: object) -> Message:
    timings = Timings(0.01, 0.1, 1.0, 0.11, 0.0213, 1.11)
    values = {"usage": Usage(10, 47, 0), "timings": timings, **more}
    return Message(
        conversation_id="c",
        parent_id=None,
        role="assistant",
        content="text",
        finish_reason=reason,
        **values,  # type: ignore[arg-type]
    )


def test_what_a_reply_in_the_making_says(view: RequestView) -> None:
    assert progress(view, READY) == "streaming · 2 tok"
    prefilling = dataclasses.replace(view, prefilling=True, computed_tokens=128, prompt_tokens=1512)
    assert progress(view, READY, paused=True) == "paused · 2 tok"
    assert progress(prefilling, READY) == "reading the prompt · 128/1,512 tok"
    wait = Wait(Cause.BLOCKS, (3, 0, 4))
    reason = "no blocks: it needs 3, 0 of 4 are free for it"
    waiting = dataclasses.replace(view, state=RequestState.WAITING, wait=wait)
    assert progress(waiting, READY) == f"queued: {reason}"
    preempted = dataclasses.replace(waiting, state=RequestState.PREEMPTED)
    assert progress(preempted, READY) == f"preempted, it will be recomputed: {reason}"
    swapped = dataclasses.replace(preempted, host_blocks=9)
    assert progress(swapped, READY) == f"preempted, it waits in host memory: {reason}"
    assert progress(None, READY) == "queued"


def test_what_a_reply_says_that_waits_for_a_model() -> None:
    loading = EngineStatus(EnginePhase.LOADING, "qwen", "reading weights", 30, 120)
    assert progress(None, loading) == "queued: qwen is being loaded, 25%"
    starting = dataclasses.replace(loading, loaded_bytes=0, total_bytes=0)
    assert progress(None, starting) == "queued: qwen is being loaded"
    draining = EngineStatus(EnginePhase.DRAINING, "qwen")
    assert progress(None, draining) == "queued: the model is being switched"


def test_how_a_reply_ended() -> None:
    shown = "47 tok · ttft 110ms · 47 tok/s"
    assert outcome(reply(FinishReason.STOP)) == shown
    assert outcome(reply(FinishReason.ABORT)) == f"stopped · {shown}"
    assert outcome(reply(FinishReason.LENGTH)) == f"cut off at the token limit · {shown}"
    single = reply(FinishReason.STOP, timings=Timings(0.0, 0.1, 0.0, 0.1, None, 0.1))
    assert outcome(single) == "47 tok · ttft 100ms"
    error = reply(FinishReason.ERROR, error=ErrorInfo("engine_error", "it broke"))
    assert outcome(error) == "it broke"
    assert outcome(reply(None, usage=None, timings=None)) == ""


def shown_of(tmp_path: Path, *messages: Message) -> list[Entry]:
    """The entries of a chat that was kept with these messages, one after the other."""
    store = Store(tmp_path / "batchdeck.db")
    conversation, parent = Conversation(), None
    store.save_conversation(conversation)
    for message in messages:
        message.conversation_id, message.parent_id = conversation.id, parent
        store.save_message(message)
        parent = message.id
    conversation.leaf = parent
    store.save_conversation(conversation)
    session = SessionList(ScriptedEngine(), store).current
    entries = Entries().of(session, {}, READY, False)
    store.close()
    return entries


def test_a_message_of_another_day_has_its_day_and_so_has_one_once_the_day_is_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")  # nine hours before UTC
    time.tzset()
    try:
        evening = datetime(2026, 3, 12, 23, 50).timestamp()
        session = SessionList(ScriptedEngine(), store).current
        messages = [reply(FinishReason.STOP, created=evening - ago) for ago in (7 * DAY, DAY, 0.0)]
        monkeypatch.setattr(ChatSession, "messages", messages)
        clock = VirtualClock(evening)
        entries = Entries(clock)
        shown = [entry.clock for entry in entries.of(session, {}, READY, False)]
        assert shown == ["5 Mar 23:50", "11 Mar 23:50", "23:50"]
        clock.advance(DAY / 24)
        assert entries.of(session, {}, READY, False)[-1].clock == "12 Mar 23:50"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_calls_and_what_tools_gave_are_told_apart_from_the_text(tmp_path: Path) -> None:
    use = ToolUse((ToolCall("clock", '{"zone": 1}', "c1"),), "Let me see.")
    called = reply(FinishReason.STOP, tool_use=use)
    answer = Message(
        conversation_id="", parent_id=None, role="tool", content="noon", tool_call_id="c1"
    )
    first, second = shown_of(tmp_path, called, answer)
    assert (first.text, first.calls) == ("Let me see.", (("clock", '{"zone": 1}'),))
    assert (second.role, second.tool, second.text) == ("tool", "clock", "noon")


def test_what_was_thought_is_told_with_its_tokens_and_time(tmp_path: Path) -> None:
    timings = Timings(0.01, 0.1, 1.0, 0.11, 0.0213, 1.11, thinking=8.2)
    thought = reply(FinishReason.STOP, thinking="Hm.", usage=Usage(10, 47, 0, 12), timings=timings)
    (entry,) = shown_of(tmp_path, thought)
    assert (entry.thinking, entry.thought_tokens, entry.thought_seconds) == ("Hm.", 12, 8.2)


def test_a_time_that_was_not_kept_is_not_told(tmp_path: Path) -> None:
    old = reply(FinishReason.STOP, thinking="Hm.", usage=Usage(10, 47, 0, 12))
    (entry,) = shown_of(tmp_path, old)
    assert (entry.thought_tokens, entry.thought_seconds) == (12, None)


def test_attachments_are_no_part_of_the_text(tmp_path: Path) -> None:
    asked = Message(
        conversation_id="",
        parent_id=None,
        role="user",
        content="Compare.",
        attachments=(Attachment("a.txt", "one"),),
    )
    (entry,) = shown_of(tmp_path, asked)
    assert (entry.text, entry.attachments) == ("Compare.", (("a.txt", "one"),))
