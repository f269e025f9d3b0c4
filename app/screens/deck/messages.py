"""MessageActions: stops, regenerates and continues replies, edits messages, forks chats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.conversations.fork import fork
from app.screens.chats.chat import ChatPane
from app.screens.chats.open_session import as_written
from app.screens.chats.sessions import SessionList
from app.screens.chats.watched import WatchedChat
from app.screens.deck.chats import ChatActions
from app.screens.deck.control import EngineControl
from app.screens.deck.dialogue import Dialogue
from app.store.conversation import Message
from app.store.drafts import Draft


@dataclass(eq=False)
class MessageActions:
    """Acts on the marked message of the transcript, else on the last one that it can act on.

    Args:
        to_prompt: gives the prompt the focus.
    """

    _user: Dialogue
    _sessions: SessionList
    _pane: ChatPane
    _chats: ChatActions
    _control: EngineControl
    _to_prompt: Callable[[], None]

    def stop(self) -> None:
        """Stop the reply on view; the text so far stays."""
        if self._sessions.current.chat.is_busy:
            self._sessions.current.chat.stop()
        else:
            self._user.notify("There is no reply to stop.")

    def stop_theirs(self) -> None:
        """Ask, then stop the reply of a watched chat."""
        session = self._sessions.current
        chat = session.chat
        if isinstance(chat, WatchedChat) and chat.request_id is not None:
            self._control.stop_theirs(chat.request_id, session.title, chat.conversation.user)

    def branch(self, steps: int) -> None:
        """Go to another version of a message, and to the messages after it."""
        session = self._sessions.current
        if session.refusal:
            self._user.refuse(session.refusal)
            return
        chat, branched = session.chat, self._branched
        if not branched:
            text = "There is only one branch; editing and regenerating make others."
            self._user.notify(text)
            return
        place, is_marked = chat.messages.index(branched[-1]), bool(self._pane.transcript.current)
        with self._user.errors_shown():
            chat.turn(branched[-1].id, steps)
            self._pane.update()
            if is_marked:
                self._pane.transcript.go_to(chat.messages[place].id)

    def regenerate(self) -> None:
        """Generate another reply to the marked message, or beside the marked reply; without a mark,
        to the last message."""
        chat = self._sessions.current.chat
        behind = chat.messages[max(0, len(self._up_to_mark) - 1) :]
        replies = [message.id for message in behind if message.role == "assistant"]
        with self._user.errors_shown():
            chat.regenerate(replies[0] if replies else None)
            self._pane.follow()

    def resume(self) -> None:
        """Continue the last reply, which ended before it was complete."""
        if self._pane.composer.is_full(self._sessions.current):
            new = self._pane.composer.new_key
            self._user.notify(f"The context is full: {new} opens a new chat.")
            return
        with self._user.errors_shown():
            self._sessions.current.chat.resume()
            self._pane.follow()

    def fork(self) -> None:
        """Open a new chat with the messages up to the marked one, or up to the last one. If that is
        a message of the user, it is put into the prompt instead, to be changed and sent."""
        session = self._sessions.current
        if session.refusal:
            self._user.refuse(session.refusal)
            return
        messages = self._up_to_mark
        if not messages:
            self._user.refuse("There is no message yet to fork at.")
            return
        last = messages[-1]
        if session.chat.is_busy and last.id == session.chat.messages[-1].id:
            text = (
                "The reply is still running; fork here when it has ended, or mark an earlier one."
            )
            self._user.refuse(text)
            return
        asks = last.role == "user"
        with self._user.errors_shown():
            leaf = last.parent_id if asks else last.id
            forked = fork(self._sessions.store, session.chat.conversation, leaf)
            self._chats.open(forked.id)
            if asks:
                self._pane.composer.load(Draft(as_written(last.content), last.attachments))
            text = f"Forked “{session.title}”; both share their beginning in the KV cache."
            self._user.notify(text)

    def edit(self) -> None:
        """Put a message of the user into the prompt; sending it makes another branch."""
        session = self._sessions.current
        if session.refusal:
            self._user.refuse(session.refusal)
            return
        messages = [m for m in self._up_to_mark if m.role == "user"]
        if not messages:
            self._user.refuse("There is no message yet to edit.")
            return
        self._pane.composer.start_edit(messages[-1])
        self._to_prompt()
        send, keep = self._user.key_of("prompt.send"), self._user.key_of("chat.keep")
        self._user.advise(f"{send} sends it as another branch; {keep} leaves it as it was.")

    @property
    def has_branches(self) -> bool:
        """Whether there is a branch to go to, up to the marked message."""
        return bool(self._branched)

    @property
    def _up_to_mark(self) -> tuple[Message, ...]:
        """The messages on view up to the one that the transcript marks, or all of them."""
        messages = tuple(self._sessions.current.chat.messages)
        ids = [message.id for message in messages]
        marked = self._pane.transcript.current
        return messages[: ids.index(marked) + 1] if marked in ids else messages

    @property
    def _branched(self) -> list[Message]:
        """Those of them that have branches."""
        places = self._sessions.current.chat.places
        return [message for message in self._up_to_mark if message.id in places]
