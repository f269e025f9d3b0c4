"""Conversation: a chat, its tree of messages and their attachments, as plain data."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.api.client import ChatMessage
from engine.api.errors import ErrorInfo
from engine.api.lifecycle import FinishReason, Timings
from engine.api.stream import Usage
from engine.api.tools import ToolUse

_FENCE = re.compile(r"^`{3,}", re.MULTILINE)


def new_id() -> str:
    return uuid.uuid4().hex


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A chat: its title, its settings, and its position in its tree of messages.

    Attributes:
        sampling: replaces defaults by name (`engine.api.sampling.SamplingParams`).
        user, source: its owner, and its front end.
        created, updated: seconds since the epoch.
        leaf: id of the newest message of the branch on view.
        is_open: whether it is open on the screen.
        number: its number on the screen, from 1, for as long as it exists; None if it never was on
            a screen.
        is_named: whether the user set its title, which then stays whatever branch is on view.
        forked_from: id of the conversation that it was forked from.
        is_archived: whether tabs, list and search leave it out by default.
        deleted_at: seconds since the epoch; None unless it is deleted and can still be restored.
        pinned_at: seconds since the epoch; None if it is not pinned. Lists begin with the pinned
            chats, the one that was pinned first above the others.
    """

    id: str = field(default_factory=new_id)
    title: str = ""
    system: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict)
    user: str = "local"
    source: str = "screen"
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    leaf: str | None = None
    is_open: bool = True
    number: int | None = None
    is_named: bool = False
    forked_from: str | None = None
    is_archived: bool = False
    deleted_at: float | None = None
    pinned_at: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The settings that a reply was requested with.

    Attributes:
        sampling: overrides of the model's defaults, by name.
    """

    system: str
    sampling: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file, or a pasted text.

    Attributes:
        name: of the file, without its folder, or of the paste.
    """

    name: str
    text: str

    @property
    def prompt_text(self) -> str:
        """The attachment in the prompt: its name, and the text in a fence of backticks that is
        longer than any in the text."""
        longest = max((len(found) for found in _FENCE.findall(self.text)), default=2)
        fence = "`" * (longest + 1)
        end = "" if self.text.endswith("\n") else "\n"
        return f"{self.name}:\n{fence}\n{self.text}{end}{fence}"


def with_attachments(content: str, attachments: tuple[Attachment, ...]) -> str:
    """A message in the prompt: its attachments, and then its text."""
    return "\n\n".join((*(attachment.prompt_text for attachment in attachments), content)).strip(
        "\n"
    )


@dataclass(slots=True, kw_only=True)
class Message:
    """One message of a conversation's tree.

    Attributes:
        parent_id: the message before it; messages with the same parent are alternatives.
        role: user, assistant, or tool: then the content is the tool's result.
        thinking: the model's thinking before the content.
        tool_use: the assistant's tool calls; the content has the calls too, as the model wrote
            them.
        tool_call_id, name: of the call that a tool answers, and of the tool, if known.
        created: seconds since the epoch.
        model: name of the model that wrote it, or that it was sent to.
        attachments: texts that belong to a message of the user.
        request_id: of the request that wrote it.
        asked: the settings that it was requested with; None if it is not a reply, or is older than
            this field.
        finish_reason: None while it is being written, and for a user's message.
        error: set when the reason is `error`.
    """

    id: str = field(default_factory=new_id)
    conversation_id: str
    parent_id: str | None
    role: str
    content: str
    thinking: str = ""
    tool_use: ToolUse | None = None
    tool_call_id: str = ""
    name: str = ""
    created: float = field(default_factory=time.time)
    model: str = ""
    request_id: str | None = None
    finish_reason: FinishReason | None = None
    error: ErrorInfo | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    attachments: tuple[Attachment, ...] = ()
    asked: Asked | None = None

    def chat_message(self) -> ChatMessage:
        """The message in the form of the prompt."""
        use = self.tool_use
        return ChatMessage(
            self.role,
            with_attachments(self.content, self.attachments) if use is None else use.content,
            self.thinking,
            () if use is None else use.calls,
            self.tool_call_id,
            self.name,
        )
