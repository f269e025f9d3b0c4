"""Dialogue: messages to the user, and questions in dialogs."""

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
    """Messages and dialogs over a screen. Refusals and advice are removed by `forget`."""

    def __init__(self, screen: Screen[None]) -> None:
        self.screen = screen
        self._passing: set[str] = set()  # texts that `forget` removes

    def notify(self, text: str) -> None:
        self.screen.notify(text)

    def fail(self, error: Exception | str) -> None:
        self.screen.notify(str(error), severity="error")

    def refuse(self, why: str, timeout: float | None = None) -> None:
        """Show why something was refused, for some seconds or until the next `forget`."""
        self.screen.notify(why, severity="warning", timeout=timeout)
        self._passing.add(UNICODE.fit(why))

    def advise(self, how: str) -> None:
        """Show the user's next possible action, for some seconds or until the next `forget`."""
        self.screen.notify(how)
        self._passing.add(UNICODE.fit(how))

    @contextmanager
    def errors_shown(self) -> Iterator[None]:
        """Show an error of a chat or of the store, and do not raise it."""
        try:
            yield
        except (InvalidRequestError, HeldError) as error:
            self.refuse(str(error))
        except StoreError as error:
            self.fail(error)

    def forget(self) -> None:
        """Remove refusals and advice. Textual 8.2 has a public way to remove all messages, but none
        to remove some."""
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
        """Open a dialog. `then` is called with its result, or `otherwise` if it was cancelled."""

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
        """Ask for a yes or no. `then` is called for a yes, `otherwise` for a no."""
        self.ask(Confirm(question, verb), lambda _: then(), otherwise)

    def keys(self) -> dict[str, Binding]:
        """The binding of each action of the screen, as the user has set it."""
        return by_action(self.screen, self.screen.app)

    def key_of(self, command: str) -> str:
        """The key of a command, as it is shown; empty if it has none."""
        key = self.keys().get(action_of(command))
        return "" if key is None else self.screen.app.get_key_display(key)
