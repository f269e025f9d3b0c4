"""Dialog: the base of the dialogs, and the plain ones: a question, a text, one of a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from app.screens.bound import bindings_of, key_of
from widgets.glyphs import UNICODE
from widgets.line import shorten
from widgets.line_input import LineInput, run_bound

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """Base of the dialogs; `deck.tcss` has their frame. The result is None if nothing was
    chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", tooltip="Close the dialog", id="dialog.cancel")
    ]

    @classmethod
    def kinds(cls) -> Iterator[type[Dialog[Any]]]:
        """This class and its subclasses."""
        yield cls
        for kind in cls.__subclasses__():
            yield from kind.kinds()

    def key_of(self, action: str) -> str:
        """The key that the dialog has for an action, as it is shown."""
        return key_of(action, self, self.app)

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        # Textual 8.2 would end its workers only after its widgets, which they may write to.
        self.workers.cancel_node(self)
        return super().dismiss(result)


class Entry(LineInput):
    """Textual's input, whose keys and text take effect in the order in which they were typed."""

    def on_mount(self) -> None:
        # A blinking cursor would repaint an idle screen twice a second.
        self.cursor_blink = False

    async def on_key(self, event: events.Key) -> None:
        await run_bound(self, event)


class Confirm(Dialog[bool]):
    """Asks for confirmation of something that cannot be undone.

    Args:
        verb: names what Enter does.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "dismiss(True)", "Yes", tooltip="Yes, do it", id="dialog.confirm")
    ]

    def __init__(self, question: str, verb: str) -> None:
        super().__init__()
        self._question = question
        self._verb = verb

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question, markup=False)
            do, leave = self.key_of("dismiss(True)"), self.key_of("dismiss(None)")
            yield Label(f"{do} to {self._verb}, {leave} to leave it.")


class AskText(Dialog[str]):
    """Asks for a line of text. The result is None if it was cancelled or left empty."""

    def __init__(self, question: str, text: str) -> None:
        super().__init__()
        self._question = question
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question, markup=False)
            yield Entry(self._text, select_on_focus=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


@dataclass(frozen=True, slots=True)
class Named:
    """An item of `PickNamed`.

    Attributes:
        title: the name as it is shown.
        text: a line that describes it.
    """

    name: str
    title: str
    text: str


class PickNamed(Dialog[tuple[str, str]]):
    """Asks for one item of a list, and an action on it: the result is a verb and the item's name.
    The verb of Enter is `take`; subclasses bind keys to the action `act` with other verbs, and say
    in `TITLE` what Enter does.

    Args:
        first: the name of the item that the cursor is on at first; the first item if there is none.

    Attributes:
        MOST: the most characters of a text that are shown.
    """

    MOST: ClassVar[int] = 70

    def __init__(self, items: Sequence[Named], first: str = "") -> None:
        super().__init__()
        self._items = items
        self._first = first

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            keys = (binding for binding in bindings_of(self, self.app) if binding.show)
            frame.border_subtitle = " · ".join(
                f"{self.app.get_key_display(key)} {key.description}" for key in keys
            )
            yield Label(self.TITLE or "", markup=False)
            yield OptionList(*(Option(self._line(item), item.name) for item in self._items))

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        names = [item.name for item in self._items]
        if names:
            options.highlighted = names.index(self._first) if self._first in names else 0
        options.focus()

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(("take", str(event.option_id)))

    def action_act(self, verb: str) -> None:
        place = self.query_one(OptionList).highlighted
        if place is not None:
            self.dismiss((verb, self._items[place].name))

    def _line(self, item: Named) -> Content:
        text = shorten(UNICODE.fit(" ".join(item.text.split())), self.MOST)
        return Content.assemble((UNICODE.fit(item.title), "bold"), (f"\n  {text}", "$text-muted"))


class PickPolicy(PickNamed):
    """Asks for a batching policy."""

    TITLE = "Policy · Enter chooses; running requests continue under it"
    MOST = 200  # a sentence, which may wrap
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "p",
            "dismiss(None)",
            "Close",
            tooltip="Close the list of policies",
            show=False,
            id="policy.close",
        )
    ]


class PickPreset(PickNamed):
    """Asks for a preset, and an action on it."""

    TITLE = "Presets · Enter applies"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "act('rename')", "Rename", tooltip="Rename the preset", id="presets.rename"),
        Binding("d", "act('delete')", "Delete", tooltip="Delete the preset", id="presets.delete"),
        Binding(
            "n",
            "act('begin')",
            "New chats",
            tooltip="Make it the preset of new chats, or not",
            id="presets.begin",
        ),
    ]


class PickPrompt(PickNamed):
    """Asks for a saved prompt, and an action on it."""

    TITLE = "Saved prompts · Enter inserts"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "act('edit')", "Edit", tooltip="Edit the saved prompt", id="prompts.edit"),
        Binding(
            "d", "act('delete')", "Delete", tooltip="Delete the saved prompt", id="prompts.delete"
        ),
    ]


class Finder(Dialog[T]):
    """Base of dialogs with a line above a list. The keys for the list's cursor act while the line
    has the focus; Home and End act on the list once the line's own cursor is at that end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Row above", show=False, id="dialog.up", priority=True),
        Binding("down", "move(1)", "Row below", show=False, id="dialog.down", priority=True),
        Binding("pageup", "page(-1)", "Page up", show=False, id="dialog.page_up", priority=True),
        Binding(
            "pagedown", "page(1)", "Page down", show=False, id="dialog.page_down", priority=True
        ),
        Binding("home", "edge(-1)", "First row", show=False, id="dialog.first", priority=True),
        Binding("end", "edge(1)", "Last row", show=False, id="dialog.last", priority=True),
    ]

    @property
    def options(self) -> OptionList:
        return self.query_one(OptionList)

    @property
    def marked(self) -> str:
        """The id of the option under the cursor; empty if there is none."""
        option = self.options.highlighted_option
        return option.id or "" if option is not None else ""

    def action_move(self, places: int) -> None:
        if places < 0:
            self.options.action_cursor_up()
        else:
            self.options.action_cursor_down()

    def action_page(self, pages: int) -> None:
        if pages < 0:
            self.options.action_page_up()  # type: ignore[no-untyped-call]
        else:
            self.options.action_page_down()  # type: ignore[no-untyped-call]

    def action_edge(self, side: int) -> None:
        if side < 0:
            self.options.action_first()
        else:
            self.options.action_last()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "edge" and self.is_mounted:
            line = self.query_one(Input)
            there = len(line.value) if parameters == (1,) else 0
            return not line.has_focus or line.cursor_position == there
        return super().check_action(action, parameters)
