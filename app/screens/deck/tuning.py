"""Tuning: changes for the user what a chat is asked with."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType

from app.screens.chats.chat_settings import ChatSettings
from app.screens.deck.reading import Reading
from app.screens.dialogs.edit_settings import EditSettings
from app.store.database import StoreError
from widgets.chat.prompt_head import PromptHead


class Tuning(Reading):
    """The part of the deck that deals with the settings of chats."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "f5",
            "settings",
            "Settings",
            show=False,
            tooltip="What this chat is asked with",
            id="chat.settings",
            priority=True,
        ),
    ]

    @on(PromptHead.SettingsWanted)
    def action_settings(self) -> None:
        """Show the settings of the chat on view, to be changed."""
        session = self.sessions.current
        if session.refusal:
            self.refuse(session.refusal)
            return

        def take(settings: ChatSettings | None) -> None:
            if settings is not None:
                self.configure(settings)

        defaults = self.sessions.defaults(self.engine.card)
        dialog = EditSettings(session.settings, defaults, self.sessions.system)
        self.app.push_screen(dialog, take)

    def configure(self, settings: ChatSettings) -> bool:
        """Change the settings of the chat on view, from its next turn on; False if they are not
        kept, and the user has been told."""
        is_kept = True
        try:
            self.sessions.configure(self.sessions.current, settings)
        except StoreError as error:
            self.notify(str(error), severity="error")
            is_kept = False
        self.chat.update()
        return is_kept
