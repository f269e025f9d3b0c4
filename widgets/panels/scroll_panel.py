"""ScrollPanel: a panel whose content is taller than it."""

from __future__ import annotations

from textual import events
from textual.binding import Binding, BindingType

from widgets.panels.panel import Panel


def list_keys(name: str, last: str = "Last") -> tuple[BindingType, ...]:
    """The keys that move through the rows of a panel.

    Args:
        name: the first part of their ids.
        last: the label of the End key.
    """
    return (
        Binding("up", "step(-1)", "Up", show=False, id=f"{name}.up"),
        Binding("down", "step(1)", "Down", show=False, id=f"{name}.down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id=f"{name}.page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id=f"{name}.page_down"),
        Binding("home", "edge(-1)", "First", show=False, id=f"{name}.first"),
        Binding("end", "edge(1)", last, show=False, id=f"{name}.last"),
    )


class ScrollPanel(Panel):
    """Base class of the panels that scroll.

    It is not a `ScrollView`, because frame and column heads do not scroll, and the scroll bar is
    the right edge of the frame.

    Attributes:
        first: index of the first row in view.
    """

    first = 0

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        raise NotImplementedError

    @property
    def page(self) -> int:
        """The number of rows in view at once."""
        return max(self.size.height - (2 if self.framed else 1), 0)

    @property
    def num_below(self) -> int:
        return max(self.num_rows - self.first - self.page, 0) if self.page else 0

    def scroll(self, first: int) -> None:
        """Put row `first` at the top, clamped to the rows."""
        self.first = max(0, min(first, self.num_rows - self.page))

    def reveal(self, row: int) -> None:
        """Scroll just enough to bring `row` into view."""
        self.scroll(max(min(self.first, row), row - self.page + 1))

    def action_step(self, rows: int) -> None:
        """Scroll by `rows`, clamped to the rows. Panels with a cursor move that instead."""
        self.scroll(self.first + rows)
        self.redraw()

    def action_page(self, pages: int) -> None:
        self.action_step(self._rows_of(pages))

    def action_edge(self, direction: int) -> None:
        self.action_step(direction * self.num_rows)

    def _rows_of(self, pages: int) -> int:
        """The rows of so many pages. Each page begins with the last row of the previous one."""
        return pages * max(self.page - 1, 1)

    def thumb(self, height: int) -> range:
        rows, page = self.num_rows, self.page
        if not 0 < page < rows:
            return range(0)
        top = height - page
        length = max(1, page * page // rows)
        start = top + (page - length) * self.first // (rows - page)
        return range(start, start + length)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, -3)

    def _wheel(self, event: events.MouseEvent, rows: int) -> None:
        self.scroll(self.first + rows)
        self.redraw()
        event.stop()
