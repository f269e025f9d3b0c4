"""ChatState: a chat at one moment as plain data, and the events that bring a page up to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.conversations.session import ChatSession
from app.gateway.http.page.frame import number
from app.gateway.http.page.markup import GrowingMarkup, blocks, call
from app.store.conversation import Message
from engine.api.lifecycle import FinishReason

Plain = dict[str, Any]

# The last messages come with their contents at once; a page asks for others when they come into
# view.
MOST_BODIES = 8
_STATES = {
    FinishReason.LENGTH: "cut",
    FinishReason.ABORT: "stopped",
    FinishReason.ERROR: "failed",
}


@dataclass(frozen=True, slots=True)
class ChatState:
    """One moment of a chat. Its messages do not change any more.

    Attributes:
        chat: the chat's labels and settings.
        messages: the branch on view, oldest first.
        heads: for each message, all but its content.
        is_running: whether the last message is a reply in progress.
    """

    chat: Plain
    messages: tuple[Message, ...]
    heads: tuple[Plain, ...]
    is_running: bool


def read_state(session: ChatSession) -> ChatState:
    """The state of a chat; called on the thread that its session belongs to.

    Raises:
        StoreError: it cannot be read.
    """
    session.read_changes()
    conversation, messages, places = session.conversation, session.messages, session.places
    last = messages[-1] if messages else None
    is_running = last is not None and last.role == "assistant" and last.finish_reason is None
    if last is not None and is_running:
        messages = (*messages[:-1], replace(last))
    chat = {
        "id": conversation.id,
        "title": conversation.title,
        "system": conversation.system,
        "sampling": dict(conversation.sampling),
        "pinned": conversation.pinned_at is not None,
        "running": is_running,
        "resumable": session.can_resume,
        "unsaved": session.unsaved,
    }
    heads = tuple(_head(message, places.get(message.id)) for message in messages)
    return ChatState(chat, messages, heads, is_running)


def body(message: Message) -> Plain:
    """The content of a message."""
    if message.role != "assistant":
        files = [{"name": file.name, "text": file.text} for file in message.attachments]
        return {"text": message.content, "files": files, "name": message.name}
    use = message.tool_use
    text = message.content if use is None else use.content
    return {
        "text": text,
        "blocks": blocks(text),
        "thinking": blocks(message.thinking),
        "calls": [] if use is None else [call(one.name, one.arguments) for one in use.calls],
    }


def bodies(messages: Iterable[Message]) -> dict[str, Plain]:
    """The contents of messages, by their ids."""
    return {message.id: body(message) for message in messages}


def _head(message: Message, place: tuple[int, int] | None) -> Plain:
    reason = message.finish_reason
    lengths = f"{len(message.content)}.{len(message.thinking)}"
    is_running = message.role == "assistant" and reason is None
    return {
        "id": message.id,
        "role": message.role,
        # Changes with the content, which the page then needs anew.
        "stamp": "" if is_running else f"{lengths}.{reason}",
        "place": place,
        "chars": len(message.content),
        "state": "running" if is_running else _STATES.get(reason, "") if reason else "",
        "error": message.error.message if message.error is not None else "",
        "model": message.model,
        "request": message.request_id,
        "figures": _figures(message),
    }


def _figures(message: Message) -> Plain | None:
    usage, timings = message.usage, message.timings
    if usage is None or timings is None:
        return None
    return {
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_tokens,
        "output": usage.completion_tokens,
        "ttft": number(timings.ttft),
        "tpot": number(timings.tpot),
        "queue": number(timings.queue),
        "whole": number(timings.e2e),
        "thinking": number(timings.thinking),
    }


class _Part:
    """A growing text, and as how many final blocks the page has it."""

    def __init__(self) -> None:
        self._markup = GrowingMarkup()
        self._text = ""
        self._is_new = True

    def grow(self, text: str) -> Plain | None:
        """The blocks that the page lacks; None if it has all. `anew` replaces all of them."""
        if text == self._text and not self._is_new:
            return None
        is_new = self._is_new or not text.startswith(self._text)
        if is_new:
            self._markup = GrowingMarkup()
        self._text, self._is_new = text, False
        final, last = self._markup.grow(text)
        return {"final": final, "open": last, "anew": is_new}


class Following:
    """The state that one page has of a chat."""

    def __init__(self) -> None:
        self._shown: tuple[Plain, tuple[Plain, ...]] | None = None
        self._stamps: dict[str, str] = {}
        self._reply: tuple[str, _Part, _Part] | None = None

    def events(self, state: ChatState) -> Iterator[tuple[str, Plain]]:
        """The events that bring the page from its state to this one."""
        shown = state.chat, state.heads
        if shown != self._shown:
            self._shown = shown
            yield "chat", {**state.chat, "messages": state.heads, "bodies": self._bodies(state)}
        if not state.is_running:
            self._reply = None
            return
        reply = state.messages[-1]
        if self._reply is None or self._reply[0] != reply.id:
            self._reply = reply.id, _Part(), _Part()
        thinking = self._reply[1].grow(reply.thinking)
        text = self._reply[2].grow(reply.content)
        if thinking or text:
            yield "reply", {"id": reply.id, "thinking": thinking, "text": text}

    def _bodies(self, state: ChatState) -> Mapping[str, Plain]:
        """The contents of the last messages, as far as the page does not have them."""
        wanted = []
        recent = zip(state.messages[-MOST_BODIES:], state.heads[-MOST_BODIES:], strict=True)
        for message, head in recent:
            if head["stamp"] and self._stamps.get(message.id) != head["stamp"]:
                self._stamps[message.id] = head["stamp"]
                wanted.append(message)
        return bodies(wanted)
