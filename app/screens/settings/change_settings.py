"""ChangeSettings: a dialog for the preferences, and one for a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from app.screens.dialogs.dialog import AskText, Dialog, Entry, Finder
from app.screens.settings.preferences import Preference, Preferences
from widgets.line import shorten

_VALUE = 26  # cells
_EDGES = 3  # cells that a list has beside its options: padding, and the scrollbar


class ChangeSettings(Finder[None]):
    """Lists the preferences, found by words. Changes apply at once, and are stored.

    Args:
        preferences: shows and changes them.
        words: the search that the dialog opens with.

    Attributes:
        outcome: the sentence on the last change; empty if there is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "Previous choice", id="settings.before", priority=True),
        Binding("right", "turn(1)", "Next choice", id="settings.next", priority=True),
        Binding(
            "ctrl+r",
            "reset",
            "Reset",
            tooltip="Reset changed settings",
            id="settings.reset",
            priority=True,
        ),
    ]
    GLOSS: ClassVar[dict[str, str]] = {
        "Theme": "contrast has 7:1 for all text; ansi takes the terminal's own colours",
        "Screen updates": "how often the screen looks at the engine; frugal halves that",
        "Targets": "what goodput, the advice on knobs and the alerts measure replies by",
        "Alerts": "a notice, a mark in the log and perhaps the bell when a limit is passed",
    }

    def __init__(self, preferences: Preferences, words: str = "") -> None:
        super().__init__()
        self._preferences = preferences
        self._words = words
        self.outcome = ""
        self._shown: dict[str, Preference] = {}

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Settings · changes are saved")
            yield Entry(self._words, placeholder="words to find one by, such as theme or quit")
            yield Label(self._hint, id="refusal", markup=False)
            yield OptionList()
            yield Label("", id="meaning", markup=False)

    def on_resize(self) -> None:
        self.call_after_refresh(self._list)

    def on_input_changed(self) -> None:
        self._list()

    def on_input_submitted(self) -> None:
        self._edit()

    @on(OptionList.OptionSelected)
    def edit(self) -> None:
        self._edit()

    @on(OptionList.OptionHighlighted)
    def explain(self) -> None:
        """Describe the row under the cursor, in a place of its own."""
        row = self._current
        self.query_one("#meaning", Label).update(row.description if row else "")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "turn":
            current = self._current if self.is_mounted else None
            return current is not None and bool(current.choices)
        return super().check_action(action, parameters)

    def action_turn(self, places: int) -> None:
        if (row := self._current) is not None:
            place = row.choices.index(row.value) if row.value in row.choices else -places
            self._change(row, row.choices[(place + places) % len(row.choices)])

    def action_reset(self) -> None:
        if (row := self._current) is not None:
            self._show_outcome(row, self._preferences.reset(row.table, row.name))

    @property
    def _hint(self) -> str:
        """The bindings of keys: one may just have been changed."""
        before, after, reset, close = map(
            self.key_of, ("turn(-1)", "turn(1)", "reset", "dismiss(None)")
        )
        return f"Enter changes, {before} {after} chooses, {reset} resets, {close} closes"

    @property
    def _current(self) -> Preference | None:
        return self._shown.get(self.marked)

    def _edit(self) -> None:
        row = self._current
        if row is None:
            return
        if row.choices:
            self.action_turn(1)
            return

        def take(text: str | None) -> None:
            if text is not None:
                self._change(row, text)

        if row.table == "keys":
            self.app.push_screen(PressKey(row.label), take)
        else:
            self.app.push_screen(AskText(row.question, row.value), take)

    def _change(self, row: Preference, text: str) -> None:
        self._show_outcome(row, self._preferences.change(row.table, row.name, text))

    def _show_outcome(self, row: Preference, refusal: str) -> None:
        """Show whether a change was made, and list all again."""
        first = self._preferences.stated_elsewhere(row.table, row.name)
        before = f"{first} overrides this, at the next start too" if first else ""
        self.outcome = refusal or before
        self.query_one("#refusal", Label).update(self.outcome or self._hint)
        self._list()

    def _list(self) -> None:
        words = self.query_one(Input).value.casefold().split()
        found = [
            row
            for row in self._preferences.all()
            if all(w in f"{row.section} {row.description}".casefold() for w in words)
        ]
        options, before = self.options, self._current
        self._shown = {row.id: row for row in found}
        options.clear_options()
        options.add_options(self._options(found))
        if found:
            at = before.id if before is not None and before.id in self._shown else found[0].id
            options.highlighted = options.get_option_index(at)

    def _options(self, rows: list[Preference]) -> Iterator[Option]:
        section, width = "", self.options.content_size.width - _EDGES
        for row in rows:
            if row.section != section:
                section = row.section
                yield Option(Content.styled(section, "bold $text-primary"), disabled=True)
            value = f"‹{row.value}›" if row.choices else row.shown or row.value
            room = max(0, width - _VALUE - 3)
            line = Content.assemble(
                f"  {shorten(row.label, room):<{room}} ", (shorten(value, _VALUE), "bold")
            )
            yield Option(line, id=row.id)


class PressKey(Dialog[str]):
    """Asks the user to press a key. The result is None if it was cancelled.

    While it is open, global keys do nothing, so that they can be chosen.

    Args:
        what: the key's action.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(f"Press the key for: {self._what}", markup=False)
            yield Label(f"{self.key_of('dismiss(None)')} leaves it as it is.")

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss(event.key)
