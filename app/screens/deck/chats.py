"""ChatActions: opens, finds, closes, renames, pins, archives and deletes chats for the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from app.screens.chats.chat import ChatPane
from app.screens.chats.keeper import ChatKeeper, Done
from app.screens.chats.sessions import SessionList
from app.screens.deck.dialogue import Dialogue
from app.screens.deck.drafts import DraftActions
from app.screens.dialogs.find_chat import Chosen, FindChat
from app.store.database import StoreError
from engine.api.errors import InvalidRequestError


@dataclass(eq=False)
class ChatActions:
    """Acts on the chat under the cursor of the side list if that has the focus, else on the chat on
    view.

    Args:
        switched: is called when another chat has become the current one.
    """

    _user: Dialogue
    _sessions: SessionList
    _keeper: ChatKeeper
    _pane: ChatPane
    _drafts: DraftActions
    _switched: Callable[[], None]

    # From chat to chat.

    def new(self) -> None:
        self._sessions.new()
        self._switched()

    def step(self, places: int) -> None:
        self._sessions.step(places)
        self._switched()

    def pick(self, number: int) -> None:
        """Go to the open chat of this number."""
        session = self._sessions.numbered(number)
        if session is None:
            self._user.notify(f"No open chat has the number {number}.")
            return
        self._sessions.go_to(session)
        self._switched()

    def open(self, conversation_id: str) -> bool:
        """Go to a chat, opening it if it is not open; returns whether it is on view."""
        with self._user.errors_shown():
            if self._sessions.open(conversation_id):
                self._switched()
                return True
            self._user.refuse("This chat is not in the store.")
        return False

    def find(self, words: str = "") -> None:
        """Find a chat by the words in it, and go to it.

        Args:
            words: the search that the dialog opens with.
        """
        before = self._sessions.current

        def show_changes() -> None:
            if self._sessions.current is not before:
                self._switched()  # the one on view was deleted, or restored

        def open_it(chosen: Chosen) -> None:
            show_changes()
            if self.open(chosen.key) and chosen.message_id is not None:
                self._mark(chosen.message_id, chosen.words)

        states = {session.key: "open" for session in self._sessions.sessions}
        states |= {session.key: "runs" for session in self._sessions.closed}
        search = self._sessions.store.search
        dialog = FindChat(search, states, self._keeper, self.report, self.undo_last, words)
        self._user.ask(dialog, open_it, show_changes)

    def _mark(self, message_id: str, words: Sequence[str]) -> None:
        """Mark words in a message of the chat on view, whichever branch it is on."""
        chat = self._sessions.current.chat
        try:
            if message_id not in {message.id for message in chat.messages}:
                chat.switch_to(message_id)
                self._pane.update()
        except InvalidRequestError as error:
            self._user.refuse(f"The message is on another branch: {error.message}.")
            return
        self._pane.transcript.go_to(message_id, words)

    # Closing, archiving, deleting, and undoing that.

    def close(self) -> None:
        """Close the chat on view; its draft is kept."""
        self._drafts.store()
        session = self._sessions.current
        goes_on = " its reply continues," if session.chat.is_busy else ""
        done = None
        with self._user.errors_shown():
            done = self._keeper.close(session.key)
        if not session.is_own:
            goes_on = "goes on; it " if goes_on else ""
            self._user.notify(f"“{session.title}” {goes_on}is no longer watched.")
        elif done is not None:
            undo, find = self._user.key_of("chat.undo"), self._user.key_of("chat.find")
            text = f"Closed “{done.title}”;{goes_on} {undo} undoes, {find} finds it again."
            self._user.notify(text)
        self._switched()

    def pin(self) -> None:
        """Pin the chat, or unpin it."""
        with self._user.errors_shown():
            if (done := self._keeper.pin(self._key)) is not None:
                self.report(done)
            else:
                self._user.refuse("This chat has no message yet; it can be pinned once it has one.")
        self._pane.update_bar()

    def archive(self) -> None:
        """Archive the chat, or unarchive it."""
        self._remove(self._keeper.archive)

    def delete(self) -> None:
        self._remove(self._keeper.delete)

    def undo(self) -> None:
        """Undo the last closing, pinning, archiving or deleting of a chat."""
        self.undo_last()
        self._switched()

    def undo_last(self) -> None:
        """Undo the last change and notify the user. The caller then shows the current chat, which
        may be another one."""
        try:
            done = self._keeper.undo()
        except StoreError as error:
            self._user.fail(error)
        except LookupError as error:
            self._user.refuse(f"“{error.args[0]}” is gone for good.")
        else:
            if done is None:
                text = "There is no change of a chat to undo."
            else:
                text = f"“{done.title}” is as it was before it was {done.change.value}."
            self._user.notify(text)

    def report(self, done: Done) -> None:
        """Notify about a change of a chat, and how to undo it."""
        also = "; its reply was stopped" if done.stopped else ""
        undo = self._user.key_of("chat.undo")
        self._user.notify(f"“{done.title}” is {done.change.value}{also}. {undo} undoes.")

    def ask_title(self) -> None:
        """Ask for another title of the chat."""
        key = self._key
        with self._user.errors_shown():
            self._keeper.check(key)
            session, chat = self._sessions.find(key), self._sessions.store.conversation(key)
            title = session.title if session is not None else chat.title if chat is not None else ""
            self._user.ask_text("Title of this chat", title, partial(self.rename, key))

    def rename(self, key: str, title: str) -> bool:
        """Give a chat another title; False if that was refused, with a message to the user."""
        with self._user.errors_shown():
            self._keeper.rename(key, title)
            self._pane.update()
            return True
        return False

    def rename_current(self, title: str) -> bool:
        """Give the chat on view another title."""
        return self.rename(self._sessions.current.key, title)

    @property
    def _key(self) -> str:
        """The id of the chat that the commands act on."""
        if self._pane.list.has_focus:
            return self._pane.list.cursor
        return self._sessions.current.key

    def _remove(self, act: Callable[[str], Done | None]) -> None:
        """Archive or delete a chat, which may be the one on view."""
        key, before = self._key, self._sessions.current
        with self._user.errors_shown():
            if (done := act(key)) is not None:
                self.report(done)
        if self._sessions.current is not before:
            self._switched()
        self._pane.update_bar()
