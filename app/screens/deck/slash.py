"""Slash commands: lines that begin with a slash, and the prompts that the user saves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from itertools import takewhile

from textual.app import SystemCommand

from app.screens.chats.chat import ChatPane
from app.screens.chats.chat_settings import NAMES
from app.screens.chats.open_session import as_written
from app.screens.chats.sessions import SessionList
from app.screens.deck.dialogue import Dialogue
from app.screens.deck.drafts import DraftActions, mentions
from app.screens.deck.settings import SettingsActions
from app.screens.dialogs.dialog import Named, PickPrompt
from app.screens.dialogs.find_chat import FindSent
from widgets.chat.completions import Completion
from widgets.line import shorten

NAMING = "a name has up to 40 letters, digits, dots and dashes"
_NAME = re.compile(r"[\w][\w.-]{0,39}")
_CLOSE, _LIKENESS = 4, 0.5
MOST_SENT = 10_000  # messages in which one is looked for


class UnknownSlashError(Exception):
    """No command has that name; the message says which names are like it."""


@dataclass(frozen=True, slots=True)
class Slash:
    """One command, or a saved prompt.

    Attributes:
        does: the command in a few words.
        run: is called with the text after the name; False if it was refused, with a message to the
            user.
        takes: a word for that text; empty if the command takes none.
        completed: its completions.
    """

    name: str
    does: str
    run: Callable[[str], object]
    takes: str = ""
    completed: Callable[[str], Sequence[str]] = lambda _: ()


def name_of(title: str) -> str:
    """The name of a command of the palette after a slash: New chat is /new-chat."""
    return "-".join(re.findall(r"[\w.]+", title.lower()))


def split(text: str) -> tuple[str, str]:
    """The name after the slash, and the rest."""
    name, _, rest = re.split(r"(\s|$)", text[1:], maxsplit=1)
    return name, rest.strip()


def matching(name: str, slashes: Sequence[Slash]) -> list[Slash]:
    """The commands whose names begin with this, and then those with a word that does."""
    starts = [slash for slash in slashes if slash.name.startswith(name)]
    others = (slash for slash in slashes if not slash.name.startswith(name))
    return starts + [slash for slash in others if f"-{name}" in slash.name]


def find(name: str, slashes: Sequence[Slash]) -> Slash:
    """The command of this name, or the only one whose name begins with these words.

    Raises:
        UnknownSlashError: there is none, or there are several.
    """
    for slash in slashes:
        if slash.name == name:
            return slash
    meant = [slash for slash in slashes if name and slash.name.startswith(f"{name}-")]
    if len(meant) == 1:
        return meant[0]
    names = [slash.name for slash in slashes]
    by_word = {word: each for each in reversed(names) for word in (each, *each.split("-"))}
    # A name with the same first letters is close, however much is missing: /tempo is /temperature.
    words = get_close_matches(name, by_word, 9, _LIKENESS)
    words.sort(key=lambda word: -_shared(name, word))
    like = [slash.name for slash in meant] or list(dict.fromkeys(by_word[word] for word in words))
    close = ", ".join(f"/{each}" for each in like[:_CLOSE])
    hint = f"; close to it are {close}" if close else ""
    raise UnknownSlashError(
        f"/{name} is neither a command nor a saved prompt{hint}. A message that begins with a slash"
        " is written with two."
    )


def _shared(one: str, other: str) -> int:
    """The number of letters that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass(eq=False)
class SavedPrompts:
    """Inserts, saves and edits prompts that the user keeps under a name, and inserts sent messages.

    Args:
        to_prompt: gives the prompt the focus.
        commands: the names of all commands, which no prompt may have.
    """

    _user: Dialogue
    _sessions: SessionList
    _pane: ChatPane
    _to_prompt: Callable[[], None]
    _commands: Callable[[], Iterable[str]]

    def all(self) -> dict[str, str]:
        """The texts, by the prompts' names."""
        with self._user.errors_shown():
            return self._sessions.store.prompts.all()
        return {}

    def insert(self, text: str) -> None:
        """Replace the text in the prompt; undo brings it back."""
        self._pane.prompt.area.replace_text(text)
        self._to_prompt()

    def pick(self) -> None:
        """Show the saved prompts, to insert, edit or delete one."""
        prompts = self.all()
        if not prompts:
            self._user.notify("No prompt is saved; /save NAME keeps your last message as one.")
            return

        def act(chosen: tuple[str, str]) -> None:
            verb, name = chosen
            if verb == "delete":
                question = f"Delete the prompt /{name} for good?"
                self._user.confirm(question, "delete", partial(self._delete, name))
            elif verb == "edit":
                self.insert(f"/save {name}\n{prompts[name]}")
            else:
                self.insert(as_written(prompts[name]))

        items = [Named(name, f"/{name}", text) for name, text in prompts.items()]
        self._user.ask(PickPrompt(items), act)

    def find_sent(self) -> None:
        """Find a message that was sent in any chat, and insert it."""
        if refusal := self._sessions.current.refusal:
            self._user.refuse(refusal)
            return
        read = partial(self._sessions.store.sent, MOST_SENT)
        self._user.ask(FindSent(read), lambda text: self.insert(as_written(text)))

    def ask_name(self) -> None:
        """Ask for a name, and save the draft under it, or without a draft the last message."""
        question = f"Name of the prompt: {NAMING}"
        self._user.ask_text(
            question, "", lambda name: self.save(f"{name} {self._pane.prompt.text}")
        )

    def save(self, rest: str) -> bool:
        """Save a prompt: `rest` is its name and its text. Without a text, the last message is
        saved. False if that was refused, with a message to the user."""
        name, text = split(f"/{rest}")
        sent = [m.content for m in self._sessions.current.chat.messages if m.role == "user"]
        text = text or (sent[-1] if sent else "")
        if not _NAME.fullmatch(name):
            self._user.refuse(f"A prompt cannot be called {name!r}: {NAMING}.")
            return False
        saved = self.all()
        if name not in saved and name in self._commands():
            self._user.refuse(f"/{name} is a command; choose another name.")
            return False
        if not text.strip():
            self._user.refuse("There is no text to save yet.")
            return False
        if saved.get(name, text) != text:
            back = partial(self.insert, f"/save {name}\n{text}")
            question = f"Replace the text of /{name}?"
            self._user.confirm(question, "replace", partial(self._save, name, text), back)
        else:
            self._save(name, text)
        return True

    def _save(self, name: str, text: str) -> None:
        with self._user.errors_shown():
            self._sessions.store.prompts.save(name, text)
            self._user.notify(f"/{name} inserts it.")

    def _delete(self, name: str) -> None:
        with self._user.errors_shown():
            self._sessions.store.prompts.delete(name)


@dataclass(eq=False)
class SlashCommands:
    """Completes and runs lines that begin with a slash: a command, a sampling parameter, or a saved
    prompt.

    Args:
        typed: the commands that are lines with a text.
        offered: the commands of the palette.
    """

    _user: Dialogue
    _pane: ChatPane
    _settings: SettingsActions
    _drafts: DraftActions
    _prompts: SavedPrompts
    _typed: Callable[[], Sequence[Slash]]
    _offered: Callable[[], Iterable[SystemCommand]]
    _known: list[Slash] | None = field(default=None, init=False)  # while a name is being written

    def enter(self) -> None:
        """Send the message, or run the command that its slash names."""
        self._user.forget()
        area, text = self._pane.prompt.area, self._pane.prompt.text
        completion = area.offer()
        # A complete name is run even if longer names begin with it.
        if completion is not None and completion.text.rstrip() != text:
            area.complete()
            if completion.is_whole:
                self.run(area.text)
        elif text.startswith("/") and not text.startswith("//"):
            self.run(text)
        else:
            self._drafts.send()

    def run(self, text: str) -> None:
        """Run a line that begins with a slash. If it is refused, it stays in the prompt."""
        name, rest = split(text)
        try:
            slash = find(name, self.all())
        except UnknownSlashError as error:
            self._user.refuse(str(error), timeout=10)
            return
        if rest and not slash.takes:
            self._user.refuse(f"/{slash.name} takes no text after it.")
            return
        self._pane.prompt.area.load_text("")
        if slash.run(rest) is False:
            self.restore_line(text)

    def restore_line(self, line: str) -> None:
        """Put a refused line back into the prompt, unless something was written there since."""
        area = self._pane.prompt.area
        if not area.text:
            area.load_text(line)
            area.move_cursor(area.document.end)

    def all(self) -> list[Slash]:
        """All commands, parameters and saved prompts."""
        saved = [
            Slash(name, shorten(" ".join(text.split()), 60), partial(self._insert, text))
            for name, text in self._prompts.all().items()
        ]
        return [*self._with_text, *saved, *self._of_palette]

    def names(self) -> list[str]:
        """The names of all commands, without those of saved prompts."""
        return [slash.name for slash in (*self._with_text, *self._of_palette)]

    def completions(self, text: str, before: str) -> list[Completion]:
        """The completions of the text in the prompt: of a line with a slash, or of a path after an
        `@`.

        Args:
            before: the cursor's line up to the cursor.
        """
        if not text.startswith("/") or re.search(r"^//|\n", text):
            self._known = None
            return mentions(before)
        if " " in text:
            return self._following(*split(text))
        if self._known is None:
            self._known = self.all()
        found = matching(text[1:], self._known)
        if len(found) == 1 and found[0].name == text[1:]:
            return []
        return [
            Completion(f"/{slash.name} {slash.takes}", slash.does, f"/{slash.name} ", False)
            if slash.takes
            else Completion(f"/{slash.name}", slash.does, f"/{slash.name}", True)
            for slash in found
        ]

    def _following(self, name: str, begun: str) -> list[Completion]:
        """The completions of the text after the name of a command, unless it is empty."""
        slash = next((slash for slash in self._typed() if slash.name == name), None)
        found = slash.completed(begun) if slash is not None and begun else ()
        if list(found) == [begun]:
            return []
        past = begun.rfind("/") + 1
        return [
            Completion(text[past:], "", f"/{name} {text}", not text.endswith("/")) for text in found
        ]

    @property
    def _with_text(self) -> list[Slash]:
        set_one = self._settings.set_sampling
        does = "Empty for the default"
        parameters = (Slash(name, does, partial(set_one, name), "VALUE") for name in NAMES)
        return [*self._typed(), *parameters]

    @property
    def _of_palette(self) -> list[Slash]:
        return [
            Slash(name_of(command.title), command.help, partial(self._call, command.callback))
            for command in self._offered()
        ]

    def _call(self, callback: Callable[[], object], _rest: str) -> None:
        # Some are coroutines, which Textual awaits if it calls them later.
        self._user.screen.call_later(callback)

    def _insert(self, text: str, _rest: str) -> None:
        self._prompts.insert(as_written(text))
