"""ChatTabs: the open chats in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.message import Message

from widgets.chat_number import ChatNumber
from widgets.glyphs import UNICODE, Glyphs, Mark
from widgets.line import Line, shorten
from widgets.line_view import LineView

MAX_TITLE = 20
MIN_TITLE = 8  # if all tabs are shown
NEAR_TITLE = 14  # if some are left out
MIN_WIDTH_FOR_NEW = 24
# Of a tab without a title: number, mark and blanks.
LEAST = 7


@dataclass(frozen=True, slots=True)
class Tab:
    """One open chat.

    Attributes:
        key: the chat's id.
        number: the chat's own number, whatever its position.
        title: its title, as it is shown.
        mark: its state.
        unread: whether there is new text that has not been on view.
    """

    key: str
    number: ChatNumber
    title: str
    mark: Mark = Mark.IDLE
    unread: bool = False


class ChatTabs(LineView):
    """Numbered titles with states. The current one is always in view."""

    DEFAULT_CSS = """
    ChatTabs { height: 1; }
    """

    class Picked(Message):
        """The tab of a chat was clicked."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class NewWanted(Message):
        """A new chat was requested."""

    class MoreWanted(Message):
        """The list of all chats was requested."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._tabs: Sequence[Tab] = ()
        self._current = ""
        self._spans: list[tuple[int, int, Message]] = []

    def show(self, tabs: Sequence[Tab], current: str) -> None:
        """Show these chats; `current` is the key of the one on view."""
        if (tabs, current) != (self._tabs, self._current):
            self._tabs, self._current = tabs, current
            self.redraw()

    def on_click(self, event: events.Click) -> None:
        for start, end, message in self._spans:
            if start <= event.x < end:
                self.post_message(message)

    def draw(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        line = self.line(width)
        self._spans = []
        new = " + new " if width >= MIN_WIDTH_FOR_NEW else ""
        shown, title_width = self._fit(width - cell_len(new))
        before, after = (shown[0], len(self._tabs) - shown[-1] - 1) if shown else (0, 0)
        self._count(line, f"<{before} ", before)
        for index in shown:
            tab = self._tabs[index]
            is_current = tab.key == self._current
            start = width - line.room
            over = palette.cursor if is_current else Style.null()
            text = (palette.strong if is_current or tab.unread else palette.muted) + over
            line.add(self.glyphs.cursor if is_current else " ", palette.strong + over)
            line.add(f"{tab.number} ", text if is_current else palette.owner(tab.number))
            line.add(self.glyphs.marks[tab.mark], palette.marks[tab.mark] + over)
            line.add(f" {shorten(tab.title, title_width)}", text)
            line.add("*" if tab.unread else " ", palette.tick + over).add(" ", palette.text)
            self._spans.append((start, width - line.room, self.Picked(tab.key)))
        self._count(line, f" {after}>", after)
        line.pad(palette.text, until=cell_len(new))
        if new:
            self._spans.append((width - cell_len(new), width, self.NewWanted()))
            line.add(new, palette.muted)
        return [line]

    def _count(self, line: Line, text: str, hidden: int) -> None:
        """Draw the number of hidden tabs at a side, if there are any."""
        if hidden:
            start = self.size.width - line.room
            line.add(text, self.palette.muted)
            self._spans.append((start, self.size.width - line.room, self.MoreWanted()))

    def _fit(self, room: int) -> tuple[Sequence[int], int]:
        """The tabs that are shown, and the maximum width of their titles.

        Titles are shortened as long as they stay distinguishable. Then tabs are left out at both
        sides, and those around the current one keep their titles.
        """
        # Tabs that would not fit even without titles are not measured: there may be a thousand.
        widths = range(MAX_TITLE, MIN_TITLE - 1, -1) if len(self._tabs) * LEAST <= room else ()
        for title_width in widths:
            if sum(self._width(i, title_width) for i in range(len(self._tabs))) <= room:
                return range(len(self._tabs)), title_width
        room -= 2 * len(f"<{len(self._tabs)} ")
        keys = [tab.key for tab in self._tabs]
        first = keys.index(self._current) if self._current in keys else 0
        last = first + 1
        used = self._width(first, NEAR_TITLE)
        if used > room:
            return range(first, last), max(room - LEAST, 1)
        while True:
            added = False
            for place in (last, first - 1):
                if 0 <= place < len(keys):
                    wider = used + self._width(place, NEAR_TITLE)
                    if wider <= room:
                        used, added = wider, True
                        first, last = min(first, place), max(last, place + 1)
            if not added:
                break
        shown = range(first, last)
        wide = range(MAX_TITLE, NEAR_TITLE, -1)
        fits = (w for w in wide if sum(self._width(i, w) for i in shown) <= room)
        return shown, next(fits, NEAR_TITLE)

    def _width(self, index: int, title_width: int) -> int:
        title = shorten(self._tabs[index].title, title_width)
        return 2 + len(f"{self._tabs[index].number} ") + 2 + cell_len(self.glyphs.fit(title)) + 1
