"""ChatFiles: exports, imports, copies and duplicates chats."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from app.screens.chats.export import MAX_CLIPBOARD, as_markdown, file_name
from app.screens.chats.sessions import SessionList
from app.screens.deck.chats import ChatActions
from app.screens.deck.dialogue import Dialogue
from app.store.database import StoreError
from widgets.figures import counted


@dataclass(eq=False)
class ChatFiles:
    """Exports chats to files in the working directory, and to the clipboard; imports files."""

    _user: Dialogue
    _sessions: SessionList
    _chats: ChatActions

    def export_markdown(self) -> None:
        """Write the branch on view to a Markdown file."""
        self._write(file_name(self._sessions.current.title), self._markdown())

    def export_json(self) -> None:
        """Write the chat on view to a file from which it can be imported, with all branches."""
        session = self._sessions.current
        if text := self._dumped(session.key):
            self._write(file_name(session.title, "json"), text)

    def export_all(self) -> None:
        """Write all chats to one file."""
        self._user.screen.run_worker(self._export_all())

    def ask_import(self) -> None:
        """Ask for a file of chats, and import it."""
        self._user.ask_text("Import chats from which JSON file?", "", self.import_chats)

    def import_chats(self, path: str, failed: Callable[[], object] = lambda: None) -> bool:
        """Import the chats of a file into the store; False if there is no such file.

        Args:
            failed: is called if there is such a file but it cannot be imported.
        """
        file = Path(os.path.expanduser(path))
        if not file.is_file():
            self._user.refuse(f"{path} is not a file; chats are imported from JSON.")
            return False
        self._user.screen.run_worker(self._import(file, failed))
        return True

    def duplicate(self) -> None:
        """Open a copy of the chat on view, with all its branches."""
        from app.conversations.chat_file import import_chats, load

        session = self._sessions.current
        if session.chat.is_busy:
            self._user.refuse("A reply is still running; the copy would lack it.")
            return
        text = self._dumped(session.key)
        if not text:
            return
        chats, _ = load(text)
        ((chat, messages),) = chats
        title = f"{chat.title} (copy)"
        chat = replace(chat, title=title, is_named=True, is_archived=False, pinned_at=None)
        with self._user.errors_shown():
            import_chats(self._sessions.store, [(chat, messages)])
            self._chats.open(chat.id)

    def copy(self) -> None:
        """Put the branch on view on the clipboard, as Markdown."""
        text = self._markdown()
        size = len(text.encode())
        self._user.screen.app.copy_to_clipboard(text)
        if size > MAX_CLIPBOARD:
            limit = f"many terminals take {MAX_CLIPBOARD:,}"
            text = f"Copied {size:,} bytes; {limit}. Export writes a file."
            self._user.screen.notify(text, severity="warning")
        else:
            self._user.notify(f"Copied the chat, {len(text):,} characters.")

    async def _export_all(self) -> None:
        # On a thread: 10,000 messages took 0.7 s.
        if text := await asyncio.to_thread(self._dumped, None):
            self._write(file_name("chats", "json"), text)

    async def _import(self, path: Path, failed: Callable[[], object]) -> None:
        from app.conversations.chat_file import ChatFileError, decode, import_chats, load

        try:
            data = await asyncio.to_thread(path.read_bytes)
            chats, wrong = await asyncio.to_thread(load, decode(data))
            await asyncio.to_thread(import_chats, self._sessions.store, chats)
        except OSError as error:
            self._user.fail(f"{path}: {error.strerror}")
            failed()
        except (ChatFileError, StoreError) as error:
            self._user.fail(f"{path}: {error}")
            failed()
        else:
            for sentence in wrong:
                self._user.refuse(sentence, timeout=15)
            done = f"Imported {counted(len(chats), 'chat')}"
            self._user.notify(f"{done}; {self._user.key_of('chat.find')} finds them.")

    def _markdown(self) -> str:
        session = self._sessions.current
        chat = session.chat.conversation
        user = "You" if session.is_own else chat.user
        return as_markdown(session.title, session.chat.messages, user, chat)

    def _dumped(self, key: str | None) -> str:
        """One chat of the store as JSON, or all of them if `key` is None; empty, with a message to
        the user, if there is none. May be called on any thread."""
        from app.conversations.chat_file import dump

        with self._user.errors_shown():
            store = self._sessions.store
            found = store.conversations() if key is None else [store.conversation(key)]
            chats = [chat for chat in found if chat is not None and chat.leaf]
            if chats:
                return dump((chat, store.messages(chat.id)) for chat in chats)
            self._user.refuse("This chat has no message to copy yet.")
        return ""

    def _write(self, name: str, text: str) -> None:
        path = Path.cwd() / name
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            self._user.fail(f"{path}: {error.strerror}")
        else:
            self._user.notify(f"Written to {path}")
