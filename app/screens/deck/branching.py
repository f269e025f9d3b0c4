"""Branching: what the user says or asks for in another way, and what was there before."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from app.screens.chats.open_session import as_written
from app.screens.deck.composing import Composing
from app.store.conversation import Message
from app.store.database import StoreError
from app.store.drafts import Draft
from app.store.fork import fork
from engine.api.errors import InvalidRequestError


class Branching(Composing):
    """The part of the deck that makes branches of a chat and goes from one to the other. It acts on
    the message that the transcript marks, and else on the last one that it can act on.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "alt+left",
            "branch(-1)",
            "Branch before",
            tooltip="The branch before, at n/m",
            show=False,
            id="chat.branch_before",
        ),
        Binding(
            "alt+right",
            "branch(1)",
            "Next branch",
            tooltip="The next branch, at n/m",
            show=False,
            id="chat.branch_next",
        ),
        # These are shown where there are branches.
        Binding("left_square_bracket", "sibling(-1)", "Branch before", id="chat.branch_before"),
        Binding("right_square_bracket", "sibling(1)", "Next branch", id="chat.branch_next"),
        Binding(
            "ctrl+r", "regenerate", "Regen", tooltip="Ask for another reply", id="chat.regenerate"
        ),
        Binding(
            "alt+c",
            "resume",
            "Continue",
            tooltip="Go on with a reply where it ended",
            id="chat.resume",
        ),
        Binding(
            "e",
            "edit_last",
            "Edit",
            tooltip="Send your message in other words",
            id="chat.edit",
        ),
        Binding(
            "f",
            "fork",
            "Fork here",
            tooltip="A chat of its own up to this message",
            id="chat.fork",
        ),
    ]

    def action_branch(self, steps: int) -> None:
        """Go to another version of a message, and what came of that."""
        session = self.sessions.current
        if session.refusal:
            self.refuse(session.refusal)
            return
        chat, parted = session.chat, self._parted()
        if not parted:
            self.notify("There is one branch only; editing and asking again make others.")
            return
        place, is_marked = chat.messages.index(parted[-1]), bool(self.chat.transcript.current)
        try:
            chat.turn(parted[-1].id, steps)
        except InvalidRequestError as error:
            self.refuse(error.message)
            return
        self.chat.update()
        if is_marked:
            self.chat.transcript.go_to(chat.messages[place].id)

    def action_sibling(self, steps: int) -> None:
        """Go to another version of the message that the transcript marks."""
        self.action_branch(steps)

    def action_regenerate(self) -> None:
        """Ask for another reply to the marked message, or beside the marked reply; where none is
        marked, to the last one."""
        chat = self.sessions.current.chat
        behind = chat.messages[max(0, len(self._up_to_mark()) - 1) :]
        replies = [message.id for message in behind if message.role == "assistant"]
        try:
            chat.regenerate(replies[0] if replies else None)
        except InvalidRequestError as error:
            self.refuse(error.message)
            return
        self.chat.follow()

    def action_resume(self) -> None:
        """Go on with the last reply, which ended before it was complete."""
        if self.chat.composer.is_full(self.sessions.current):
            self.notify(f"The context is full: {self.chat.composer.new_key} opens a new chat.")
            return
        try:
            self.sessions.current.chat.resume()
        except InvalidRequestError as error:
            self.refuse(error.message)
            return
        self.chat.follow()

    def action_fork(self) -> None:
        """Open a chat of its own with the messages up to the marked one, or to the last one. One's
        own message stands in its prompt, to be sent otherwise."""
        session = self.sessions.current
        if session.refusal:
            self.refuse(session.refusal)
            return
        messages = self._up_to_mark()
        if not messages:
            self.refuse("There is no message yet to fork at.")
            return
        last = messages[-1]
        if session.chat.is_busy and last.id == session.chat.messages[-1].id:
            text = "The reply is being made; fork here when it has ended, or mark one before it."
            self.refuse(text)
            return
        asks = last.role == "user"
        try:
            leaf = last.parent_id if asks else last.id
            forked = fork(self.sessions.store, session.chat.conversation, leaf)
        except StoreError as error:
            self.notify(str(error), severity="error")
            return
        self.open(forked.id)
        if asks:
            self.chat.composer.load(Draft(as_written(last.content), last.attachments))
        self.notify(f"Forked “{session.title}”; what both begin with is in the KV cache once.")

    def action_edit_last(self) -> None:
        """Take one's own message back into the prompt; sending it makes another branch."""
        session = self.sessions.current
        if session.refusal:
            self.refuse(session.refusal)
            return
        messages = [m for m in self._up_to_mark() if m.role == "user"]
        if not messages:
            self.refuse("There is no message yet to edit.")
            return
        self.chat.composer.begin_edit(messages[-1])
        self.action_leave()
        send, keep = self.key_of("send"), self.key_of("keep")
        self.advise(f"{send} sends it beside the old one; {keep} leaves it as it was.")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("edit_last", "fork"):
            return self.chat.transcript.has_focus
        if action == "sibling":
            return self.chat.transcript.has_focus and bool(self._parted())
        if action == "regenerate":
            return self.sessions.current.can_regenerate
        if action == "resume":
            return self.chat.can_resume
        if action == "branch":
            return not self.has_class("-engine") and self.chat.has_focus_within
        return super().check_action(action, parameters)

    def _up_to_mark(self) -> tuple[Message, ...]:
        """The messages on view up to the one that the transcript marks, or all of them."""
        messages = tuple(self.sessions.current.chat.messages)
        ids = [message.id for message in messages]
        marked = self.chat.transcript.current
        return messages[: ids.index(marked) + 1] if marked in ids else messages

    def _parted(self) -> list[Message]:
        """Those of them that have branches."""
        places = self.sessions.current.chat.places
        return [message for message in self._up_to_mark() if message.id in places]
