"""Exporting: takes chats out of the store and into it: files, the clipboard, another chat."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.screens.chats.export import MAX_CLIPBOARD, as_markdown, file_name
from app.screens.deck.keeping import Keeping
from app.screens.dialogs.ask_text import AskText
from app.store.database import StoreError
from widgets.figures import counted


class Exporting(Keeping):
    """The part of the deck that copies chats. Files go to the working directory."""

    def action_export(self) -> None:
        """Write the branch on view to a Markdown file."""
        self._write(file_name(self.sessions.current.title), self._markdown())

    def action_export_json(self) -> None:
        """Write the chat on view to a file from which it can be imported, with all branches."""
        session = self.sessions.current
        if text := self._dumped(session.key):
            self._write(file_name(session.title, "json"), text)

    def action_export_all(self) -> None:
        """Write all chats to one file."""
        self.run_worker(self._export_all())

    def action_import(self) -> None:
        """Ask for a file of chats, and take those into the store."""

        def take(name: str | None) -> None:
            if name:
                self.take_in(name)

        self.app.push_screen(AskText("Import chats from which JSON file?", ""), take)

    def take_in(self, path: str, failed: Callable[[], object] = lambda: None) -> bool:
        """Take the chats of a file into the store; False if there is no such file.

        Args:
            failed: is called if there is one, but not of chats.
        """
        file = Path(os.path.expanduser(path))
        if not file.is_file():
            self.refuse(f"{path} is no file; chats are imported from JSON.")
            return False
        self.run_worker(self._import(file, failed))
        return True

    def action_duplicate(self) -> None:
        """Open a copy of the chat on view, with all its branches."""
        from app.store.chat_file import load, take_in

        session = self.sessions.current
        if session.chat.is_busy:
            self.refuse("A reply is being made; the copy would lack it.")
            return
        text = self._dumped(session.key)
        if not text:
            return
        chats, _ = load(text)
        ((chat, messages),) = chats
        chat = replace(chat, title=f"{chat.title} (copy)", is_named=True, is_archived=False)
        try:
            take_in(self.store, [(chat, messages)])
        except StoreError as error:
            self.notify(str(error), severity="error")
        else:
            self.open(chat.id)

    def action_copy_chat(self) -> None:
        """Put the branch on view on the clipboard, as Markdown."""
        text = self._markdown()
        size = len(text.encode())
        self.app.copy_to_clipboard(text)
        if size > MAX_CLIPBOARD:
            limit = f"many terminals take {MAX_CLIPBOARD:,}"
            self.notify(
                f"Copied {size:,} bytes; {limit}. Export writes a file.", severity="warning"
            )
        else:
            self.notify(f"Copied the chat, {len(text):,} characters.")

    async def _export_all(self) -> None:
        # On a thread: 10,000 messages took 0.7 s.
        if text := await asyncio.to_thread(self._dumped, None):
            self._write(file_name("chats", "json"), text)

    async def _import(self, path: Path, failed: Callable[[], object]) -> None:
        from app.store.chat_file import ChatFileError, decode, load, take_in

        try:
            data = await asyncio.to_thread(path.read_bytes)
            chats, wrong = await asyncio.to_thread(load, decode(data))
            await asyncio.to_thread(take_in, self.store, chats)
        except OSError as error:
            self.notify(f"{path}: {error.strerror}", severity="error")
            failed()
        except (ChatFileError, StoreError) as error:
            self.notify(f"{path}: {error}", severity="error")
            failed()
        else:
            for sentence in wrong:
                self.refuse(sentence, timeout=15)
            done = f"Imported {counted(len(chats), 'chat')}"
            self.notify(f"{done}; {self.key_of('find')} finds them.")

    def _markdown(self) -> str:
        session = self.sessions.current
        chat = session.chat.conversation
        user = "You" if session.is_own else chat.user
        return as_markdown(session.title, session.chat.messages, user, chat)

    def _dumped(self, key: str | None) -> str:
        """A chat of the store as JSON, or all of them; empty if there is none, which is told. From
        any thread."""
        from app.store.chat_file import dump

        try:
            found = self.store.conversations() if key is None else [self.store.conversation(key)]
            chats = [chat for chat in found if chat is not None and chat.leaf]
            if chats:
                return dump((chat, self.store.messages(chat.id)) for chat in chats)
        except StoreError as error:
            self.notify(str(error), severity="error")
        else:
            self.refuse("Nothing was said yet that could be copied.")
        return ""

    def _write(self, name: str, text: str) -> None:
        path = Path.cwd() / name
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            self.notify(f"{path}: {error.strerror}", severity="error")
        else:
            self.notify(f"Written to {path}")
