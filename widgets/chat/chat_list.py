"""ChatList: all chats in a vertical list, if the terminal is wide enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from widgets.chat_number import ChatNumber
from widgets.figures import count
from widgets.glyphs import UNICODE, Glyphs, Mark
from widgets.line import Line, wrap
from widgets.line_view import LineView

_NUMBER = 4
_AGE = 4


@dataclass(frozen=True, slots=True)
class ChatRow:
    """One chat.

    Attributes:
        number: None if it has none yet.
        age: time since its last use, as shown.
        is_open: whether it has a tab.
        is_pinned: whether it stays above the others.
    """

    title: str
    number: ChatNumber | None
    mark: Mark = Mark.IDLE
    unread: bool = False
    model: str = ""
    age: str = ""
    is_open: bool = False
    is_pinned: bool = False


class ChatList(LineView, can_focus=True):
    """Two lines for each chat: number, state and title, then the rest of a long title, or the
    model, and the age. If not all fit so, each has one line, without model. Only the chats in view
    are requested, however many there are."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "step(-1)", "Up", show=False, id="chats.up"),
        Binding("down", "step(1)", "Down", show=False, id="chats.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="chats.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="chats.page_down"),
        Binding("home", "edge(-1)", "First", show=False, id="chats.first"),
        Binding("end", "edge(1)", "Last", show=False, id="chats.last"),
        Binding("enter", "open", "Open", id="chats.open"),
    ]

    class Picked(Message):
        """A chat was picked to be on view."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._keys: Sequence[str] = ()
        self._row: Callable[[str], ChatRow] | None = None
        self._current = ""
        self._cursor: str | None = None
        self._first = 0
        self._drawn: list[tuple[str, ChatRow]] = []

    @property
    def cursor(self) -> str:
        """The key of the chat that the keys act on."""
        return self._current if self._cursor is None else self._cursor

    def show(self, keys: Sequence[str], row: Callable[[str], ChatRow], current: str) -> None:
        """Show these chats. Nothing is drawn if those in view have not changed.

        Args:
            row: returns the current state of the chat with a key.
            current: the key of the chat on view. When it changes, the cursor moves to it.
        """
        if current != self._current or self._cursor not in keys:
            self._cursor = None
        moved = current != self._current
        self._keys, self._row, self._current = keys, row, current
        if moved:
            self._reveal()
        if moved or self._in_view != self._drawn:
            self.redraw()

    def action_step(self, places: int) -> None:
        if self._keys:
            place = max(0, min(self._place + places, len(self._keys) - 1))
            self._cursor = self._keys[place]
            self._reveal()
            self.redraw()

    def action_page(self, pages: int) -> None:
        self.action_step(pages * max(self._page - 1, 1))

    def action_edge(self, direction: int) -> None:
        self.action_step(direction * len(self._keys))

    def action_open(self) -> None:
        if self.cursor in self._keys:
            self.post_message(self.Picked(self.cursor))

    def on_click(self, event: events.Click) -> None:
        place = self._first + event.y // self._lines_each
        if event.y // self._lines_each < self._page and place < len(self._keys):
            self.post_message(self.Picked(self._keys[place]))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scroll(event, 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scroll(event, -3)

    def on_resize(self) -> None:
        self._reveal()

    def draw(self, width: int, height: int) -> list[Line]:
        self._drawn = self._in_view
        lines = [line for key, row in self._drawn for line in self._chat(key, row, width)]
        if below := len(self._keys) - self._first - len(self._drawn):
            more = f"{' ' * (_NUMBER + 3)}+{count(below)} more"
            lines.append(self.line(width).add(more, self.palette.muted))
        return lines

    def _chat(self, key: str, row: ChatRow, width: int) -> list[Line]:
        palette = self.palette
        is_current = key == self._current
        has_cursor = self.has_focus and key == self.cursor
        over = palette.cursor if has_cursor else Style.null()
        strong = is_current or row.unread
        text = (palette.strong if strong else palette.text if row.is_open else palette.muted) + over
        number = "" if row.number is None else str(row.number)
        colour = palette.muted if row.number is None else palette.owner(row.number)
        line = self.line(width)
        line.add(self.glyphs.cursor if is_current else " ", palette.strong + over)
        line.cell(number, _NUMBER - 1, colour + over, "right").add(" ", over + palette.text)
        line.add(self.glyphs.marks[row.mark], palette.marks[row.mark] + over)
        muted, sign = palette.muted + over, "*" if row.unread else " "
        pin = self.glyphs.pinned if row.is_pinned else " "
        if self._lines_each == 1:
            line.add(pin, muted).cell(row.title, max(line.room - _AGE - 3, 0), text)
            line.add(sign, palette.tick + over).cell(row.age, _AGE + 1, muted, "right").pad(muted)
            return [line]
        line.add(" ", text)
        title, *rest = wrap(row.title, max(line.room - 2, 1))
        line.cell(title, max(line.room - 2, 0), text).add(sign, palette.tick + over).pad(text)
        below = self.line(width).add(" " * (_NUMBER + 1), muted).add(f"{pin} ", muted)
        second, style = (" ".join(rest), text) if rest else (row.model, muted)
        below.cell(second, max(below.room - _AGE - 2, 0), style)
        below.cell(row.age, _AGE + 1, muted, "right").pad(muted)
        return [line, below]

    @property
    def _in_view(self) -> list[tuple[str, ChatRow]]:
        if self._row is None:
            return []
        keys = self._keys[self._first : self._first + self._page]
        return [(key, self._row(key)) for key in keys]

    @property
    def _place(self) -> int:
        return self._keys.index(self.cursor) if self.cursor in self._keys else 0

    @property
    def _page(self) -> int:
        """The number of chats in view at once. If not all are, a line says how many follow."""
        if len(self._keys) <= self.size.height:
            return max(self.size.height // self._lines_each, 1)
        return max(self.size.height - 1, 1)

    @property
    def _lines_each(self) -> int:
        return 2 if len(self._keys) * 2 <= self.size.height else 1

    def _reveal(self) -> None:
        place = self._place
        self._first = max(min(self._first, place), place - self._page + 1, 0)

    def _scroll(self, event: events.MouseEvent, chats: int) -> None:
        self._first = max(0, min(self._first + chats, len(self._keys) - self._page))
        self.redraw()
        event.stop()
