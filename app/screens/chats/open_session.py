"""OpenSession: an open chat, with the screen's state of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from app.conversations.session import ChatSession
from app.gateway.sources import THEIRS
from app.screens.chats.chat_settings import ChatSettings
from app.screens.chats.watched import WatchedChat
from app.store.conversation import Conversation
from app.store.drafts import Draft
from engine.api.lifecycle import FinishReason
from widgets.chat.entry import Entry
from widgets.glyphs import UNICODE

UNTITLED = "new chat"


@dataclass(slots=True, eq=False)
class OpenSession:
    """A chat, with the screen's state of it.

    Attributes:
        draft: the unsent text; None until it was read from the store.
        kept: the draft as the store has it.
        unread: whether text has come that has not been on view.
        had_failed: whether its last reply had failed when the program was started.
        was_unsaved: whether the user knows that it is not saved.
        entries: the transcript's entries of messages that do not change any more, by their ids.
        entries_day: the day on which that was today.
    """

    chat: ChatSession | WatchedChat
    draft: Draft | None = None
    kept: Draft = field(default_factory=Draft)
    unread: bool = False
    had_failed: bool = False
    was_unsaved: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)
    entries_day: date | None = None

    @property
    def key(self) -> str:
        return self.chat.conversation.id

    @property
    def title(self) -> str:
        return title_of(self.chat.conversation)

    @property
    def refusal(self) -> str:
        """Why no message can be sent in the chat; empty if one can."""
        return self.chat.refusal if isinstance(self.chat, WatchedChat) else ""

    @property
    def is_own(self) -> bool:
        """Whether the chat belongs to this screen, and is not merely watched."""
        return isinstance(self.chat, ChatSession)

    @property
    def request_id(self) -> str:
        """The engine's id of the running reply; empty if there is none."""
        if isinstance(self.chat, WatchedChat):
            return self.chat.request_id or ""
        return (self.chat.messages[-1].request_id or "") if self.chat.is_busy else ""

    @property
    def settings(self) -> ChatSettings:
        """The settings of its next turn."""
        conversation = self.chat.conversation
        return ChatSettings(conversation.system, conversation.sampling)

    @property
    def is_empty(self) -> bool:
        """Whether it has no message yet."""
        return self.chat.is_empty if isinstance(self.chat, ChatSession) else not self.chat.messages

    @property
    def is_stored(self) -> bool:
        """Whether the store has it: it has a message, or a draft."""
        return bool(self.kept) or not self.is_empty

    @property
    def can_regenerate(self) -> bool:
        """Whether there is a reply to regenerate, and none is running in any program."""
        replies = (m for m in reversed(self.chat.messages) if m.role == "assistant")
        newest = next(replies, None)
        return self.is_own and newest is not None and newest.finish_reason is not None

    @property
    def is_read(self) -> bool:
        """Whether its messages are in memory. If not, no request was sent in it since the program
        started."""
        return self.chat.is_read if isinstance(self.chat, ChatSession) else True

    @property
    def last_request(self) -> str:
        """The engine's id of the last reply, running or ended; empty if there is none, or if the
        messages are not in memory."""
        if not self.is_read or not self.chat.messages:
            return ""
        return self.chat.messages[-1].request_id or ""

    @property
    def has_failed(self) -> bool:
        """Whether its last reply failed."""
        if not self.is_read:
            return self.had_failed
        messages = self.chat.messages
        return bool(messages) and messages[-1].finish_reason is FinishReason.ERROR

    @property
    def trouble(self) -> str:
        """Why its last reply failed; empty if it did not."""
        error = self.chat.messages[-1].error if self.chat.messages else None
        return error.message if error is not None else ""

    def read(self) -> None:
        """Read the messages, if they are not in memory.

        Raises:
            StoreError: they cannot be read.
        """
        if isinstance(self.chat, ChatSession):
            self.chat.read()

    @property
    def history(self) -> tuple[str, ...]:
        """The messages that the user sent, the oldest first; none of a watched chat."""
        return tuple(
            as_written(m.content) for m in self.chat.messages if m.role == "user" and self.is_own
        )


def as_written(text: str) -> str:
    """A message as typed into the prompt, where a line with a single slash would be a command."""
    return f"/{text}" if text.startswith("/") else text


def title_of(conversation: Conversation) -> str:
    """The title as it is shown. It begins with the name of the user who holds the conversation, if
    that is not the user of the screen."""
    title = conversation.title or UNTITLED
    if conversation.source in THEIRS:
        title = f"@{conversation.user} {title}"
    return UNICODE.fit(title)
