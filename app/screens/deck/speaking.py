"""Speaking: slash commands, and the prompts that the user keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from app.screens.chats.chat_settings import (
    ARGUMENTS,
    NAMES,
    THINKING,
    ChatSettings,
    check_one,
    read,
    read_thinking,
)
from app.screens.chats.open_session import as_written
from app.screens.deck.stopping import Stopping
from app.screens.dialogs.ask_text import AskText
from app.screens.dialogs.confirm import Confirm
from app.screens.dialogs.pick_named import Named
from app.screens.dialogs.pick_prompt import PickPrompt
from app.screens.file_paths import completed
from app.screens.model_wish import ModelWish
from app.screens.slash import Slash, UnknownSlashError, find, matching, name_of, split
from app.store.database import StoreError
from engine.api.errors import InvalidRequestError
from widgets.chat.completions import Completion, Completions
from widgets.chat.prompt import PromptArea
from widgets.line import shorten

_NAME = re.compile(r"[\w][\w.-]{0,39}")
NAMING = "a name has up to 40 letters, digits, dots and dashes"


class Speaking(Stopping):
    """The part of the deck that runs lines that begin with a slash: commands of the palette under
    their names, those that take something, and saved prompts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Before the prompt, which would take it for the letter.
        Binding(
            "alt+p",
            "prompts",
            "Saved prompts",
            tooltip="Insert or edit a saved prompt",
            show=False,
            id="prompt.saved",
            priority=True,
        ),
    ]

    _known: list[Slash] | None = None  # while a slash is being written

    def on_mount(self) -> None:
        self.chat.prompt.area.offers = self._completions

    class ModelWanted(Message):
        """A model is to be loaded."""

        def __init__(self, wish: ModelWish) -> None:
            super().__init__()
            self.wish = wish

    def action_send(self) -> None:
        """Send the message, or do what its slash says."""
        self.forget_passing()
        area, text = self.chat.prompt.area, self.chat.prompt.text
        completion = area.offer()
        # A name that is written whole is run, though others begin with it.
        if completion is not None and completion.text.rstrip() != text:
            area.complete()
            if completion.is_whole:
                self.speak(area.text)
        elif text.startswith("/") and not text.startswith("//"):
            self.speak(text)
        else:
            super().action_send()

    def speak(self, text: str) -> None:
        """Run a line that begins with a slash. If it is refused, it stays in the prompt."""
        name, rest = split(text)
        area = self.chat.prompt.area
        try:
            slash = find(name, self.slashes())
        except UnknownSlashError as error:
            self.refuse(str(error), timeout=10)
            return
        if rest and not slash.takes:
            self.refuse(f"/{slash.name} takes nothing after it.")
            return
        area.load_text("")
        if slash.run(rest) is False:
            self._bring_back(text)

    def _bring_back(self, line: str) -> None:
        """Put a line that was refused into the prompt again, unless something is written there."""
        area = self.chat.prompt.area
        if not area.text:
            area.load_text(line)
            area.move_cursor(area.document.end)

    def slashes(self) -> list[Slash]:
        """All that a slash may be followed by. What the palette offers is among them."""
        offered = self.app.get_system_commands(self)
        return [*self._spoken(), *self._saved(), *map(self._of_palette, offered)]

    @on(TextArea.Changed)
    def complete(self, event: TextArea.Changed) -> None:
        """Offer what may be meant by a slash that is being written."""
        if isinstance(event.text_area, PromptArea):
            event.text_area.offer()

    def _completions(self, text: str) -> list[Completion]:
        if not text.startswith("/") or re.search(r"^//|\n", text):
            self._known = None
            return []
        if " " in text:
            return self._following(*split(text))
        if self._known is None:
            self._known = self.slashes()
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
        """What may follow the name of a command, once some of that is written."""
        slash = next((slash for slash in self._spoken() if slash.name == name), None)
        found = slash.completed(begun) if slash is not None and begun else ()
        if list(found) == [begun]:
            return []
        past = begun.rfind("/") + 1
        return [
            Completion(text[past:], "", f"/{name} {text}", not text.endswith("/")) for text in found
        ]

    @on(Completions.Clicked)
    def take(self) -> None:
        self.chat.prompt.area.complete()

    # Commands that take something.

    def _spoken(self) -> list[Slash]:
        attach = partial(_or_ask, self.attach, self.action_attach)
        take_in = partial(_or_ask, self._take_in, self.action_import)
        preset = partial(_or_ask, self.apply_preset, self.action_presets)
        rename = partial(_or_ask, self._rename, self.action_rename)
        spoken = [
            Slash("attach", "Send a text file along", attach, "PATH", completed),
            Slash("import", "Take in chats of a JSON file", take_in, "PATH", completed),
            Slash("model", "Load a model, quantized or not", self._load, "NAME WIDTH"),
            Slash("preset", "Set the chat to a preset", preset, "NAME"),
            Slash("rename", "Give the chat another title", rename, "TITLE"),
            Slash("save", "Keep TEXT, or your last message", self._save, "NAME TEXT"),
            Slash("search", "Find any chat", self.find, "WORDS"),
            Slash("system", "The system prompt; empty for none", self._system, "TEXT"),
            Slash("thinking", "Whether the model thinks first", self._think, "on or off"),
        ]
        does = "Empty for the default"
        return spoken + [Slash(name, does, partial(self._set, name), "VALUE") for name in NAMES]

    def _load(self, wish: str) -> bool:
        if not wish:
            self.refuse("/model needs a name, a folder, a file or a hub id.")
            return False
        self.post_message(self.ModelWanted(ModelWish.read(wish)))
        return True

    def _take_in(self, path: str) -> bool:
        return self.take_in(path, partial(self._bring_back, f"/import {path}"))

    def _rename(self, title: str) -> bool:
        return self.rename(self.sessions.current.key, title)

    def _system(self, text: str) -> bool:
        return self._change(ChatSettings(text, self.sessions.current.settings.sampling))

    def _think(self, text: str) -> bool:
        try:
            value = read_thinking(text) if text else None
        except InvalidRequestError as error:
            self.refuse(error.message)
            return False
        card = self.engine.card
        if value is not None and card is not None and not card.switches_thinking:
            self.refuse("This model's chat template has no such switch.")
            return False
        held = self.sessions.defaults(card).value(ARGUMENTS)
        settings = self.sessions.current.settings
        stated = settings.sampling.get(ARGUMENTS, held)
        assert isinstance(stated, dict)
        arguments = {k: v for k, v in stated.items() if k != THINKING}
        if value is not None:
            arguments[THINKING] = value
        return self._change(
            ChatSettings(settings.system, {**settings.sampling, ARGUMENTS: arguments})
        )

    def _set(self, name: str, text: str) -> bool:
        settings = self.sessions.current.settings
        sampling = {key: value for key, value in settings.sampling.items() if key != name}
        if text:
            sampling[name] = read(name, text)
            try:
                check_one(name, sampling[name])
            except InvalidRequestError as error:
                self.refuse(error.message)
                return False
        return self._change(ChatSettings(settings.system, sampling))

    def _change(self, settings: ChatSettings) -> bool:
        if refusal := self.sessions.current.refusal:
            self.refuse(refusal)
            return False
        try:
            self.sessions.defaults(self.engine.card).check(settings)
        except InvalidRequestError as error:
            self.refuse(error.message)
            return False
        self.configure(settings)
        return True

    # Commands of the palette.

    def _of_palette(self, command: SystemCommand) -> Slash:
        # Some of them are coroutines; Textual awaits what is called later.
        return Slash(name_of(command), command.help, lambda _: self.call_later(command.callback))

    # Saved prompts.

    def _saved(self) -> list[Slash]:
        return [
            Slash(
                name, shorten(" ".join(text.split()), 60), partial(self._insert, as_written(text))
            )
            for name, text in self._prompts().items()
        ]

    def _prompts(self) -> dict[str, str]:
        try:
            return self.store.prompts.all()
        except StoreError as error:
            self.notify(str(error), severity="error")
            return {}

    def _insert(self, text: str, _rest: str = "") -> None:
        area = self.chat.prompt.area
        area.load_text(text)
        area.move_cursor(area.document.end)
        self.action_leave()

    def action_save_prompt(self) -> None:
        """Ask under which name to keep what is written, or else the last message."""

        def save(name: str | None) -> None:
            if name is not None:
                self._save(f"{name} {self.chat.prompt.text}")

        self.app.push_screen(AskText(f"Name of the prompt: {NAMING}", ""), save)

    def action_prompts(self) -> None:
        """Show the saved prompts: one is inserted, edited or deleted."""
        prompts = self._prompts()
        if not prompts:
            self.notify("No prompt is saved; /save NAME keeps your last message as one.")
            return

        def act(chosen: tuple[str, str] | None) -> None:
            if chosen is None:
                return
            verb, name = chosen
            if verb == "delete":
                question = f"Delete the prompt /{name} for good?"
                self.app.push_screen(Confirm(question, "delete"), partial(self._forget, name))
            elif verb == "edit":
                self._insert(f"/save {name}\n{prompts[name]}")
            else:
                self._insert(as_written(prompts[name]))

        items = [Named(name, f"/{name}", text) for name, text in prompts.items()]
        self.app.push_screen(PickPrompt(items), act)

    def _save(self, rest: str) -> bool:
        """Keep a text under the name that it begins with; without one, the last message."""
        name, text = split(f"/{rest}")
        said = [m.content for m in self.sessions.current.chat.messages if m.role == "user"]
        text = text or (said[-1] if said else "")
        if not _NAME.fullmatch(name):
            self.refuse(f"A prompt cannot be called {name!r}: {NAMING}.")
            return False
        if any(slash.name == name for slash in self.slashes() if slash.name not in self._prompts()):
            self.refuse(f"/{name} is a command; choose another name.")
            return False
        if not text.strip():
            self.refuse("There is no text to save yet.")
            return False
        if self._prompts().get(name, text) != text:
            question = f"Replace the text of /{name}?"
            self.app.push_screen(Confirm(question, "replace"), partial(self._keep, name, text))
        else:
            self._keep(name, text, True)
        return True

    def _keep(self, name: str, text: str, sure: bool | None) -> None:
        if not sure:
            self._insert(f"/save {name}\n{text}")
            return
        try:
            self.store.prompts.save(name, text)
        except StoreError as error:
            self.notify(str(error), severity="error")
        else:
            self.notify(f"/{name} inserts it.")

    def _forget(self, name: str, sure: bool | None) -> None:
        if sure:
            try:
                self.store.prompts.delete(name)
            except StoreError as error:
                self.notify(str(error), severity="error")


def _or_ask(act: Callable[[str], bool], ask: Callable[[], object], text: str) -> bool:
    """Act on what follows a command; if nothing does, ask for it."""
    if text:
        return act(text)
    ask()
    return True
