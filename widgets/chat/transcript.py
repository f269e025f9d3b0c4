"""Transcript: a chat for reading, one widget whatever its length."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from widgets.chat.entry import Entry
from widgets.chat.message_view import MessageView
from widgets.chat.typeset import code_blocks
from widgets.glyphs import UNICODE, Glyphs


class Transcript(MessageView, can_focus=True):
    """Shows the messages of one chat, following the newest unless scrolled up. One of them may be
    the current one, which is marked at its edge and moved by the arrow keys. The screen binds the
    paging keys, because they also act from the prompt."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Previous message", show=False, id="transcript.previous"),
        Binding("down,j", "move(1)", "Next message", show=False, id="transcript.next"),
        Binding("home", "scroll_home", "First message", show=False, id="transcript.first"),
        Binding("shift+up", "scroll_up", "Line up", show=False, id="transcript.up"),
        Binding("shift+down", "scroll_down", "Line down", show=False, id="transcript.down"),
        Binding(
            "enter,space",
            "fold",
            "Unfold",
            tooltip="Show thinking, calls, attachments; or fold",
            id="transcript.fold",
        ),
        Binding(
            "t",
            "thinking",
            "Thinking",
            tooltip="Show all thinking, or fold it",
            show=False,
            id="transcript.thinking",
        ),
        Binding(
            "y",
            "copy_code",
            "Copy code",
            tooltip="Copy a block of code; again: the next",
            id="transcript.copy_code",
        ),
        Binding(
            "c",
            "copy_message",
            "Copy message",
            tooltip="Copy the marked message, else the last reply",
            id="transcript.copy_message",
        ),
        # For a message without code, the key copies the message.
        Binding("y", "copy_message", "Copy message", show=False, id="transcript.copy_code"),
    ]

    class CopyWanted(Message):
        """Copy `text` to the clipboard; `what` says what it is."""

        def __init__(self, text: str, what: str) -> None:
            super().__init__()
            self.text = text
            self.what = what

    class Typed(Message):
        """Text was typed or pasted here that belongs in the prompt."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._is_left = False  # whether text was typed here, and the focus is moving away
        self._copied = ("", 0)  # the message whose code was copied last, and the next block

    def action_move(self, places: int) -> None:
        """Move the current message by so many places. Below the last, scroll to the end."""
        if not self._entries:
            return
        index = self._passages.find(self._current) if self._current else None
        seen = self._seen_messages
        if index is None or index not in seen:
            # The user has scrolled away from it, so start from the visible messages.
            self._mark(self._entries[seen.start if places > 0 else seen.stop - 1].key)
        elif index + places >= len(self._entries):
            self.action_scroll_end()
        else:
            index = max(0, index + places)
            self._mark(self._entries[index].key)
            self._reveal(index)

    def action_scroll_home(self) -> None:
        if self._entries:
            self._scroll_to_entry(0)
            if self._current:
                self._mark(self._entries[0].key)

    def action_scroll_end(self) -> None:
        self.follow()
        if self._current:
            self._mark(self._entries[-1].key)

    def action_fold(self) -> None:
        """Unfold the current message, or fold it again."""
        if self._current:
            self.fold(self._current)

    def action_thinking(self) -> None:
        """Show or fold the thinking of every message."""
        self.show_thinking(not self._passages.shows_thinking)

    def action_copy_code(self) -> None:
        """Copy a block of code: those of the current message one after the other, else the last of
        all."""
        if (entry := self._find_current()) is None:
            replies = (e for e in reversed(self._entries) if e.role == "assistant")
            blocks = next(filter(None, (code_blocks(reply.text) for reply in replies)), [])[-1:]
        else:
            blocks = code_blocks(entry.text) if entry.role == "assistant" else []
        if not blocks and entry is None:
            self.notify("There is no code block in this chat.", severity="warning")
        elif not blocks:
            self.action_copy_message()
        else:
            key, place = self._copied
            place = place % len(blocks) if key == self._current else 0
            self._copied = self._current, place + 1
            which = f" {place + 1} of {len(blocks)}" if len(blocks) > 1 else ""
            self.post_message(self.CopyWanted(blocks[place], f"code block{which}"))

    def action_copy_message(self) -> None:
        """Copy the current message, else the last reply."""
        entry = self._find_current() or next(
            (e for e in reversed(self._entries) if e.role == "assistant" and _said(e)), None
        )
        if entry is None:
            self.notify("There is no reply in this chat.", severity="warning")
        elif not (said := _said(entry)):
            self.notify("There is no text in this message.", severity="warning")
        else:
            what = {"assistant": "reply", "tool": "tool's answer"}.get(entry.role, "message")
            self.post_message(self.CopyWanted(said, what))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "fold":
            entry = self._find_current()
            return entry is not None and _can_be_folded(entry)
        if action == "copy_code":
            entry = self._find_current()
            return entry is None or _has_code(entry)
        return super().check_action(action, parameters)

    def on_blur(self) -> None:
        self._is_left = False

    def on_focus(self) -> None:
        if not self._current and self._entries:
            self._mark(self._entries[self._seen_messages.stop - 1].key)

    def on_click(self, event: events.Click) -> None:
        if (code := event.style.meta.get("code")) is not None:
            self.post_message(self.CopyWanted(code, "code block"))
        elif self._entries:
            row = self.scroll_offset.y + event.y
            self._mark(self._entries[self._passages.index_at(row)].key)
            if event.style.meta.get("fold"):
                self.action_fold()

    def on_key(self, event: events.Key) -> None:
        if not event.character or not event.is_printable:
            return
        # Letters typed before the focus has moved to the prompt belong to the same text.
        if self._is_left or event.key not in self.screen.active_bindings:
            self._is_left = True
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(event.character))

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.post_message(self.Typed(event.text))

    def _find_current(self) -> Entry | None:
        index = self._passages.find(self._current) if self._current else None
        return None if index is None else self._entries[index]


def _said(entry: Entry) -> str:
    """The copied text of a message: its text, and its tool calls."""
    calls = (f"{name}({arguments})" for name, arguments in entry.calls)
    return "\n\n".join(filter(None, (entry.text, *calls)))


def _has_code(entry: Entry) -> bool:
    """Whether there may be a block of code; checked at each key."""
    return entry.role == "assistant" and ("```" in entry.text or "~~~" in entry.text)


def _can_be_folded(entry: Entry) -> bool:
    return bool(entry.thinking or entry.calls or entry.attachments or entry.role == "tool")
