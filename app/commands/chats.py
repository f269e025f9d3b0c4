"""Chats: prints the chats of the store, and imports those of a file."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from app.conversations.chat_file import ChatFileError, decode, dump, import_chats, load
from app.process.exits import ExitCode
from app.process.process import complain, print_text
from app.screens.chats.export import as_markdown
from app.settings.flags import FileFormat
from app.settings.settings import Settings
from app.store.conversation import Conversation
from app.store.store import Store


def run_export(settings: Settings, name: str | None, form: FileFormat) -> int:
    """Print the chats that have messages; returns the exit code.

    Args:
        name: the id or the title of the chats to print; None means all.

    Raises:
        StoreError: the store cannot be read.
    """
    with closing(Store(settings.store_file)) as store:
        said = [chat for chat in store.conversations() if chat.leaf]
        chats = [chat for chat in said if name is None or name in (chat.id, chat.title)]
        if name is not None and not chats:
            complain(f"no chat has the title or the id {name!r}; F3 in the interface lists them")
            return ExitCode.FAILED
        if form is FileFormat.JSON:
            print_text(dump((chat, store.messages(chat.id)) for chat in chats).rstrip("\n"))
        else:
            print_text("\n".join(_markdown(store, chat) for chat in chats).rstrip("\n"))
    return ExitCode.OK


def run_import(settings: Settings, path: Path) -> int:
    """Import the chats of a file, `-` being standard input; returns the exit code. A chat that is
    invalid is reported, and the others are imported.

    Raises:
        StoreError: the store cannot be written.
    """
    try:
        data = sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()
        chats, wrong = load(decode(data))
    except OSError as error:
        complain(f"{path}: {error.strerror}")
        return ExitCode.FAILED
    except ChatFileError as error:
        complain(f"{path}: {error}")
        return ExitCode.FAILED
    with closing(Store(settings.store_file)) as store:
        import_chats(store, chats)
    for sentence in wrong:
        complain(sentence)
    print_text(f"imported {len(chats)} {'chat' if len(chats) == 1 else 'chats'}")
    return ExitCode.FAILED if wrong else ExitCode.OK


def _markdown(store: Store, chat: Conversation) -> str:
    """The branch of a chat that is on view."""
    messages = store.branch(chat.leaf) if chat.leaf else []
    user = "You" if chat.source == "screen" else chat.user
    return as_markdown(chat.title, messages, user, chat)
