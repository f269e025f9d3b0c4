"""Dialogue: messages to the user in passing, and questions in dialogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from textual.binding import Binding
from textual.screen import Screen

from app.screens.bound import action_of, by_action
from app.screens.chats.keeper import HeldError
from app.screens.dialogs.dialog import AskText, Confirm, Dialog, T
from app.store.database import StoreError
from engine.api.errors import InvalidRequestError
from widgets.glyphs import UNICODE


class Dialogue:
    """Messages and dialogs over a screen. A refusal or a piece of advice goes once the user goes
    on."""

    def __init__(self, screen: Screen[None]) -> None:
        self.screen = screen
        self._passing: set[str] = set()  # messages that mean nothing once the user has gone on

    def notify(self, text: str) -> None:
        self.screen.notify(text)

    def fail(self, error: Exception | str) -> None:
        self.screen.notify(str(error), severity="error")

    def refuse(self, why: str, timeout: float | None = None) -> None:
        """Say why something is not done, for a moment or until the user sends something."""
        self.screen.notify(why, severity="warning", timeout=timeout)
        self._passing.add(UNICODE.fit(why))

    def advise(self, how: str) -> None:
        """Say how the user goes on, for a moment or until that is done."""
        self.screen.notify(how)
        self._passing.add(UNICODE.fit(how))

    @contextmanager
    def errors_shown(self) -> Iterator[None]:
        """Within, an error of a chat or of the store is shown and not raised."""
        try:
            yield
        except (InvalidRequestError, HeldError) as error:
            self.refuse(str(error))
        except StoreError as error:
            self.fail(error)

    def forget(self) -> None:
        """Remove refusals and advice. Textual 8.2 can remove all messages in public, and not
        some."""
        for message in list(self.screen.app._notifications):
            if message.message in self._passing:
                self.screen.app._unnotify(message)
        self._passing.clear()

    def ask(
        self,
        dialog: Dialog[T],
        then: Callable[[T], object],
        otherwise: Callable[[], object] = lambda: None,
    ) -> None:
        """Open a dialog; `then` is given its result, `otherwise` is called if it was left."""

        def answer(result: T | None) -> None:
            if result is None:
                otherwise()
            else:
                then(result)

        self.screen.app.push_screen(dialog, answer)

    def ask_text(self, question: str, text: str, then: Callable[[str], object]) -> None:
        self.ask(AskText(question, text), then)

    def confirm(
        self,
        question: str,
        verb: str,
        then: Callable[[], object],
        otherwise: Callable[[], object] = lambda: None,
    ) -> None:
        """Ask whether something is meant."""
        self.ask(Confirm(question, verb), lambda _: then(), otherwise)

    def keys(self) -> dict[str, Binding]:
        """The binding of each action of the screen, as the user has set it."""
        return by_action(self.screen, self.screen.app)

    def key_of(self, command: str) -> str:
        """The key of a command of the screen, as it is shown."""
        key = self.keys().get(action_of(command))
        return "" if key is None else self.screen.app.get_key_display(key)
