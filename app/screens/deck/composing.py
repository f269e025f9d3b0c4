"""Composing: what the user does with the message that is being written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import TextArea

from app.screens.chats.chat import ChatPane
from app.screens.chats.kept_drafts import keep_draft
from app.screens.chats.sessions import SessionList
from app.screens.deck.presetting import Presetting
from app.screens.dialogs.ask_text import AskText
from app.store.attachment import read_attachment
from app.store.database import StoreError
from app.store.drafts import Draft
from engine.api.errors import InvalidRequestError
from widgets.chat.chips import Chips
from widgets.chat.prompt import PromptArea
from widgets.glyphs import Glyphs

# What a crash may cost of what was typed. A draft of 2,000 characters is written in a millisecond.
KEEP_SECONDS = 0.7


class Composing(Presetting):
    """The part of the deck that sends messages, with their attachments, and keeps drafts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # This is an action of the screen and no message to it: keys that follow find it done.
        Binding("enter", "send", "Send", show=False, id="prompt.send"),
    ]

    def __init__(self, sessions: SessionList, glyphs: Glyphs) -> None:
        super().__init__(sessions, glyphs)
        self._held: Draft | None = None  # it is sent once its tokens are counted
        self._keeping: Timer | None = None
        self._is_unkept = False  # since a draft could not be kept, which was told, none was

    def on_unmount(self) -> None:
        self.keep_draft()

    def switched(self) -> None:
        self.keep_draft()
        super().switched()

    def action_close(self) -> None:
        """Close the chat on view, with what is written in it as it stands."""
        self.keep_draft()
        super().action_close()

    def action_send(self) -> None:
        """Send the message, if it fits into the context."""
        composer, chat = self.chat.composer, self.sessions.current.chat
        self._held, draft = None, composer.draft
        if not (draft.text.strip() or draft.attachments):
            return
        fit = composer.fit()
        if fit.refusal:
            self.refuse(fit.refusal, timeout=15)
            return
        if not fit.is_known:
            self._held = draft
            self.chat.await_count()
            return
        text = draft.text.strip("\n")
        if text.startswith("//"):
            text = text[1:]  # as a message is written that begins with a slash
        try:
            if draft.edited is not None:
                chat.edit(draft.edited, text, attachments=draft.attachments)
            else:
                chat.send(text, attachments=draft.attachments)
        except InvalidRequestError as error:
            self.refuse(error.message)
            return
        self.chat.sent()
        self.keep_draft()

    @on(ChatPane.Counted)
    def send_held(self) -> None:
        """Send what was to be sent while its tokens were counted, if nobody has changed it."""
        if self._held is not None and self._held == self.chat.composer.draft:
            self.action_send()

    @on(PromptArea.LargePaste)
    def attach_paste(self, event: PromptArea.LargePaste) -> None:
        """Attach what is too long to stand in the prompt."""
        self.chat.composer.attach_paste(event.text)
        self._draft_changed()

    @on(Chips.Dropped)
    @on(PromptArea.DropWanted)
    def drop(self, event: Chips.Dropped | PromptArea.DropWanted) -> None:
        """Take an attachment away."""
        self.chat.composer.drop(event.place)
        self._draft_changed()

    def action_drop_attachment(self) -> None:
        """Take the last attachment away."""
        if not self.chat.composer.attachments:
            self.notify("Nothing is attached to this message.")
            return
        self.chat.composer.drop(-1)
        self._draft_changed()

    def action_attach(self) -> None:
        """Ask for a text file to attach."""

        def take(path: str | None) -> None:
            if path is not None:
                self.attach(path)

        self.app.push_screen(AskText("Path of a text file to attach", ""), take)

    def attach(self, path: str) -> bool:
        """Attach a text file; False if it cannot be, and the user has been told why."""
        if refusal := self.sessions.current.refusal:
            self.refuse(refusal)
            return False
        try:
            attachment = read_attachment(Path(os.path.expanduser(path)))
        except InvalidRequestError as error:
            self.refuse(error.message, timeout=10)
            return False
        self.chat.composer.attach(attachment)
        self._draft_changed()
        return True

    def keep_draft(self) -> None:
        """Have the store keep what is written in the chat on view."""
        if self._keeping is not None:
            self._keeping.stop()
            self._keeping = None
        composer = self.chat.composer
        if composer.session is None or composer.session not in self.sessions.sessions:
            return
        try:
            composer.update()
            if keep_draft(composer.session, composer.draft, self.sessions.store):
                self._is_unkept = False
        except StoreError as error:
            if not self._is_unkept:
                self._is_unkept = True
                self.notify(f"What is written here is not saved: {error}", severity="error")

    @on(TextArea.Changed)
    def keep_soon(self, event: TextArea.Changed) -> None:
        if event.text_area is self.chat.prompt.area:
            self.chat.composer.note()
            if self._keeping is None:
                self._keeping = self.set_timer(KEEP_SECONDS, self.keep_draft)

    def _draft_changed(self) -> None:
        self.chat.composer.note()
        self.chat.update()
        if self._keeping is None:
            self._keeping = self.set_timer(KEEP_SECONDS, self.keep_draft)
