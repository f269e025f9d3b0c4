"""ScrollPanel: a panel whose content is longer than it is high."""

from __future__ import annotations

from textual import events

from widgets.panel import Panel


class ScrollPanel(Panel):
    """Base of the panels that scroll.

    Not a `ScrollView`: frame and column heads stand still, and the bar is the frame's right edge.

    Attributes:
        first: index of the first row in view.
    """

    first = 0

    @property
    def num_rows(self) -> int:
        """Rows there are."""
        raise NotImplementedError

    @property
    def page(self) -> int:
        """Rows in view at once."""
        return max(self.size.height - (2 if self.framed else 1), 0)

    def scroll(self, first: int) -> None:
        """Have row `first` at the top, as far as the rows go."""
        self.first = max(0, min(first, self.num_rows - self.page))

    def reveal(self, row: int) -> None:
        """Scroll as little as brings `row` into view."""
        self.scroll(max(min(self.first, row), row - self.page + 1))

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
