"""DraftActions: sends the message that is being written, attaches files to it, opens it in an
editor, and stores it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from textual.app import SuspendNotSupported
from textual.timer import Timer

from app.conversations.question import read_attachment
from app.screens.chats.chat import ChatPane
from app.screens.chats.composer import store_draft
from app.screens.chats.sessions import SessionList
from app.screens.deck.dialogue import Dialogue
from app.store.database import StoreError
from app.store.drafts import Draft
from engine.api.errors import InvalidRequestError
from widgets.chat.completions import Completion
from widgets.harmless import printable

# A crash loses at most the keys of this time. Storing 2,000 characters takes a millisecond.
STORE_SECONDS = 0.7

MOST_PATHS = 100  # in the completions of one path
_MENTION = re.compile(r"(?:^|\s)@([^@]*)$")


def mentions(before: str) -> list[Completion]:
    """The completions of a path after an `@`, which begins a word: a folder is written out, a file
    is attached and its name stays in the text, as it is above the attachment in the prompt.

    Args:
        before: a line up to the cursor.
    """
    found = _MENTION.search(before)
    if found is None:
        return []
    start = found.start(1) - 1
    past = found[1].rfind("/") + 1
    return [
        Completion(path[past:], "", f"@{path}", False, start)
        if path.endswith("/")
        else Completion(path[past:], "", f"{os.path.basename(path)} ", False, start, path)
        for path in completed_paths(found[1])
    ]


def completed_paths(begun: str) -> list[str]:
    """The files and folders whose paths begin with this. A folder ends with a slash; hidden ones
    are listed once a dot is typed. Small letters match capital ones too, after what begins with
    them as typed."""
    if begun == "~":
        return ["~/"]
    folder, start = os.path.split(begun)
    path = os.path.abspath(os.path.expanduser(folder))
    try:
        entries = _entries(path, os.stat(path).st_mtime_ns)
    except (OSError, ValueError):  # the latter for a null character
        return []
    if not start:
        found = [name for name in entries if not name.startswith(".")]
    else:
        found = [name for name in entries if name.startswith(start)]
        if start == start.lower():
            exact = frozenset(found)
            found += [n for n in entries if n.lower().startswith(start) and n not in exact]
    return [os.path.join(folder, name) for name in found[:MOST_PATHS]]


@lru_cache(maxsize=1)
def _entries(folder: str, _changed: int) -> tuple[str, ...]:
    """The names in a folder, in order; those of folders end with a slash. One listing is kept for
    the next keys of a path, because that of 50,000 files takes 80 ms.

    Args:
        _changed: the time of the folder's last change, on which the kept listing depends.
    """
    with os.scandir(folder) as entries:
        return tuple(
            sorted(
                f"{entry.name}/" if entry.is_dir() else entry.name
                for entry in entries
                if entry.name.isprintable()
            )
        )


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Leave Ctrl+C and Ctrl+\\ to the program that has the terminal. It must run by now, because a
    new process inherits that they are ignored. A handler would not do: the watchdog sees signals
    that have one."""
    names = [name for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)]
    before = [(name, signal.signal(getattr(signal, name), signal.SIG_IGN)) for name in names]
    try:
        yield
    finally:
        for name, handler in before:
            signal.signal(getattr(signal, name), handler)


@dataclass(eq=False)
class DraftActions:
    """Acts on the draft of the chat on view."""

    _user: Dialogue
    _sessions: SessionList
    _pane: ChatPane
    _held: Draft | None = field(default=None, init=False)  # is sent once it is counted
    _store_timer: Timer | None = field(default=None, init=False)
    _is_unsaved: bool = field(default=False, init=False)  # storing failed, and the user knows

    def send(self) -> None:
        """Send the message, if it fits into the context."""
        composer, chat = self._pane.composer, self._sessions.current.chat
        self._held, draft = None, composer.draft
        if not (draft.text.strip() or draft.attachments):
            return
        fit = composer.fit()
        if fit.refusal:
            self._user.refuse(fit.refusal, timeout=15)
            return
        if not fit.is_known:
            self._held = draft
            self._pane.await_count()
            return
        text = draft.text.strip("\n")
        if text.startswith("//"):
            text = text[1:]  # the way to write a message that begins with a slash
        with self._user.errors_shown():
            if draft.edited is not None:
                chat.edit(draft.edited, text, attachments=draft.attachments)
            else:
                chat.send(text, attachments=draft.attachments)
            self._pane.sent()
            self.store()

    @property
    def is_held(self) -> bool:
        """Whether the message waits for its tokens to be counted, and was not changed since."""
        return self._held is not None and self._held == self._pane.composer.draft

    # Attachments.

    def ask_attachment(self) -> None:
        """Ask for a text file to attach."""
        self._user.ask_text("Path of a text file to attach", "", self.attach)

    def attach(self, path: str) -> bool:
        """Attach a text file; False if that was refused, with a message to the user."""
        if refusal := self._sessions.current.refusal:
            self._user.refuse(refusal)
            return False
        try:
            attachment = read_attachment(Path(os.path.expanduser(path)))
        except InvalidRequestError as error:
            self._user.refuse(error.message, timeout=10)
            return False
        self._pane.composer.attach(attachment)
        self._update_attachments()
        return True

    def attach_paste(self, text: str) -> None:
        """Attach a pasted text that is too long for the prompt."""
        self._pane.composer.attach_paste(text)
        self._update_attachments()

    def detach(self, place: int) -> None:
        """Remove an attachment; -1 is the last one."""
        self._pane.composer.drop(place)
        self._update_attachments()

    def detach_last(self) -> None:
        if self._pane.composer.attachments:
            self.detach(-1)
        else:
            self._user.notify("Nothing is attached to this message.")

    def _update_attachments(self) -> None:
        self._pane.composer.save_to_session()
        self._pane.update()
        self._store_soon()

    # The editor.

    def open_editor(self) -> None:
        """Open the draft in the user's editor: VISUAL, or else EDITOR."""
        if refusal := self._sessions.current.refusal:
            self._user.refuse(refusal)
            return
        stated = {name: os.environ.get(name, "").strip() for name in ("VISUAL", "EDITOR")}
        name = next((name for name, value in stated.items() if value), "")
        if not name:
            self._user.refuse("No editor is set; VISUAL or EDITOR names one, as EDITOR=nano does.")
            return
        try:
            command = shlex.split(stated[name], posix=os.name == "posix")
        except ValueError:
            self._user.refuse(f"{name} is {stated[name]!r}, which has a quote without an end.")
            return
        if shutil.which(command[0]) is None:
            self._user.refuse(f"{name} is {stated[name]!r}, but there is no program {command[0]}.")
            return
        self.store()
        self._user.screen.run_worker(self._edit(command))

    async def _edit(self, command: Sequence[str]) -> None:
        """Replace the draft by the text that an editor saves. If it fails, the draft stays."""
        area = self._pane.prompt.area
        before = area.text
        try:
            with TemporaryDirectory(prefix="batchdeck-") as folder:
                path = Path(folder, "prompt.md")
                path.write_text(before, encoding="utf-8", errors="replace")
                if trouble := await self._run_editor([*command, str(path)]):
                    self._user.refuse(f"{trouble}; the draft is unchanged.")
                    return
                text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            self._user.refuse(
                f"The editor saved a file that is not UTF-8 (byte {error.start:,}); the draft is"
                " unchanged."
            )
            return
        except OSError as error:
            self._user.refuse(f"{error}; the draft is unchanged.")
            return
        # Most editors end the last line.
        text = printable(text if before.endswith("\n") else text.removesuffix("\n"))
        if text != before:
            area.replace_text(text)

    async def _run_editor(self, command: Sequence[str]) -> str:
        """Leave the terminal to an editor until it ends, while replies go on; returns why it
        failed, or an empty text."""
        name = Path(command[0]).name
        try:
            with self._user.screen.app.suspend():
                try:
                    process = await asyncio.create_subprocess_exec(*command)
                except OSError as error:
                    return f"{name} cannot be started: {error.strerror or error}"
                try:
                    with _interrupts_ignored():
                        code = await process.wait()
                finally:
                    if process.returncode is None:
                        process.terminate()  # the application ends
        except SuspendNotSupported:
            return "An editor cannot have this terminal"
        if code < 0:
            return f"{name} was ended by {signal.Signals(-code).name}"
        return f"{name} ended with code {code}" if code else ""

    # Storing.

    def store(self) -> None:
        """Store the draft of the chat on view."""
        if self._store_timer is not None:
            self._store_timer.stop()
            self._store_timer = None
        composer = self._pane.composer
        if composer.session is None or composer.session not in self._sessions.sessions:
            return
        try:
            composer.update()
            if store_draft(composer.session, composer.draft, self._sessions.store):
                self._is_unsaved = False
        except StoreError as error:
            if not self._is_unsaved:
                self._is_unsaved = True
                self._user.fail(f"This draft is not saved: {error}")

    def changed(self) -> None:
        """Note a change of the text, which is stored after `STORE_SECONDS`."""
        self._pane.composer.save_to_session()
        self._store_soon()

    def _store_soon(self) -> None:
        if self._store_timer is None:
            self._store_timer = self._user.screen.set_timer(STORE_SECONDS, self.store)
