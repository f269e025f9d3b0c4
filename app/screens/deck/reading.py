"""Reading: what the user does with the messages on view: going to them, paging, copying."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.binding import Binding, BindingType

from app.screens.deck.exporting import Exporting
from widgets.chat.transcript import Transcript


class Reading(Exporting):
    """The part of the deck between the prompt and the messages above it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+up",
            "read",
            "Messages",
            tooltip="Go from message to message and act on them",
            show=False,
            id="chat.read",
        ),
        # These act before the prompt takes them: it is small, and the transcript is what one pages.
        Binding("pageup", "page(-1)", "Page up", show=False, id="chat.page_up", priority=True),
        Binding("pagedown", "page(1)", "Page down", show=False, id="chat.page_down", priority=True),
        Binding(
            "ctrl+c,super+c",
            "copy_text",
            "Copy selection",
            tooltip="Copy what the mouse selected",
            id="chat.copy_selection",
        ),
        Binding("end", "follow", "Follow the reply", show=False, id="chat.follow", priority=True),
    ]

    def switched(self) -> None:
        super().switched()
        self.action_leave()

    def action_read(self) -> None:
        """Go to the messages of the chat, the newest in view first."""
        self.remove_class("-engine")
        self.set_focus(self.chat.transcript)

    def action_leave(self) -> None:
        """Come back to the prompt."""
        self.remove_class("-engine")
        self.chat.transcript.rest()
        self.to_prompt()

    def to_prompt(self) -> None:
        """Give the prompt the focus, and leave a panel that is zoomed first: hidden behind that,
        the prompt would lose the focus as soon as it has it."""
        area = self.chat.prompt.area
        if self.maximized not in (None, *area.ancestors_with_self):
            self.minimize()
        area.focus()

    def action_page(self, pages: int) -> None:
        if pages < 0:
            self.chat.transcript.action_page_up()
        else:
            self.chat.transcript.action_page_down()

    def action_follow(self) -> None:
        self.chat.transcript.action_scroll_end()

    def action_copy_text(self) -> None:
        selected = self.get_selected_text() or ""
        super().action_copy_text()
        self.notify(f"Copied the selection, {len(selected):,} characters.")

    @on(Transcript.Typed)
    def write(self, event: Transcript.Typed) -> None:
        """Go on in the prompt with what was typed above it."""
        self.action_leave()
        self.chat.prompt.area.post_message(events.Paste(event.text))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("page", "follow"):
            # Prompt and transcript both know these keys.
            area = self.chat.prompt.area
            if area.has_focus:
                return action == "page" or area.cursor_at_end_of_text
            return self.chat.transcript.has_focus
        if action == "copy_text":
            return bool(self.selections)
        return super().check_action(action, parameters)
