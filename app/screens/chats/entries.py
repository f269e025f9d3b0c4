"""Entries: a chat's messages as the transcript shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date

from app.screens.chats.open_session import OpenSession
from app.store.conversation import Message
from engine.api.errors import ContextLengthError, InvalidRequestError
from engine.api.lifecycle import FinishReason
from engine.api.snapshot import RequestView
from engine.api.status import EnginePhase, EngineStatus
from engine.api.waiting import in_words
from widgets.chat.entry import Entry
from widgets.figures import compact, count, day_and_time, duration, percent
from widgets.glyphs import Mark, state_mark


class Entries:
    """Makes entries, and caches those of unchanging messages in their session.

    Args:
        clock: seconds since the epoch.

    Attributes:
        new_key, edit_key, resume_key: the keys that open a new chat, edit the last message and go
            on with the last reply, as they are shown to the user.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.new_key = self.edit_key = self.resume_key = ""

    def of(
        self,
        session: OpenSession,
        views: Mapping[str, RequestView],
        status: EngineStatus,
        paused: bool,
        can_resume: bool = False,
    ) -> list[Entry]:
        """The entries of a session's messages.

        Args:
            views: the requests of the newest snapshot by id, for the state of a growing reply.
            status: the engine's status, for the reason why a reply without a request waits.
            paused: whether the engine is paused.
            can_resume: whether the last reply can be continued.
        """
        entries: list[Entry] = []
        kept, today = session.entries, date.fromtimestamp(self._clock())
        if today != session.entries_day:
            # Entries of what was today now need their day beside the time.
            kept.clear()
            session.entries_day = today
        author = "you" if session.is_own else session.chat.conversation.user
        tools: dict[str | None, str] = {}  # names by the ids of their calls
        request_id, places = session.request_id, session.chat.places
        messages = session.chat.messages
        for message in messages:
            entry, place = kept.get(message.id), places.get(message.id)
            growing = bool(request_id) and message is messages[-1]
            if growing:
                # It may have ended before, and been continued.
                kept.pop(message.id, None)
            if entry is None or growing or entry.branch != place:
                view = views.get(request_id) if growing else None
                if not growing:
                    note = outcome(message)
                    if session.is_own and is_refused_prompt(message):
                        note += f"; {self.edit_key} edits your message"
                        # It is too long with the messages before it; alone it may not be.
                        if len(entries) > 1:
                            note += f", and a new chat ({self.new_key}) begins afresh"
                elif is_ahead(session, view):
                    note = streaming(session.chat.num_output_tokens)
                else:
                    note = progress(view, status, paused)
                tool = message.name or tools.get(message.tool_call_id, "")
                entry = replace(
                    _entry(message, author, note, growing, today), branch=place, tool=tool
                )
                # A continued reply may have thought before it was continued.
                if growing and session.chat.thought.tokens:
                    tokens, seconds = session.chat.thought
                    entry = replace(entry, thought_tokens=tokens, thought_seconds=seconds)
                # A watched reply may have ended in the engine before its end is known here.
                if message.role != "assistant" or message.finish_reason is not None:
                    kept[message.id] = entry
            entries.append(entry)
            if message.tool_use is not None:
                tools |= {call.id: call.name for call in message.tool_use.calls}
        if entries and can_resume:
            entries[-1] = self._resumable(entries[-1])
        return entries

    def _resumable(self, entry: Entry) -> Entry:
        """The entry of a reply that ended early, with the key that continues it."""
        how = f"{self.resume_key} continues it"
        if entry.failed:
            return replace(entry, note=f"{entry.note}; {how}")
        # If the line is cut, it should lose figures and not the key.
        state, divider, figures = entry.note.partition(" · ")
        return replace(entry, note=f"{state} · {how}{divider}{figures}")


def progress(view: RequestView | None, status: EngineStatus, paused: bool = False) -> str:
    """The state of a running reply, in words.

    Args:
        view: the reply's request in the newest snapshot; None if it is not there.
    """
    if view is None:
        match status.phase:
            case EnginePhase.LOADING:
                share = status.loaded_bytes / status.total_bytes if status.total_bytes else None
                done = f", {percent(share)}" if share is not None else ""
                return f"queued: {status.model} is being loaded{done}"
            case EnginePhase.DRAINING:
                return "queued: the model is being switched"
        return "queued"
    match state_mark(view, paused):
        case Mark.QUEUED:
            return f"queued: {in_words(view.wait)}" if view.wait else "queued"
        case Mark.PREEMPTED:
            fate = "it waits in host memory" if view.host_blocks else "it will be recomputed"
            return f"preempted, {fate}: {in_words(view.wait)}"
        case Mark.PAUSED:
            return f"paused · {count(view.output_tokens)} tok"
        case Mark.PREFILL:
            done = f"{count(view.computed_tokens)}/{count(view.prompt_tokens)}"
            return f"reading the prompt · {done} tok"
    return streaming(view.output_tokens)


def is_ahead(session: OpenSession, view: RequestView | None) -> bool:
    """Whether more tokens of a reply have come than the newest snapshot has, because text arrives
    sooner."""
    return session.chat.num_output_tokens > (view.output_tokens if view is not None else 0)


def streaming(num_tokens: int) -> str:
    return f"streaming · {count(num_tokens)} tok"


def outcome(message: Message) -> str:
    """How a reply ended, with its figures; empty for a message that is not a reply."""
    if message.role != "assistant":
        return ""
    if message.error is not None:
        return message.error.message
    parts = []
    match message.finish_reason:
        case FinishReason.ABORT:
            parts.append("stopped")
        case FinishReason.LENGTH:
            parts.append("cut off at the token limit")
    if message.usage is not None:
        parts.append(f"{count(message.usage.completion_tokens)} tok")
    if message.timings is not None:
        if message.timings.ttft is not None:
            parts.append(f"ttft {duration(message.timings.ttft)}")
        if message.timings.tpot:
            parts.append(f"{compact(1 / message.timings.tpot)} tok/s")
    return " · ".join(parts)


def is_refused_prompt(message: Message) -> bool:
    """Whether the engine refused the prompt of a reply, most often for its length."""
    error = message.error
    types = (InvalidRequestError.type, ContextLengthError.type)
    return error is not None and error.type in types and error.param == "prompt"


def _entry(message: Message, author: str, note: str, growing: bool, today: date) -> Entry:
    """The entry of a message as it stands.

    Args:
        author: who wrote the messages of the user.
        note: the text below the message.
        growing: whether the message is a running reply.
    """
    use, usage, timings = message.tool_use, message.usage, message.timings
    return Entry(
        key=message.id,
        role=message.role,
        author={"user": author, "system": "system", "tool": "tool"}.get(
            message.role, message.model or "model"
        ),
        clock=day_and_time(message.created, today),
        text=message.content if use is None else use.content,
        thinking=message.thinking,
        thought_tokens=usage.reasoning_tokens if usage else 0,
        thought_seconds=timings.thinking if timings else None,
        calls=tuple((call.name, call.arguments) for call in use.calls) if use else (),
        attachments=tuple((each.name, each.text) for each in message.attachments),
        note=note,
        growing=growing,
        failed=message.error is not None,
    )


def mark_of(session: OpenSession, views: Mapping[str, RequestView], paused: bool) -> Mark:
    """The state of a session: that of a running reply, otherwise whether the last one failed."""
    if session.chat.is_busy:
        view = views.get(session.request_id)
        if is_ahead(session, view):
            return Mark.DECODE
        # Until the next snapshot, the request before may still be listed as ended, and the new one
        # may not be listed yet.
        return state_mark(view, paused) if view and view.finish_reason is None else Mark.QUEUED
    return Mark.FAILED if session.has_failed else Mark.IDLE
