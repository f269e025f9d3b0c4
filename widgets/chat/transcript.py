"""Transcript: a conversation as it is read, one widget whatever its length."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from widgets.chat.message_view import MessageView
from widgets.chat.typeset import last_code_block


class Transcript(MessageView, can_focus=True):
    """Shows the messages of one chat, following the newest unless scrolled up. One of them may be
    the current one, which is marked at its edge and moved by the arrow keys. The keys that page are
    the screen's, for they act from the prompt too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Previous message", show=False, id="transcript.previous"),
        Binding("down,j", "move(1)", "Next message", show=False, id="transcript.next"),
        Binding("home", "scroll_home", "First message", show=False, id="transcript.first"),
        Binding("shift+up", "scroll_up", "Line up", show=False, id="transcript.up"),
        Binding("shift+down", "scroll_down", "Line down", show=False, id="transcript.down"),
        Binding("y", "copy_code", "Copy code", id="transcript.copy_code"),
        Binding("c", "copy_reply", "Copy reply", id="transcript.copy_reply"),
    ]

    class CopyWanted(Message):
        """The user asks for `text`, a `what`, on the clipboard."""

        def __init__(self, text: str, what: str) -> None:
            super().__init__()
            self.text = text
            self.what = what

    class Typed(Message):
        """Text was typed or pasted here, which is meant for the prompt."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def action_move(self, places: int) -> None:
        """Make the message so many places from the current one the current one. Below the last, go
        to the end."""
        if not self._entries:
            return
        index = self._passages.find(self._current) if self._current else None
        seen = self._seen_messages
        if index is None or index not in seen:
            # One has scrolled away from it, and goes on from what one sees.
            self._mark(self._entries[seen.start if places > 0 else seen.stop - 1].key)
        elif index + places >= len(self._entries):
            self.action_scroll_end()
        else:
            index = max(0, index + places)
            self._mark(self._entries[index].key)
            self._reveal(index)

    def action_scroll_home(self) -> None:
        if self._entries:
            self._show_from(0)
            if self._current:
                self._mark(self._entries[0].key)

    def action_scroll_end(self) -> None:
        self.follow()
        if self._current:
            self._mark(self._entries[-1].key)

    def action_copy_code(self) -> None:
        """Ask for the last code block on the clipboard."""
        for entry in reversed(self._entries):
            if entry.role == "assistant" and (code := last_code_block(entry.text)) is not None:
                self.post_message(self.CopyWanted(code, "code block"))
                return
        self.notify("There is no code block in this chat.", severity="warning")

    def action_copy_reply(self) -> None:
        """Ask for the last reply on the clipboard."""
        for entry in reversed(self._entries):
            if entry.role == "assistant" and entry.text:
                self.post_message(self.CopyWanted(entry.text, "reply"))
                return
        self.notify("There is no reply in this chat.", severity="warning")

    def on_focus(self) -> None:
        if not self._current and self._entries:
            self._mark(self._entries[self._seen_messages.stop - 1].key)

    def on_click(self, event: events.Click) -> None:
        if (code := event.style.meta.get("code")) is not None:
            self.post_message(self.CopyWanted(code, "code block"))
        elif self._entries:
            row = self.scroll_offset.y + event.y
            self._mark(self._entries[self._passages.index_at(row)].key)

    def on_key(self, event: events.Key) -> None:
        if event.character and event.is_printable and event.key not in self.screen.active_bindings:
            event.stop()
            self.post_message(self.Typed(event.character))

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.post_message(self.Typed(event.text))
